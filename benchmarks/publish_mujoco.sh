#!/usr/bin/env bash
# Makes benchmarks/results/mujoco anew: reports, CSV files, thinned TensorBoard curves of one seed per cell, and
# the tables of claims. Runs whose records (runs/) are not on this machine are taken from the report that is
# already there, so that a clone alone remakes everything that is in git. Flags select a part, as of
# `python -m sppo report`:
#   bash benchmarks/publish_mujoco.sh --seeds 0:5
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh requirements.txt
for study in mujoco-500k mujoco-500k-nodecay mujoco-500k-mirror mujoco-500k-symmetric mujoco-1m-ant; do
  out="benchmarks/results/mujoco/$study"
  source="runs/$study"
  [ -d "$source" ] || [ -f "$out/runs.csv" ] || continue
  flags=(--tensorboard-seeds 1 --tensorboard-thin 25)
  [ -d "$source" ] || { source="$out"; flags=(--tensorboard-seeds 0); }
  [ "$source" != "$out" ] && [ -f "$out/runs.csv" ] && flags+=(--published "$out")
  python -m sppo report "$source" --out "$out" "${flags[@]}" "$@"
done
python -m benchmarks.mujoco_claims
