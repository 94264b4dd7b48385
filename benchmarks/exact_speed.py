"""``solve`` against loops over NumPy, in one run, with the same numbers out.

    python benchmarks/exact_speed.py [--grid] [--out benchmarks/results/exact]

Every configuration is run by ``exact_numpy.py`` and by ``sppo.exact.solve``, alternating, single-threaded;
the time is CPU time per inner step, the best of the repetitions of each, and the values must agree to 1e-10.
``--cold`` also times a first ``solve`` in a new process with an empty compilation cache, ``--grid`` the
paper's entire fixed-step grid for CliffWorld on all cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import exact_numpy as plain
import numpy as np

from sppo.exact import cliff_world, solve, sweep
from sppo.figures.figure import stack, write_table

Row = dict[str, Any]
OBJECTIVES = ("smdpo", "mdpo", "trpo")
#: method -> (iterations, inner steps); short enough that no decision of a search depends on rounding
SIZES = {"fixed": (20, 500), "line_search": (10, 300), "constrained": (12, 30)}
#: η of the fixed-step and line-search rows; with the larger one MDPO's and TRPO's surrogates are not concave
ETA, LARGE_ETA = 0.005, 0.02


def _timed(function: Callable[[], np.ndarray], repetitions: int) -> tuple[float, np.ndarray]:
    """CPU seconds per call."""
    begun = time.process_time()
    for _ in range(repetitions):
        values = function()
    return (time.process_time() - begun) / repetitions, values


def compare(objective: str, method: str, eta: float = ETA) -> Row:
    """One configuration, both ways."""
    mdp = cliff_world()
    env = plain.Dense(mdp)
    iterations, m = SIZES[method]
    slow: Callable[[], np.ndarray]
    if method == "fixed":
        settings: dict[str, Any] = {"eta": eta, "alpha": 0.02}
        slow = lambda: plain.fixed(env, objective, iterations, m, settings["alpha"], settings["eta"])  # noqa: E731
    elif method == "line_search":
        settings = {"eta": eta, "armijo": 0.1}
        slow = lambda: plain.line_search(  # noqa: E731
            env, objective, iterations, m, settings["eta"], settings["armijo"]
        )
    else:
        settings = {"delta": 1e-3}
        slow = lambda: plain.constrained(env, objective, iterations, m, settings["delta"])  # noqa: E731
    run = lambda: solve(mdp, objective, method, iterations=iterations, inner_steps=m, **settings).values  # noqa: E731
    run()
    times: dict[str, list[float]] = {"numpy": [], "solve": []}
    with np.errstate(all="ignore"):
        for _ in range(5):
            seconds, expected = _timed(slow, 1)
            times["numpy"].append(seconds)
            seconds, values = _timed(run, 20)
            times["solve"].append(seconds)
    steps = iterations * m
    numpy_step, solve_step = min(times["numpy"]) / steps, min(times["solve"]) / steps
    return {
        "objective": objective,
        "method": method,
        "eta": settings.get("eta", np.nan),
        "iterations": iterations,
        "inner_steps": m,
        "numpy_us_per_step": numpy_step * 1e6,
        "solve_us_per_step": solve_step * 1e6,
        "ratio": numpy_step / solve_step,
        "largest_difference": float(np.max(np.abs(expected - values))),
    }


def cold_start(method: str) -> Row:
    """A user's first solve: new process, nothing compiled. CPU and wall-clock seconds."""
    hyper = {
        "closed_form": "eta=0.1",
        "fixed": "eta=0.1, alpha=0.1",
        "line_search": "eta=0.1",
        "constrained": "delta=0.1",
    }[method]
    code = (
        "import time; from sppo import exact; mdp = exact.cliff_world();"
        "cpu, wall = time.process_time(), time.perf_counter();"
        f"exact.solve(mdp, 'smdpo', '{method}', iterations=10, {hyper});"
        "print(time.process_time() - cpu, time.perf_counter() - wall)"
    )
    row: Row = {"method": method}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        for state in ("cold", "cached"):
            output = subprocess.run(
                [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
            ).stdout
            row[f"{state}_cpu_seconds"], row[f"{state}_wall_seconds"] = map(float, output.split())
    return row


def whole_grid() -> list[Row]:
    """3 objectives × 13 η × 17 α × m ∈ {1, 10, 100, 1000}, 2000 iterations, CliffWorld."""
    rows = []
    for objective in OBJECTIVES:
        wall, cpu = time.perf_counter(), time.process_time()
        result = sweep(
            cliff_world(),
            objective,
            "fixed",
            iterations=2000,
            inner_steps=[1, 10, 100, 1000],
            eta=[2.0**k for k in range(-13, 0)],
            alpha=[2.0**k for k in range(-13, 4)],
        )
        rows.append(
            {
                "objective": objective,
                "runs": result.final.size,
                "cores": len(os.sched_getaffinity(0)),
                "wall_seconds": time.perf_counter() - wall,
                "cpu_seconds": time.process_time() - cpu,
                "best_value": result.best_value,
            }
        )
    return rows


def _show(title: str, rows: list[Row], path: Path) -> None:
    print(f"\n{title}")
    for row in rows:
        print(
            "  " + "  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items())
        )
    write_table(stack(rows), path)


def main() -> int:
    """Run and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--grid", action="store_true", help="also the entire fixed-step grid")
    parser.add_argument("--cold", action="store_true", help="also the first solve, with and without cache")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/exact"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = [compare(objective, method) for method in SIZES for objective in OBJECTIVES]
    rows += [compare(objective, "line_search", LARGE_ETA) for objective in OBJECTIVES]
    _show("per inner step, single thread", rows, args.out / "speed.csv")
    if args.cold:
        methods = ("closed_form", "fixed", "line_search", "constrained")
        _show(
            "first solve of a process",
            [cold_start(method) for method in methods],
            args.out / "speed-cold.csv",
        )
    if args.grid:
        _show("the entire fixed-step grid", whole_grid(), args.out / "speed-grid.csv")
    if any(row["largest_difference"] > 1e-10 for row in rows):
        print("the two implementations disagree", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
