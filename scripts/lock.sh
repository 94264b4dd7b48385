#!/usr/bin/env bash
# Regenerates requirements-lock.txt: every package of the test environment, pinned with the hashes of its
# files. Run it after changing requirements.txt or requirements-dev.txt.
#
# torch is left out of the lock: its wheels differ by platform and accelerator and come from several
# indexes under one version number. Install the pinned version from the index of your choice, then
#   pip install --no-deps --require-hashes -r requirements-lock.txt
set -euo pipefail
cd "$(dirname "$0")/.."

workspace="$(mktemp -d)"
trap 'rm -rf "$workspace"' EXIT
python3 -m venv "$workspace/venv"
"$workspace/venv/bin/python" -m pip install --quiet --disable-pip-version-check "pip==25.3" "pip-tools==7.5.2"
"$workspace/venv/bin/pip-compile" --quiet --generate-hashes --allow-unsafe --strip-extras \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header \
  --no-annotate --output-file "$workspace/lock.txt" requirements-dev.txt
{
  echo "# The test environment, pinned with hashes; made by scripts/lock.sh. Without torch: see there."
  # Without pip-compile's remarks, torch, and the CUDA packages that belong to it.
  awk '/^#/ || /^$/ {next} /^[a-z]/ {keep = !/^(torch==|nvidia-|cuda-|triton)/} keep' "$workspace/lock.txt"
} > requirements-lock.txt
echo "requirements-lock.txt: $(grep -c '==' requirements-lock.txt) packages"
