#!/usr/bin/env bash
# From nothing to a picture: set-up, then PPO and sPPO on HalfCheetah-v5 from one seed, side by side.
# Options are passed on, e.g. `bash scripts/quickstart.sh --env Hopper-v5 --steps 50000`.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh requirements.txt
python scripts/quickstart.py "$@"
