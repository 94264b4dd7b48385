#!/usr/bin/env bash
# Reruns the MuJoCo benchmark, or a part of it, from nothing to the report:
#   bash scripts/rerun_mujoco.sh                                   all 14,400 runs
#   bash scripts/rerun_mujoco.sh --env Hopper-v5 --seeds 0:3       a part (see 'study run --help')
#   bash scripts/rerun_mujoco.sh --study benchmarks/studies/mujoco-nodecay.toml --seeds 0:3
# May be interrupted, or killed, at any time: started again, it goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/.."

study=benchmarks/studies/mujoco.toml
requirements=requirements.txt
out=()
flags=()
while [ $# -gt 0 ]; do
  case "$1" in
    --study) study="${2:?--study needs a file}"; shift 2 ;;
    --out) out=(--out "${2:?--out needs a directory}"); shift 2 ;;
    --executor) [ "${2:-}" = ray ] && requirements=requirements-ray.txt; flags+=("$1" "${2:-}"); shift 2 ;;
    -h|--help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit ;;
    *) flags+=("$1"); shift ;;
  esac
done
source scripts/setup.sh "$requirements"

status=0
python -m sppo study run "$study" ${out[@]+"${out[@]}"} ${flags[@]+"${flags[@]}"} || status=$?
# 1: some runs failed, and the report says which. Anything else (an impossible flag, Ctrl-C): no report.
[ "$status" -le 1 ] || exit "$status"
python -m sppo study report "$study" ${out[@]+"${out[@]}"}
exit "$status"
