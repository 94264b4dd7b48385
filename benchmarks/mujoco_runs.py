"""The published MuJoCo runs in the units that claims are made of: paired differences per setting,
and their intervals.

A run's result is the mean return of its last evaluation. There are few seeds and many settings, so a
setting (one m, one epsilon) is the unit: a difference is taken per environment and setting, between the
means over the seeds that both sides have. Where environments are pooled, returns are scaled by the
distance between the lowest and the highest result of any run of the environment in the study with decay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sppo.records.studies import read_records
from sppo.report.cells import Cell, build_cells, order_environments
from sppo.report.statistics import Estimate, mean_interval
from sppo.report.tables import interval, number

BASELINE = "ppo"
VARIANTS = ("sppo", "sppo-one-sided")

#: a header and rows
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
#: m and epsilon
Setting = tuple[Any, Any]
Key = tuple[str, str, Any, Any, Any]
#: lowest and highest result by environment
Bounds = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Runs:
    """The completed runs of one study by environment, algorithm, m, epsilon and eta.

    ``whole`` takes the mean over all evaluations for a run's result, instead of the last one.
    """

    cells: dict[Key, Cell]
    whole: bool = False

    @staticmethod
    def load(name: str, root: Path) -> Runs:
        """Nothing, if the study is not published."""
        if not (root / name / "runs.csv").is_file():
            return Runs({})
        cells = build_cells(read_records(root / name))
        return Runs({key_of(cell): cell for cell in cells if cell.n})

    @property
    def environments(self) -> list[str]:
        return order_environments(key[0] for key in self.cells)

    def settings(self, env: str, *labels: str) -> list[Setting]:
        """Every (m, epsilon) of which all these algorithms have a run."""
        found = [{key[2:4] for key in self.cells if key[:2] == (env, label)} for label in labels]
        return sorted(set.intersection(*found))

    def results(self, env: str, label: str, setting: Setting) -> dict[int, float]:
        """Seed -> result."""
        cell = self.cells[(env, label, *setting, None)]
        return {
            run.seed: float(np.mean(run.returns)) if self.whole else run.final_return
            for run in cell.completed
        }

    def difference(self, env: str, label: str, setting: Setting, against: str = BASELINE) -> float:
        """Mean over the seeds that both have (over all seeds if they share none)."""
        mine, theirs = shared(self.results(env, label, setting), self.results(env, against, setting))
        return float(np.mean(mine) - np.mean(theirs))

    def mean(self, env: str, label: str, setting: Setting) -> float:
        return float(np.mean(list(self.results(env, label, setting).values())))


def key_of(cell: Cell) -> Key:
    setting = cell.setting
    return (cell.env, cell.label, setting.n_epochs, setting.clip_range, setting.eta)


def shared(one: dict[int, float], other: dict[int, float]) -> tuple[list[float], list[float]]:
    """The results of the seeds that both have; all results if they share none."""
    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        return list(one.values()), list(other.values())
    return [one[seed] for seed in seeds], [other[seed] for seed in seeds]


def leads_over_ppo(runs: Runs, bounds: Bounds, label: str) -> dict[str, dict[Setting, float]]:
    """The scaled lead at every setting of every environment that has one."""
    leads = {
        env: {
            setting: runs.difference(env, label, setting) / (bounds[env][1] - bounds[env][0])
            for setting in runs.settings(env, BASELINE, label)
        }
        for env in runs.environments
    }
    return {env: gaps for env, gaps in leads.items() if gaps}


def growth_in_units(runs: Runs, bounds: Bounds, label: str) -> tuple[list[float], list[float]]:
    """Per environment and epsilon, the lead at the largest m minus that at the smallest; per environment
    and m, the slope of the lead in epsilon."""
    steps, slopes = [], []
    for leads in leads_over_ppo(runs, bounds, label).values():
        passes, clips = sorted({m for m, _ in leads}), sorted({clip for _, clip in leads})
        steps += [
            leads[passes[-1], clip] - leads[passes[0], clip]
            for clip in clips
            if len(passes) > 1 and {(passes[0], clip), (passes[-1], clip)} <= leads.keys()
        ]
        for m in passes:
            points = [(clip, leads[m, clip]) for clip in clips if (m, clip) in leads]
            if len(points) > 2:
                slopes.append(float(np.polyfit([x for x, _ in points], [y for _, y in points], 1)[0]))
    return steps, slopes


def changes_without_decay(runs: Runs, plain: Runs, env: str, label: str) -> list[tuple[float, float]]:
    """Per setting, the result with and without learning-rate decay and gradient clipping."""
    settings = [s for s in plain.settings(env, label) if s in runs.settings(env, label)]
    pairs = [shared(runs.results(env, label, s), plain.results(env, label, s)) for s in settings]
    return [(float(np.mean(before)), float(np.mean(after))) for before, after in pairs]


def kept(changes: Sequence[tuple[float, float]]) -> float:
    """The share of the mean result that is left; not a number where there was nothing to keep."""
    before, after = np.mean(changes, axis=0)
    return float(after / before) if before > 0 else float("nan")


def over(values: Iterable[float]) -> Estimate:
    """Mean and Student-t interval over units."""
    listed = list(values)
    if not listed:
        return Estimate(float("nan"))
    return Estimate(*(float(bound) for bound in mean_interval(listed)))


def shown(estimate: Estimate, digits: int | None = None) -> str:
    return f"{number(estimate.value, digits)} {interval(estimate, digits)}".rstrip()


def better_in(gaps: Sequence[float]) -> str:
    return f"{sum(gap > 0 for gap in gaps)} of {len(gaps)}"


def short_name(env: str) -> str:
    return env.partition("-")[0]


def share_text(share: float) -> str:
    return "–" if np.isnan(share) else f"{share:.0%}" if share > 0 else "nothing"
