#!/usr/bin/env bash
# Makes benchmarks/results/million anew: the study's report, its CSV files, the tables and the learning curves. Runs
# whose records (runs/million) are not on this machine are taken from what is already there. Flags select a part, as of
# `python -m sppo report`:
#   bash benchmarks/publish_million.sh --seeds 100:105
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh requirements.txt
out=benchmarks/results/million
source=runs/million
[ -d "$source" ] || source="$out"
[ -d "$source" ] || { echo "no runs: python -m sppo study run benchmarks/studies/million.toml" >&2; exit 1; }
flags=(--tensorboard-seeds 0 --baseline ppo-defaults)
[ "$source" != "$out" ] && [ -f "$out/runs.csv" ] && flags+=(--published "$out")
python -m sppo report "$source" --out "$out" "${flags[@]}" "$@"
python -m benchmarks.million
