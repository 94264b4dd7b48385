#!/usr/bin/env bash
# Set-up, lint, types, tests. `--slow` runs the marked heavy tests instead (Ray, EnvPool, a browser,
# long statistics) and installs what they need; anything else is passed on to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh requirements-dev.txt

# One thread per worker: pytest-xdist already uses every core.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Bytecode is kept: the tests start dozens of processes, and each would compile the package for itself.
unset PYTHONDONTWRITEBYTECODE

if [ "${1:-}" = "--slow" ]; then
  shift
  source scripts/setup.sh requirements-ray.txt
  # Without EnvPool, or a browser, their tests skip and say so.
  python -m pip install --quiet --disable-pip-version-check -r requirements-envpool.txt \
    || echo "EnvPool could not be installed"
  if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "Installing chromium for the browser tests ..."
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
      || echo "chromium could not be installed"
  fi
  python -m pytest -n auto --dist worksteal -m "slow or ray or browser" "$@"
  exit
fi
ruff check .
ruff format --check .
# Types and imports are checked beside the tests, one core each, and shown after them.
checks="$(mktemp -d)"
mypy >"$checks/types" 2>&1 &
types=$!
lint-imports --no-logo >"$checks/imports" 2>&1 &
imports=$!
trap 'kill "$types" "$imports" 2>/dev/null || true; rm -rf "$checks"' EXIT
status=0
python -m pytest -n auto --dist worksteal -m "not slow and not ray and not browser" "$@" || status=$?
wait "$types" || status=$?
wait "$imports" || status=$?
cat "$checks/types" "$checks/imports"
exit "$status"
