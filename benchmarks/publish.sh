#!/usr/bin/env bash
# Makes a part of benchmarks/results anew: the reports of its studies with their CSV files, then the tables, the pictures
# and the READMEs' copies. Runs whose records (runs/) are not on this machine are taken from what is already there, so that
# a clone alone remakes everything that is in git. Further flags select runs, as of `python -m sppo report`:
#   bash benchmarks/publish.sh million          # or mujoco, robustness
#   bash benchmarks/publish.sh mujoco --seeds 0:5   # leaves out the others for good: their rows go
set -euo pipefail
cd "$(dirname "$0")/.."
part="${1:-}"
results="benchmarks/results/$part" common=(--tensorboard-seeds 0)
case "$part" in
  million) studies=(million) results=benchmarks/results script=million common+=(--baseline ppo-defaults) ;;
  mujoco)
    studies=(mujoco-500k mujoco-500k-nodecay mujoco-500k-mirror mujoco-500k-symmetric mujoco-1m-ant)
    script=mujoco_claims ;;
  robustness) studies=(robustness-passes robustness-rates robustness-ablation) script=robustness ;;
  *) echo "usage: bash benchmarks/publish.sh million|mujoco|robustness [flags of python -m sppo report]" >&2; exit 2 ;;
esac
shift
source scripts/setup.sh requirements.txt
for study in "${studies[@]}"; do
  out="$results/$study"
  source="$out" flags=("${common[@]}")
  if [ -d "runs/$study" ]; then
    source="runs/$study"
    [ ! -f "$out/runs.csv" ] || flags+=(--published "$out")
  elif [ ! -f "$out/runs.csv" ]; then
    continue
  fi
  python -m sppo report "$source" --out "$out" "${flags[@]}" "$@"
done
python -m "benchmarks.$script"
