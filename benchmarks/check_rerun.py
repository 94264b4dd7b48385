"""Compare runs that were made again with the published ones, evaluation by evaluation.

    python -m sppo study run benchmarks/results/mujoco/mujoco-500k/study.toml --env ...   # a printed command
    python benchmarks/check_rerun.py benchmarks/results/mujoco/mujoco-500k runs/mujoco-500k

On a processor that the published runs were made on the numbers are the same; elsewhere BLAS sums in
another order, and the runs part after some updates.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from sppo.records.published import completed_runs
from sppo.records.studies import read_records


def main() -> int:
    """Print a line per run that both have; 1 if one differs, 2 if there is none."""
    try:
        known, again = completed_runs(Path(sys.argv[1])), read_records(Path(sys.argv[2]))
    except FileNotFoundError as error:
        print(f"{error}: run the printed command first")
        return 2
    both = [(known[run.hash], run) for run in again.runs if run.status == "completed" and run.hash in known]
    if not both:
        print("no run is completed in both")
        return 2
    different = 0
    for old, new in both:
        same = np.array_equal(old.returns, new.returns)
        different += not same
        gap = float(np.abs(old.returns - new.returns).max())
        parameters = {name: old.config["parameters"].get(name) for name in ("n_epochs", "clip_range", "eta")}
        verdict = "the same" if same else f"largest difference of an evaluation {gap:.4g}"
        places = [run.versions.get("processor", "an unknown processor") for run in (old, new)]
        if not same and places[0] != places[1]:
            verdict += f" (made on {places[0]}, again on {places[1]})"
        print(f"{old.env} {old.algorithm} {parameters} seed {old.seed}: {verdict}")
    print(f"{len(both)} runs compared, {different} different")
    return int(different > 0)


if __name__ == "__main__":
    raise SystemExit(main())
