"""A part of a study: the flags that name one, for every command that takes them."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from sppo.records.config import RunConfig
from sppo.records.runs import Run

R = TypeVar("R", RunConfig, Run)


@dataclass(frozen=True)
class Subset:
    """Which runs are meant; what is not said is not restricted.

    :param seeds: as on the command line, ``"0:5"``
    :param where: conditions on parameters, ``"n_epochs=10"``
    """

    environments: Sequence[str] | None = None
    algorithms: Sequence[str] | None = None
    seeds: str | None = None
    where: Sequence[str] | None = None

    @property
    def flags(self) -> str:
        """As on the command line, for a report to say what it is of."""
        words = [f" --env {name}" for name in self.environments or ()]
        words += [f" --algorithm {name}" for name in self.algorithms or ()]
        words += [f" --where {condition}" for condition in self.where or ()]
        words += [f" --seeds {self.seeds}"] if self.seeds is not None else []
        return "".join(words)

    def choose(self, runs: Sequence[R]) -> list[R]:
        """The runs that are meant, in their order.

        :raises ValueError: if a flag names something that none of the runs has; the choices are listed
        """
        chosen = list(runs)
        for flag, name, wanted in (
            ("--env", "env", self.environments),
            ("--algorithm", "algorithm", self.algorithms),
        ):
            present = {getattr(run, name) for run in runs}
            for word in wanted or ():
                if word not in present:
                    raise ValueError(f"{flag} {word}: the study has {', '.join(sorted(present))}")
            chosen = [run for run in chosen if not wanted or getattr(run, name) in wanted]
        for condition in self.where or ():
            _check_condition(condition, runs)
            chosen = [run for run in chosen if _satisfies(run, condition)]
        if self.seeds is not None:
            try:
                seeds, given = set(parse_seeds(self.seeds)), {run.seed for run in runs}
            except ValueError as error:
                raise ValueError(f"--seeds: {error}") from error
            if not seeds & given:
                raise ValueError(f"--seeds {self.seeds}: the study has {format_seeds(given)}")
            chosen = [run for run in chosen if run.seed in seeds]
        if not chosen:
            raise ValueError(f"no run of the study is left by{self.flags}")
        return chosen


def add_subset(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """``--env``, ``--algorithm`` and ``--seeds``; returns the group for more of their kind."""
    group = parser.add_argument_group("subset")
    group.add_argument("--env", action="append", metavar="ID", help="only this environment; may be repeated")
    group.add_argument("--algorithm", action="append", metavar="LABEL", help="only this algorithm; ditto")
    group.add_argument("--seeds", metavar="0:5", help="only these seeds: 0:5 (0 to 4), 3, or 0,2,7")
    return group


def parse_seeds(text: str) -> list[int]:
    """``"0:5"`` (0 to 4), ``"3"`` or ``"0,2,7"`` as a list of seeds."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?::(\d+))?\s*", part)
        found = range(int(match[1]), int(match[2] or int(match[1]) + 1)) if match else ()
        if not found:
            raise ValueError(f'{text!r} is not a list of seeds: write "0:5" (0 to 4) or "0,2,7"')
        seeds += found
    return seeds


def format_seeds(seeds: set[int]) -> str:
    """The inverse of :func:`parse_seeds`: ``0:5`` for 0 to 4, else ``0,2,7``."""
    ordered = sorted(seeds)
    if len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}:{ordered[-1] + 1}"
    return ",".join(map(str, ordered))


def _satisfies(run: RunConfig | Run, condition: str) -> bool:
    """Whether a run has the value of ``NAME=VALUE``."""
    name, _, text = condition.partition("=")
    value = run.parameters.get(name)
    try:
        return value == json.loads(text)
    except ValueError:
        return str(value).lower() == text.lower()


def _check_condition(condition: str, runs: Sequence[RunConfig] | Sequence[Run]) -> None:
    name, separator, _ = condition.partition("=")
    if not separator:
        raise ValueError(f"--where {condition}: write NAME=VALUE, e.g. n_epochs=10")
    if not any(_satisfies(run, condition) for run in runs):
        values = {json.dumps(run.parameters[name]): None for run in runs if name in run.parameters}
        if not values:
            names = sorted({key for run in runs for key in run.parameters})
            raise ValueError(f"--where {condition}: the runs have no {name}, but {', '.join(names)}")
        raise ValueError(f"--where {condition}: {name} of the study is {', '.join(values)}")
