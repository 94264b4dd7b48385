"""What watching for numbers that are not finite costs: training with the checks against training without.

    python benchmarks/finite_cost.py [--rounds 80] [--output benchmarks/results/finite_cost.json]

The two take turns in one process, because timings of one run on a shared machine are not comparable with
those of another, and the fastest of many short turns is what the machine's other work disturbs least.
"Without" is the same algorithm with the
test of the loss and gradient, and the watch over the environments, taken out.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sppo import SPPO
from sppo.algorithms.statistics import UpdateStatistics
from sppo.surrogates import Surrogate

#: per rollout and update
SAMPLES = 512


class Unguarded(SPPO):
    """The reference loop as it would be without any check."""

    def _train_epoch(
        self, epoch: int, surrogate: Surrogate, clip_range_vf: float | None, statistics: UpdateStatistics
    ) -> bool:
        statistics.start_epoch()
        for data in self.rollout_buffer.get(self.batch_size):
            loss, _ = self._loss(data, surrogate, clip_range_vf, statistics)
            self.policy.optimizer.zero_grad()
            loss.backward()
            th.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        return True

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
        return PPO.collect_rollouts(self, *args, **kwargs)


def make(cls: type[SPPO], normalize: bool, options: dict[str, Any]) -> SPPO:
    """A model that has already trained once, so that nothing is set up while the clock runs."""
    env: Any = make_vec_env("CartPole-v1", n_envs=4, seed=0)
    env = VecNormalize(env) if normalize else env
    model = cls(
        "MlpPolicy", env, n_steps=SAMPLES // 4, batch_size=64, n_epochs=4, seed=0, device="cpu", **options
    )
    return model.learn(SAMPLES)


def seconds(model: SPPO) -> float:
    """The processor time of one rollout and update: one thread, and deaf to the machine's other work."""
    start = time.process_time()
    model.learn(SAMPLES, reset_num_timesteps=False)
    return time.process_time() - start


def compare(normalize: bool, rounds: int, options: dict[str, Any]) -> dict[str, float]:
    """Fastest rollout and update of each, in milliseconds, and their ratio."""
    models = {"with": make(SPPO, normalize, options), "without": make(Unguarded, normalize, options)}
    fastest = dict.fromkeys(models, math.inf)
    for number in range(rounds):
        for name in sorted(models, reverse=bool(number % 2)):
            fastest[name] = min(fastest[name], 1000 * seconds(models[name]))
    return {**fastest, "ratio": fastest["with"] / fastest["without"]}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=80, help="turns of each, per setting")
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    args = parser.parse_args(argv)
    th.set_num_threads(1)
    reference = {"engine": "reference"} if "engine" in SPPO.__init__.__annotations__ else {}
    results = {
        name: compare(normalize, args.rounds, reference)
        for name, normalize in (("CartPole-v1, 4 environments", False), ("the same with VecNormalize", True))
    }
    for name, result in results.items():
        print(
            f"{name:<32} {result['with']:.1f} ms with, {result['without']:.1f} ms without: "
            f"{100 * (result['ratio'] - 1):+.2f} %"
        )
    if args.output is not None:
        versions = {"torch": th.__version__, "python": platform.python_version(), "rounds": args.rounds}
        args.output.write_text(json.dumps({"results": results, **versions}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
