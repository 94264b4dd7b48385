#!/usr/bin/env bash
# Set-up, lint, types, tests. `--slow` runs the marked heavy tests instead of the default ones;
# anything else is passed on to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh requirements-dev.txt

# One thread per worker: pytest-xdist already uses every core.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

if [ "${1:-}" = "--slow" ]; then
  shift
  # pytest exits 5 when no test carries the markers.
  python -m pytest -n auto -m "slow or ray or browser" "$@" || [ $? -eq 5 ]
  exit
fi
ruff check .
ruff format --check .
mypy
python -m pytest -n auto -m "not slow and not ray and not browser" "$@"
