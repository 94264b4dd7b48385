"""A search whose runs are made up: records with returns that follow from the configuration."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sppo.checkpoint.files import write_atomically
from sppo.records.config import RunConfig
from sppo.records.run_files import RunWriter
from sppo.study import tune_command
from sppo.study.execution import Outcome
from sppo.study.tune_command import main, open_journal
from sppo.study.tuning import read_tuning

ENVIRONMENTS = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"]

FILE = """\
name = "search"
environments = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"]
seeds = [100, 101]
total_timesteps = 2048
n_envs = 2
evaluations = 4
eval_episodes = 2

[parameters]
n_steps = 64
batch_size = 32
policy_kwargs = { activation_fn = "relu" }

[algorithms.sppo]
ent_coef = 0.01

[tune]
trials = 14
report_seeds = "0:10"
last = 2

[tune.reference]
"CartPole-v1" = 500
"Acrobot-v1" = 100
"Pendulum-v1" = 200

[tune.space]
n_envs = [2, 4]
clip_range = { low = 0.1, high = 0.8 }
learning_rate = { low = 1e-4, high = 1e-2, log = true, linear = [true, false] }
kl_budget = ["none", 0.03]
n_epochs = { low = 1, high = 20 }

[tune.space.policy_kwargs]
net_arch = [[64, 64], [8]]
log_std_init = { low = -2, high = 0 }

[tune.first.own]

[tune.first.wide]
clip_range = 0.7
kl_budget = 0.03
learning_rate = 1e-3
policy_kwargs = { net_arch = [8], log_std_init = -1 }
"""


@dataclass
class MadeUpRuns:
    """Stands in for the runner: writes the records of runs, and counts them.

    :param fails: environments in which every run fails
    :param stop_at: asks to stop when so many runs are done
    :param die_at: raises then
    """

    fails: Sequence[str] = ()
    stop_at: int | None = None
    die_at: int | None = None
    done: list[RunConfig] = field(default_factory=list)

    def __call__(self, todo: Sequence[RunConfig], settled: object, pool: Path, stopper: Any) -> list[Outcome]:
        for run in todo:
            if len(self.done) == self.die_at:
                raise MemoryError
            if len(self.done) == self.stop_at:
                stopper.requests = 1
                return []
            self.done.append(run)
            write_run(run, pool, failed=run.env in self.fails)
        return [Outcome("completed")] * len(todo)


def write_run(run: RunConfig, directory: Path, failed: bool) -> None:
    path = directory / run.directory_name
    path.mkdir()
    writer = RunWriter(path, write_atomically, lambda: None)
    writer.config(run, {}, None)
    if failed:
        writer.failure("ValueError: it diverged", "", 10)
        return
    noise = np.random.default_rng([run.seed, int(run.parameters["clip_range"] * 1e6)])
    for number in range(1, run.evaluations + 1):
        mean = 100 * number * (1 - abs(run.parameters["clip_range"] - 0.5)) - 30 * run.parameters["n_epochs"]
        episodes = [(float(mean + noise.normal()), 10) for _ in range(run.eval_episodes)]
        writer.evaluation(number, run.batch * number, episodes)
    writer.result(run, run.total_timesteps, 1.0)


def searching(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, MadeUpRuns]]:
    """The command on the file above, with made-up runs."""
    monkeypatch.setattr(tune_command, "LocalPool", lambda directory, *_: directory)

    def run(*flags: str, text: str = FILE, out: str = "out", **how: Any) -> tuple[int, MadeUpRuns]:
        file, runs = directory / "search.toml", MadeUpRuns(**how)
        file.write_text(text)
        monkeypatch.setattr(tune_command, "run_all", runs)
        return main([str(file), "--out", str(directory / out), *flags]), runs

    return run


def trials(directory: Path, environments: Sequence[str] | None = None) -> list[tuple[Any, ...]]:
    """Everything in a journal but its clocks."""
    study = open_journal(read_tuning(directory / "study.toml", environments), directory, begin=False)
    return [
        (
            trial.number,
            trial.state.name,
            trial.params,
            trial.value,
            trial.intermediate_values,
            trial.user_attrs,
        )
        for trial in study.trials
    ]


def return_in_the_table(directory: Path, last: int) -> float:
    """Mean return of the last evaluations of a run, from its table alone."""
    with open(directory / "evaluations.csv") as file:
        rows = list(csv.DictReader(file))
    first = max(int(row["evaluation"]) for row in rows) - last
    means = [
        np.mean([float(row["return"]) for row in rows if int(row["evaluation"]) == number + 1])
        for number in range(first, first + last)
    ]
    return float(np.mean(means))
