"""What hidden units that no observation reaches any more cost an update: their averages become denormal.

    python benchmarks/dead_units.py [--rounds 3] [--output benchmarks/results/dead_units.json]

RL Zoo's network and batches for Hopper (256 x 256 ReLU, minibatches of 32, five passes over 512 steps). Three
quarters of the units are switched off, and the same update is timed: at once, and again when Adam's averages
have had the time to shrink below float32's normal numbers. The programs take turns; medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import gymnasium as gym
import torch as th
from stable_baselines3 import PPO
from torch import nn

from sppo import SPPO
from sppo.engine.fast import FastEngine
from sppo.records.conditions import processor_name

#: share of each network's hidden units that is switched off
DEAD = 0.75
#: minibatches after which Adam's average of a gradient that was 0.01 has shrunk to 1e-43
SHRUNK = 900
SETTINGS: dict[str, Any] = {
    "n_steps": 512,
    "batch_size": 32,
    "n_epochs": 5,
    "learning_rate": 1e-5,
    "seed": 0,
    "device": "cpu",
}


def plain_engine() -> AbstractContextManager[object]:
    """The engine's update as it would be with denormals."""
    return mock.patch.object(FastEngine, "update", FastEngine.update.__wrapped__)  # type: ignore[attr-defined]


PROGRAMS: dict[str, tuple[type[PPO], dict[str, Any], Callable[[], AbstractContextManager[object]]]] = {
    "Stable-Baselines3": (PPO, {}, nullcontext),
    "sppo, denormals kept": (SPPO, {"engine": "fast"}, plain_engine),
    "sppo": (SPPO, {"engine": "fast"}, nullcontext),
}


def updates(name: str) -> tuple[float, float]:
    """Milliseconds of an update: just after the units have been switched off, and long after."""
    cls, further, context = PROGRAMS[name]
    shape = {"net_arch": [256, 256], "activation_fn": nn.ReLU}
    env = gym.make("Hopper-v5")
    with context():
        model = cls("MlpPolicy", env, policy_kwargs=shape, **SETTINGS, **further).learn(2 * 512)
        hidden = [layer for layer in model.policy.mlp_extractor.modules() if isinstance(layer, nn.Linear)]
        for layer in hidden:
            with th.no_grad():
                layer.bias[: int(DEAD * len(layer.bias))] = -1e3
        taken = model.policy.optimizer.state[hidden[0].bias]["step"].item()
        first = median(timed(model) for _ in range(3))
        while model.policy.optimizer.state[hidden[0].bias]["step"] < taken + SHRUNK:
            model.train()
        last = median(timed(model) for _ in range(5))
    env.close()
    return first, last


def timed(model: PPO) -> float:
    start = time.perf_counter()
    model.train()
    return 1000 * (time.perf_counter() - start)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program")
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    args = parser.parse_args(argv)
    th.set_num_threads(1)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    for _ in range(args.rounds):
        for name, times in found.items():
            times.append(updates(name))
    medians = {name: [median(column) for column in zip(*times, strict=True)] for name, times in found.items()}
    print(f"{'ms per update':<22} {'at once':>10} {'denormal':>10}")
    for name, (first, last) in medians.items():
        print(f"{name:<22} {first:>10.1f} {last:>10.1f}")
    if args.output is not None:
        result = {
            "milliseconds per update, at once and long after": medians,
            "processor": processor_name(),
            "versions": {"torch": th.__version__, "python": platform.python_version()},
        }
        args.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
