"""How the cost of an exact evaluation grows with the number of transitions, up to a million.

    python benchmarks/exact_scaling.py [--out benchmarks/results/exact]

Two families: DeepSeaTreasure of growing depth (acyclic: solved directly) and random MDPs with five
successors per state and action (one large strong component: solved iteratively). For each, the time of one
``mdp.evaluate`` and of one iteration of ``solve`` (sMDPO, ten inner steps), and the peak memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# on a busy machine the threads of BLAS spend more time waiting for one another than computing
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from sppo.exact import TabularMDP, deep_sea_treasure, random_mdp, solve
from sppo.figures.figure import Table, stack, where, write_table


def measure(family: str, mdp: TabularMDP) -> dict[str, Any]:
    """Seconds per evaluation and per iteration; the first evaluation, which also orders the states, apart."""
    policy = np.full(mdp.reward.shape, 1.0 / mdp.n_actions)

    def timed(function: Callable[[], object], repetitions: int) -> float:
        begun = time.process_time()
        for _ in range(repetitions):
            function()
        return (time.process_time() - begun) / repetitions

    first = timed(lambda: mdp.evaluate(policy), 1)
    evaluation = mdp.evaluate(policy)
    iterations = 3
    per_solve = timed(
        lambda: solve(mdp, "smdpo", "fixed", iterations=iterations, inner_steps=10, eta=0.1, alpha=0.1), 1
    )
    through_occupancy = float(evaluation.occupancy @ (policy * mdp.reward).sum(axis=1)) / (1.0 - mdp.gamma)
    return {
        "family": family,
        "states": mdp.n_states,
        "transitions": mdp.n_transitions,
        "first_evaluation_seconds": first,
        "evaluation_seconds": timed(lambda: mdp.evaluate(policy), 3),
        "iteration_seconds": per_solve / iterations,
        "consistency": abs(evaluation.value - through_occupancy) / max(1e-12, abs(evaluation.value)),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def slope(table: Table, family: str) -> float:
    """Exponent of the growth over the last decade of transitions."""
    rows = where(table, family=family)
    x, y = np.log(rows["transitions"]), np.log(rows["evaluation_seconds"])
    last = x >= x.max() - np.log(10.5)
    return float(np.polyfit(x[last], y[last], 1)[0])


def draw(table: Table, path: Path) -> None:
    """Log-log, with a line of slope 1 to compare with."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4.2))
    for family, color in (("deep sea treasure", "tab:blue"), ("random", "tab:red")):
        rows = where(table, family=family)
        axes.loglog(
            rows["transitions"], rows["evaluation_seconds"], "o-", color=color, label=f"{family}, evaluate"
        )
        axes.loglog(
            rows["transitions"], rows["iteration_seconds"], "s--", color=color, label=f"{family}, iteration"
        )
    x = np.array([1e4, 1e6])
    axes.loglog(x, 1e-6 * x, color="black", linewidth=0.8, label="linear: 1 µs per transition")
    axes.set_xlabel("transitions")
    axes.set_ylabel("seconds (CPU)")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=150)
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})


def main() -> int:
    """Run, print, write the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/exact"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for n in (30, 50, 100, 200, 300, 500, 700):
        rows.append(measure("deep sea treasure", deep_sea_treasure(n)))
        print(rows[-1], flush=True)
    for states in (1_000, 3_000, 10_000, 30_000, 100_000):
        rows.append(measure("random", random_mdp(states, 2, successors=5, gamma=0.9, seed=0)))
        print(rows[-1], flush=True)
    table = stack(rows)
    write_table(table, args.out / "scaling.csv")
    draw(table, args.out / "scaling")
    for family in ("deep sea treasure", "random"):
        print(f"{family}: time grows as transitions^{slope(table, family):.2f} over the last decade")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
