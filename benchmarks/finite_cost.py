"""What looking for numbers that are not finite costs, as a share of training.

    python benchmarks/finite_cost.py [--rounds 60] [--output benchmarks/results/finite_cost.json]

The checks are timed by themselves, many times, and set against the fastest of some iterations: the
environments' answers are looked at in every step, the loss and the gradient's norm in every minibatch of the
reference loop (the fast engine's test is part of its compiled update). The share depends on the number of
epochs, since a step is paid for once; it is measured at Stable-Baselines3's default of 10.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch as th

from sppo import SPPO, make_vec_env
from sppo.algorithms.choices import EngineMode
from sppo.algorithms.finite import finite_inputs

#: minibatches and passes as in the defaults of Stable-Baselines3
N_ENVS, N_STEPS, BATCH_SIZE, N_EPOCHS = 4, 128, 64, 10


def make(engine: EngineMode) -> SPPO:
    """A model that has already trained once, so that nothing is set up while the clock runs."""
    env: Any = make_vec_env("CartPole-v1", n_envs=N_ENVS, seed=0)
    sizes: dict[str, Any] = {"n_steps": N_STEPS, "batch_size": BATCH_SIZE, "n_epochs": N_EPOCHS}
    return SPPO("MlpPolicy", env, engine=engine, seed=0, device="cpu", **sizes).learn(N_STEPS * N_ENVS)


def fastest(action: Callable[[], Any], rounds: int, repeats: int = 1) -> float:
    """Seconds of the fastest of ``rounds`` turns, per action."""
    best = math.inf
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            action()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def checks(model: SPPO) -> tuple[float, float]:
    """Seconds of the check per step of all environments, and of the test per minibatch."""
    env = model.get_env()
    assert env is not None
    answer = env.step(np.array([model.action_space.sample() for _ in range(N_ENVS)]))
    env.step_wait = lambda: answer  # type: ignore[method-assign]
    without = fastest(lambda: env.step_wait(), 200, 200)
    with finite_inputs(model):
        per_step = fastest(lambda: env.step_wait(), 200, 200) - without
    loss, norm = th.ones(()), th.ones(())
    per_minibatch = fastest(lambda: math.isfinite((loss.detach() + norm).item()), 200, 200)
    return per_step, per_minibatch


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=60, help="iterations of each engine")
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    args = parser.parse_args(argv)
    th.set_num_threads(1)
    models = {"reference": make("reference"), "fast": make("fast")}
    times = {
        name: fastest(lambda: model.learn(N_STEPS * N_ENVS, reset_num_timesteps=False), args.rounds)  # noqa: B023
        for name, model in models.items()
    }
    per_step, per_minibatch = checks(models["reference"])
    minibatches = N_EPOCHS * N_STEPS * N_ENVS // BATCH_SIZE
    share = {
        "reference": (N_STEPS * per_step + minibatches * per_minibatch) / times["reference"],
        "fast (steps only)": N_STEPS * per_step / times["fast"],
    }
    print(f"{1e6 * per_step:.2f} us per step, {1e6 * per_minibatch:.2f} us per minibatch")
    for name, part in share.items():
        print(f"{name:<18} {100 * part:.2f} % of {1000 * times[name.split()[0]]:.1f} ms")
    if args.output is not None:
        result = {
            "seconds": {**times, "check per step": per_step, "test per minibatch": per_minibatch},
            "share": share,
            "setting": f"CartPole-v1, {N_ENVS} environments, {N_STEPS} steps, {minibatches} minibatches",
            "versions": {"torch": th.__version__, "python": platform.python_version()},
        }
        args.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
