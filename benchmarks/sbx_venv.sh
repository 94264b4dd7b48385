#!/usr/bin/env bash
# Makes .venv-sbx, from which training_speed.py runs SBX. Safe to run twice.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -x .venv-sbx/bin/python ] || python3 -m venv .venv-sbx
.venv-sbx/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements-sbx.txt
echo "SBX is ready: .venv-sbx/bin/python"
