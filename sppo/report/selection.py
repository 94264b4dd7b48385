"""A part of a study, by the flags that also select what ``study run`` executes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sppo.report.load import Study
from sppo.study.definition import parse_seeds


@dataclass(frozen=True)
class Selection:
    """Which runs to report; ``None`` for all. What is left out is no part of the report at all."""

    environments: Sequence[str] | None = None
    algorithms: Sequence[str] | None = None
    seeds: str | None = None

    @property
    def flags(self) -> str:
        """As on the command line, for the report to say what it is of."""
        words = [f" --env {name}" for name in self.environments or ()]
        words += [f" --algorithm {name}" for name in self.algorithms or ()]
        words += [f" --seeds {self.seeds}"] if self.seeds is not None else []
        return "".join(words)

    def apply(self, study: Study) -> Study:
        """The selected runs, and those whose configuration cannot be read, which may be among them.

        :raises ValueError: if the study has no such environment, algorithm or seed
        """
        seeds = None if self.seeds is None else set(parse_seeds(self.seeds))
        runs = [run for run in study.runs if run.config]
        _check("--env", self.environments, {run.env for run in runs})
        _check("--algorithm", self.algorithms, {run.algorithm for run in runs})
        kept = tuple(
            run
            for run in study.runs
            if not run.config
            or (
                (not self.environments or run.env in self.environments)
                and (not self.algorithms or run.algorithm in self.algorithms)
                and (seeds is None or run.seed in seeds)
            )
        )
        if not any(run.config for run in kept):
            raise ValueError(f"no run of the study is left by{self.flags}")
        return replace(study, runs=kept)


def _check(flag: str, wanted: Sequence[str] | None, present: Collection[str]) -> None:
    for name in wanted or ():
        if name not in present:
            raise ValueError(f"{flag} {name}: the study has {', '.join(sorted(present))}")
