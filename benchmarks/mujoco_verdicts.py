"""The published MuJoCo runs, in the units that claims are decided by, and the verdicts.

A run's result is the mean return of its last evaluation. There are few seeds and many settings, so a setting
(one m, one epsilon) is the unit: a difference is taken per environment and setting, between the means over
the seeds that both sides have, and the interval is Student's t over settings. It covers the spread between
settings as well as that between seeds, and is wide where the algorithms differ in some settings only. Where
environments are pooled, returns are scaled by the distance between the lowest and the highest result of any
run of the environment in the study with decay. Ant learns nothing in the 250,000 steps that it has there, so
it counts with its million steps alone, at m = 10, once every setting of these has a run.

A claim holds, or is refuted, where its interval lies on one side of zero: the interval of the lead over PPO
for (a), of the lead's growth for (b), and for (c) of what is left beyond a tenth (PPO) and beyond three
quarters (sPPO).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np

from benchmarks.pages import Table
from sppo.records.studies import read_records
from sppo.report.cells import Cell, build_cells, looks_of, order_environments
from sppo.report.labels import Look, title_of
from sppo.report.statistics import mean_estimate
from sppo.report.summary import Bounds
from sppo.report.tables import shown

BASELINE = "ppo"
#: the labels of the study, and what claims call them
VARIANTS = {"sppo": "two-sided sPPO", "sppo-one-sided": "one-sided sPPO"}
#: claim (c) in numbers: to fail is to keep less than the first, to degrade mildly more than the second
FAILS, MILD = 0.1, 0.75

#: m and epsilon
Setting = tuple[float, float]
#: environment, label, m, epsilon, eta
Key = tuple[str, str, float, float, float | None]


@dataclass(frozen=True)
class Runs:
    """The completed runs of one study.

    ``whole`` takes the mean over all evaluations for a run's result, instead of the last one.
    """

    cells: dict[Key, Cell]
    whole: bool = False

    @staticmethod
    def load(name: str, root: Path) -> Runs:
        """Nothing, if the study is not published."""
        if not (root / name / "runs.csv").is_file():
            return Runs({})
        cells = [cell for cell in build_cells(read_records(root / name).runs) if cell.n]
        return Runs({cast(Key, (cell.env, cell.label, *cell.setting)): cell for cell in cells})

    def with_longer(self, longer: Runs) -> Runs:
        """With the longer runs in place of an environment's, once they cover its settings at their m."""
        cells = dict(self.cells)
        for env in longer.environments:
            theirs = {key: cell for key, cell in longer.cells.items() if key[0] == env}
            mine = {key for key in self.cells if key[0] == env}
            passes = {key[2] for key in theirs}
            if {key for key in mine if key[2] in passes} <= theirs.keys():
                cells = {key: cell for key, cell in cells.items() if key not in mine} | theirs
        return replace(self, cells=cells)

    @property
    def environments(self) -> list[str]:
        return order_environments(key[0] for key in self.cells)

    @cached_property
    def looks(self) -> dict[str, Look]:
        return looks_of(self.cells.values())

    def title(self, label: str) -> str:
        return self.looks[label].title if label in self.looks else title_of(label, {})

    def of(self, env: str, label: str) -> list[Cell]:
        return [cell for key, cell in self.cells.items() if key[:2] == (env, label)]

    def settings(self, env: str, *labels: str) -> list[Setting]:
        """Every (m, epsilon) of which all these algorithms have a run."""
        found = [{key[2:4] for key in self.cells if key[:2] == (env, label)} for label in labels]
        return sorted(set.intersection(*found))

    def results(self, env: str, label: str, setting: Setting) -> dict[int, float]:
        """Seed -> result."""
        runs = self.cells[(env, label, *setting, None)].completed
        return {run.seed: float(np.mean(run.returns)) if self.whole else run.final_return for run in runs}

    def difference(self, env: str, label: str, setting: Setting) -> float:
        """From PPO: mean over the seeds that both have (over all seeds if they share none)."""
        mine, theirs = paired(self.results(env, label, setting), self.results(env, BASELINE, setting))
        return mine - theirs


def paired(one: dict[int, float], other: dict[int, float]) -> tuple[float, float]:
    """Means over the seeds that both have; over all seeds if they share none."""
    seeds = sorted(one.keys() & other.keys())
    sides = [[side[seed] for seed in seeds or side] for side in (one, other)]
    return float(np.mean(sides[0])), float(np.mean(sides[1]))


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
        passes, clips = (sorted(set(axis)) for axis in zip(*leads, strict=True))
        for clip in clips:
            ends = [leads.get((passes[end], clip)) for end in (-1, 0)]
            if len(passes) > 1 and ends[0] is not None and ends[1] is not None:
                steps.append(ends[0] - ends[1])
        for m in passes:
            points = [(clip, leads[m, clip]) for clip in clips if (m, clip) in leads]
            if len(points) > 2:
                slopes.append(float(np.polyfit([x for x, _ in points], [y for _, y in points], 1)[0]))
    return steps, slopes


def changes_without_decay(runs: Runs, plain: Runs, env: str, label: str) -> list[tuple[float, float]]:
    """Per setting, the result with and without learning-rate decay and gradient clipping."""
    settings = [s for s in plain.settings(env, label) if s in runs.settings(env, label)]
    return [paired(runs.results(env, label, s), plain.results(env, label, s)) for s in settings]


def kept(changes: Sequence[tuple[float, float]]) -> str:
    """The share of the mean result that is left; a dash where there was nothing to keep."""
    before, after = np.mean(changes, axis=0)
    return "–" if before <= 0 else f"{after / before:.0%}" if after > 0 else "nothing"


def over(values: Iterable[float], digits: int | None = None) -> str:
    """Mean and Student-t interval over units."""
    return shown(mean_estimate(list(values)), digits)


def better_in(gaps: Sequence[float]) -> str:
    return f"{sum(gap > 0 for gap in gaps)} of {len(gaps)}"


def flat(leads: dict[str, dict[Setting, float]]) -> list[float]:
    return [lead for gaps in leads.values() for lead in gaps.values()]


def short_name(env: str) -> str:
    return env.partition("-")[0]


def verdicts(runs: Runs, plain: Runs, bounds: Bounds) -> Table:
    """Every claim of which there are runs."""
    header = ("claim", "verdict", "evidence: scaled, mean and 95 % interval")
    return header, [
        *_as_good_as_ppo(runs, bounds),
        *_growing_lead(runs, bounds),
        *_left_without_decay(runs, plain, bounds),
        *_ahead_without_decay(plain, bounds),
    ]


def _as_good_as_ppo(runs: Runs, bounds: Bounds) -> Iterator[tuple[str, str, str]]:
    for label, name in VARIANTS.items():
        leads = leads_over_ppo(runs, bounds, label)
        pooled = flat(leads)
        if pooled:
            ahead = [short_name(env) for env, gaps in leads.items() if np.mean(list(gaps.values())) > 0]
            where = f"ahead on average in {len(ahead)} of {len(leads)} environments"
            where += f" ({', '.join(ahead)})" if ahead else ""
            evidence = f"{over(pooled, 3)} over {len(pooled)} pairs; {where}"
            yield f"(a) on average {name} is at least as good as PPO", _decided(pooled), evidence


def _growing_lead(runs: Runs, bounds: Bounds) -> Iterator[tuple[str, str, str]]:
    growth = {label: growth_in_units(runs, bounds, label) for label in VARIANTS}
    axes = (
        ("the number of passes m", "at m = 100 minus at m = 10", "pairs"),
        ("the clip ε", "per unit of ε", "lines"),
    )
    for axis, (what, kind, unit) in enumerate(axes):
        for label, name in VARIANTS.items():
            found = growth[label][axis]
            if found:
                evidence = f"{over(found, 3)} {kind}, {len(found)} {unit}"
                yield f"(b) the lead of {name} grows with {what}", _decided(found), evidence


def _left_without_decay(runs: Runs, plain: Runs, bounds: Bounds) -> Iterator[tuple[str, str, str]]:
    for label in (BASELINE, *VARIANTS):
        changes = {env: changes_without_decay(runs, plain, env, label) for env in plain.environments}
        shares = [f"{kept(pairs)} on {short_name(env)}" for env, pairs in changes.items() if pairs]
        scales = {env: bounds[env][1] - bounds[env][0] for env in changes}
        scaled = [(a / scales[env], b / scales[env]) for env, pairs in changes.items() for a, b in pairs]
        if not scaled:
            continue
        if label == BASELINE:
            claim = "(c) without decay and clipping PPO fails"
            decided = _decided([FAILS * before - after for before, after in scaled])
        else:
            claim = f"(c) without them {VARIANTS[label]} degrades only mildly"
            decided = _decided([after - MILD * before for before, after in scaled])
        change = over((after - before for before, after in scaled), 3)
        yield claim, decided, f"keeps {', '.join(shares)}; change {change} over {len(scaled)} settings"


def _ahead_without_decay(plain: Runs, bounds: Bounds) -> Iterator[tuple[str, str, str]]:
    for label, name in VARIANTS.items():
        pooled = flat(leads_over_ppo(plain, bounds, label))
        if pooled:
            evidence = f"{over(pooled, 3)} over {len(pooled)} pairs, better in {better_in(pooled)}"
            yield f"(c) without them {name} is ahead of PPO", _decided(pooled), evidence


def _decided(units: Sequence[float]) -> str:
    estimate = mean_estimate(units)
    # Rounding gives differences that are all zero a tiny value and a tinier interval.
    if not estimate.has_interval or estimate.low <= 0 <= estimate.high or abs(estimate.value) < 1e-12:
        return "open"
    return "**holds**" if estimate.low > 0 else "**refuted**"
