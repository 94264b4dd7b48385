"""How fast the bandits run: the paper's full grid, and one run against the obvious NumPy loop.

    python benchmarks/bandit_speed.py            # writes benchmarks/results/exact/bandit-speed.csv
    python benchmarks/bandit_speed.py --quick    # a smaller grid, nothing written

The comparison alternates the two programs on the same random numbers and requires the same regret from both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from sppo.bandits import ALGORITHMS, agent_stream, bernoulli_means, simulate
from sppo.figures.bandit import GAPS, HORIZONS, STEP_SIZES
from sppo.figures.figure import stack, write_table

RESULTS = Path(__file__).parent / "results" / "exact"
FIRST_CALL = """
import time
from sppo.bandits import simulate
start = time.perf_counter()
simulate("sexp3", arms=2, gap=0.5, horizon=10, eta=0.1, seeds=1)
print(time.perf_counter() - start)
"""


def obvious_loop(algorithm: str, means: npt.NDArray[Any], eta: float, horizon: int, seed: int) -> float:
    """Final regret of one run, every arm's log-weight and probability recomputed in every round."""
    uniforms = agent_stream(seed)
    log_weights = np.zeros(len(means))
    regret = 0.0
    for _ in range(horizon):
        weights = np.exp(log_weights - log_weights.max())
        policy = weights / weights.sum()
        arm = np.searchsorted(np.cumsum(policy), uniforms.random(), side="right")
        reward = float(uniforms.random() < means[arm])
        regret += means.max() - means[arm]
        estimate = np.zeros(len(means))
        if algorithm == "exp3-lbiw":
            estimate[arm] = (1 - reward) / policy[arm]
            log_weights += eta * (1 - estimate)
        else:
            estimate[arm] = reward / policy[arm]
            log_weights += np.log1p(eta * estimate) if algorithm == "sexp3" else eta * estimate
    return regret


def compare(algorithm: str, arms: int, horizon: int, repeats: int = 3) -> dict[str, Any]:
    """Nanoseconds per round of both programs on one thread, the fastest of alternating repeats."""
    seed, gap, eta = 0, 0.5, 0.005
    # One compiled run is too short to time: many seeds, of which the first is compared.
    seeds = 50
    means = bernoulli_means(seed, arms, gap)
    loop_times, compiled_times = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        expected = obvious_loop(algorithm, means, eta, horizon, seed)
        loop_times.append((time.perf_counter() - start) / horizon)
        start = time.perf_counter()
        result = simulate(algorithm, arms=arms, gap=gap, horizon=horizon, eta=eta, seeds=seeds, threads=1)
        compiled_times.append((time.perf_counter() - start) / (horizon * seeds))
        np.testing.assert_allclose(result.final[0, 0], expected, rtol=1e-9)
    loop, compiled = 1e9 * min(loop_times), 1e9 * min(compiled_times)
    row = {"algorithm": algorithm, "arms": arms, "what": "one run", "loop_ns_per_round": loop}
    return {**row, "ns_per_round": compiled, "speed_up": loop / compiled, "seconds": np.nan}


def full_grid(seeds: int, shorten: int) -> list[dict[str, Any]]:
    """Seconds for every algorithm, step size and problem of the paper, with all threads."""
    rows = []
    for algorithm in ALGORITHMS:
        for arms, full_horizon in HORIZONS.items():
            horizon = full_horizon // shorten
            start = time.perf_counter()
            for gap in GAPS.values():
                simulate(algorithm, arms=arms, gap=gap, horizon=horizon, eta=STEP_SIZES, seeds=seeds)
            seconds = time.perf_counter() - start
            rounds = len(GAPS) * len(STEP_SIZES) * seeds * horizon
            row = {"algorithm": algorithm, "arms": arms, "what": "full grid", "loop_ns_per_round": np.nan}
            rows.append(
                {**row, "ns_per_round": 1e9 * seconds / rounds, "speed_up": np.nan, "seconds": seconds}
            )
    return rows


def first_call_seconds() -> tuple[float, float]:
    """The first ``simulate`` of a new process: with an empty compilation cache, then with a filled one."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        command = [sys.executable, "-c", FIRST_CALL]
        runs = [subprocess.run(command, env=environment, capture_output=True, check=True) for _ in range(2)]
    cold, warm = (float(run.stdout) for run in runs)
    return cold, warm


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a hundredth of the grid; writes nothing")
    quick = parser.parse_args().quick
    cold, warm = first_call_seconds()
    print(f"first call: {cold:.2f} s to compile, {warm:.2f} s from the disk cache")
    simulate("sexp3", arms=2, gap=0.5, horizon=10, eta=0.1, seeds=1)
    rows = [compare(algorithm, arms, 10_000) for algorithm in ALGORITHMS for arms in HORIZONS]
    for row in rows:
        print(
            f"{row['algorithm']:>10}, {row['arms']:>3} arms, one thread: {row['ns_per_round']:6.1f} ns "
            f"per round, {row['loop_ns_per_round']:8.0f} in NumPy: {row['speed_up']:.0f} times faster"
        )
    grid = full_grid(5, 10) if quick else full_grid(50, 1)
    for row in grid:
        print(
            f"{row['algorithm']:>10}, {row['arms']:>3} arms, {numba.get_num_threads()} threads: "
            f"{row['seconds']:6.2f} s ({row['ns_per_round']:.1f} ns per round)"
        )
    print(f"whole grid: {sum(row['seconds'] for row in grid):.1f} s")
    if not quick:
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_table(stack(rows + grid), RESULTS / "bandit-speed.csv")


if __name__ == "__main__":
    main()
