#!/usr/bin/env bash
# Set-up, then the documentation site: docs/_build/html/index.html. Any warning, such as a link that leads nowhere,
# is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh requirements-docs.txt
python -m sphinx --builder html --fail-on-warning --keep-going --quiet --jobs auto docs docs/_build/html "$@"
echo "docs/_build/html/index.html"
