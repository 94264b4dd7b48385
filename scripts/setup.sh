# Sourced by the other scripts: makes .venv from the pinned requirements, once per change of them.
# Usage: source scripts/setup.sh REQUIREMENTS_FILE
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

_requirements="${1:-requirements.txt}"
_stamp=".venv/.installed-$(basename "$_requirements" .txt)"
# requirements-dev.txt includes requirements.txt, so the fingerprint covers both and the metadata.
_fingerprint="$(cat requirements*.txt pyproject.toml | cksum)"

if [ ! -x .venv/bin/python ]; then
  echo "Creating .venv ..."
  python3 -m venv .venv
fi
if [ "$(cat "$_stamp" 2>/dev/null)" != "$_fingerprint" ]; then
  echo "Installing $_requirements (a few minutes the first time) ..."
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$_requirements"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
  echo "$_fingerprint" > "$_stamp"
fi
export PATH="$PWD/.venv/bin:$PATH"
