"""Cells to the rows of every table that is over several of them: comparisons, aggregates, profiles.

Scores that are pooled over environments are min-max normalised per environment, with 0 the lowest and 1
the highest final return of any completed run of the study there. Comparisons within a cell use returns
as they are; the probability of improvement does not depend on the scale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sppo.report.cells import Cell, Setting, Value, order_key, seeds_of
from sppo.report.labels import order_labels
from sppo.report.statistics import (
    Array,
    Estimate,
    difference,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)

#: direct-representation algorithms that the others are compared with, where both ran the same setting
DEFAULT_BASELINES = ("ppo", "mdpo")
THRESHOLDS = np.linspace(0, 1, 101)

Task = tuple[str, Setting]
Pair = tuple[Cell, Cell]
#: environment -> lowest and highest final return
Bounds = dict[str, tuple[float, float]]
#: what a reader must know about a number -> where it holds
Notes = defaultdict[str, list[str]]


@dataclass(frozen=True, eq=False)
class Row:
    """A number over some cells, which say how many runs are behind it."""

    cells: tuple[Cell, ...]
    label: str

    @property
    def seeds(self) -> tuple[int, ...]:
        return seeds_of(self.cells)

    @property
    def n(self) -> int:
        return sum(cell.n for cell in self.cells)

    @property
    def least_runs(self) -> int:
        return min(cell.n for cell in self.cells)


@dataclass(frozen=True, eq=False)
class Comparison(Row):
    """An algorithm against its baseline on one task, or pooled over several (then ``env`` is ``None``).

    ``difference`` is of mean final returns and given for single tasks only, where the scale is one.
    """

    baseline: str
    env: str | None
    setting: str
    difference: Estimate | None
    improvement: Estimate

    @property
    def tasks(self) -> int:
        return len(self.cells) // 2

    @property
    def sides(self) -> tuple[int, int]:
        """How many runs of the algorithm, and of its baseline."""
        mine = sum(cell.n for cell in self.cells[: self.tasks])
        return mine, self.n - mine


@dataclass(frozen=True, eq=False)
class Aggregate(Row):
    """Interquartile mean of normalised final returns over the tasks that all shown algorithms have."""

    setting: Setting | None
    iqm: Estimate

    @property
    def where(self) -> str:
        return self.setting.text if self.setting else "all settings"


@dataclass(frozen=True, eq=False)
class Profile(Row):
    """Fraction of runs above each of :data:`THRESHOLDS`, for one algorithm at one m."""

    n_epochs: Value
    value: Array
    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class Summary:
    """Everything that a report states, and what has to be said about it."""

    cells: tuple[Cell, ...]
    comparisons: tuple[Comparison, ...]
    aggregates: tuple[Aggregate, ...]
    profiles: tuple[Profile, ...]
    bounds: Bounds
    notes: tuple[str, ...]


def summarise(cells: Sequence[Cell], baselines: Sequence[str] = DEFAULT_BASELINES) -> Summary:
    """All tables of a study's cells."""
    bounds = normalisation_bounds(cells)
    notes: Notes = defaultdict(list)
    grid = [cell for cell in cells if cell.setting.on_grid]
    aggregates = tuple(_aggregates(grid, bounds, notes))
    profiles = tuple(_profiles(grid, bounds, notes))
    for cell in cells:
        restarted = sum(run.episode_restarts > 0 for run in cell.completed)
        if restarted:
            # such a run is not the one that would have come out without the interruption
            where = f"{restarted} of {cell.n}: {cell.env}, {cell.label}, {cell.setting.text}"
            notes["runs that were interrupted and had to start their episodes again"].append(where)
    for env, (low, high) in bounds.items():
        if low == high:
            notes["all final returns are equal, there is no normalised score"].append(env)
    comparisons = tuple(_comparisons(cells, baselines, notes))
    for places in notes.values():
        places[3:] = [f"and {len(places) - 3} more"] if len(places) > 4 else places[3:]
    texts = tuple(f"{text} ({'; '.join(places)})" for text, places in notes.items())
    return Summary(tuple(cells), comparisons, aggregates, profiles, bounds, texts)


def normalisation_bounds(cells: Iterable[Cell]) -> Bounds:
    """Lowest and highest final return of any completed run, per environment."""
    finals: dict[str, list[float]] = {}
    for cell in cells:
        finals.setdefault(cell.env, []).extend(cell.finals.tolist())
    return {env: (min(found), max(found)) for env, found in finals.items() if found}


def _comparisons(cells: Sequence[Cell], baselines: Sequence[str], notes: Notes) -> Iterator[Comparison]:
    by_label = _by_label(cells)
    for label, mine in by_label.items():
        name, bracket, variant = label.partition(" (")
        for baseline in baselines if name not in baselines else ():
            # preferably of the same variant: sppo (gamma=1) with ppo (gamma=1)
            against = baseline + bracket + variant
            against = against if against in by_label else baseline
            theirs = by_label.get(against, {})
            pairs = [(a, theirs[task]) for task, a in mine.items() if task in theirs]
            pairs = [(a, b) for a, b in pairs if a.n and b.n]
            for env, first, second in sorted({(a.env, a.steps, b.steps) for a, b in pairs}):
                if first != second:
                    text = f"{label} ran {first} steps and {against} {second}, compared all the same"
                    notes[text].append(env)
            yield from (_compare([pair], pair[0].env, pair[0].setting.text) for pair in pairs)
            yield from _pooled(pairs)


def _pooled(pairs: Sequence[Pair]) -> Iterator[Comparison]:
    """Over environments at each setting, over everything at each m, and over everything."""
    groups: dict[str, list[Pair]] = {}
    for setting in sorted({a.setting for a, _ in pairs}, key=Setting.sort_key):
        groups[setting.text] = [pair for pair in pairs if pair[0].setting == setting]
    passes = sorted({a.setting.n_epochs for a, _ in pairs}, key=order_key)
    for m in passes if len(passes) > 1 else ():
        groups[f"all m={m}"] = [pair for pair in pairs if pair[0].setting.n_epochs == m]
    if len(groups) > 1:
        groups["all settings"] = list(pairs)
    return (_compare(group, None, name) for name, group in groups.items())


def _compare(pairs: Sequence[Pair], env: str | None, setting: str) -> Comparison:
    mine, theirs = zip(*pairs, strict=True)
    return Comparison(
        cells=(*mine, *theirs),
        label=mine[0].label,
        baseline=theirs[0].label,
        env=env,
        setting=setting,
        difference=None if env is None else difference(mine[0].finals, theirs[0].finals),
        improvement=probability_of_improvement([a.finals for a in mine], [b.finals for b in theirs]),
    )


def _aggregates(cells: Sequence[Cell], bounds: Bounds, notes: Notes) -> Iterator[Aggregate]:
    settings: list[Setting | None] = [*sorted({cell.setting for cell in cells}, key=Setting.sort_key)]
    for setting in [*settings, None] if len(settings) > 1 else settings:
        group = [cell for cell in cells if setting in (None, cell.setting)]
        where = setting.text if setting else "all settings"
        for label, shared, scores in _comparable(group, bounds, where, notes):
            yield Aggregate(shared, label, setting, interquartile_mean(scores))


def _profiles(cells: Sequence[Cell], bounds: Bounds, notes: Notes) -> Iterator[Profile]:
    for m in sorted({cell.setting.n_epochs for cell in cells}, key=order_key):
        group = [cell for cell in cells if cell.setting.n_epochs == m]
        for label, shared, scores in _comparable(group, bounds, f"m={m}", notes):
            yield Profile(shared, label, m, *performance_profile(scores, THRESHOLDS))


def _comparable(
    cells: Sequence[Cell], bounds: Bounds, where: str, notes: Notes
) -> Iterator[tuple[str, tuple[Cell, ...], list[Array]]]:
    """Each algorithm's cells on the tasks that all have a completed run of, and their normalised scores.

    An algorithm with less than half of the tasks is left out instead of taking the others' tasks away;
    either loss is noted, so that the reader knows what an aggregate is over.
    """
    usable = [cell for cell in cells if cell.n and bounds[cell.env][0] < bounds[cell.env][1]]
    tasks = {(cell.env, cell.setting) for cell in usable}
    kept = {}
    for label, own in _by_label(usable).items():
        if 2 * len(own) >= len(tasks):
            kept[label] = own
        else:
            text = f"{label} has runs of less than half of the tasks and is left out of aggregates"
            notes[text].append(where)
    shared = set.intersection(*(set(own) for own in kept.values())) if kept else set()
    if kept and len(shared) < len(tasks):
        text = f"aggregated over the {len(shared)} of {len(tasks)} tasks that all algorithms have"
        notes[text].append(where)
    for label, own in kept.items() if shared else ():
        chosen = tuple(cell for task, cell in own.items() if task in shared)
        limits = [bounds[cell.env] for cell in chosen]
        scores = [(c.finals - low) / (high - low) for c, (low, high) in zip(chosen, limits, strict=True)]
        yield label, chosen, scores


def _by_label(cells: Sequence[Cell]) -> dict[str, dict[Task, Cell]]:
    labels = order_labels(cell.label for cell in cells)
    return {label: {(c.env, c.setting): c for c in cells if c.label == label} for label in labels}
