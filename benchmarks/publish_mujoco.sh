#!/usr/bin/env bash
# From the records of the published study (runs/) to benchmarks/results/mujoco: reports, CSV files, thinned
# TensorBoard curves of one seed per cell, and the tables of claims. Runs whose records are not on this
# machine are taken from the report that is already there. Flags select a part, as of `python -m sppo report`:
#   bash benchmarks/publish_mujoco.sh --seeds 0:5
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh requirements.txt
for study in mujoco-500k mujoco-500k-nodecay mujoco-500k-mirror mujoco-500k-symmetric; do
  [ -d "runs/$study" ] || continue
  out="benchmarks/results/mujoco/$study"
  earlier=()
  [ -f "$out/runs.csv" ] && earlier=(--published "$out")
  python -m sppo report "runs/$study" --out "$out" --tensorboard-seeds 1 --tensorboard-thin 25 \
    ${earlier[@]+"${earlier[@]}"} "$@"
done
python benchmarks/mujoco_claims.py
