#!/usr/bin/env bash
# Makes benchmarks/results/robustness anew: the reports of the three studies, the figure and its tables. Runs whose
# records (runs/) are not on this machine are taken from what is already there.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh requirements.txt
for study in robustness-passes robustness-rates robustness-ablation; do
  out="benchmarks/results/robustness/$study"
  source="runs/$study"
  [ -d "$source" ] || source="$out"
  [ -d "$source" ] || continue
  flags=(--tensorboard-seeds 0)
  [ "$source" != "$out" ] && [ -f "$out/runs.csv" ] && flags+=(--published "$out")
  python -m sppo report "$source" --out "$out" "${flags[@]}" "$@"
done
python -m benchmarks.robustness
