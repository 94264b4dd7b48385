"""Cells to the rows of every table: final returns, comparisons, aggregates, profiles.

Scores that are pooled over environments are min-max normalised per environment, with 0 the lowest and 1
the highest final return of any completed run of the study there. Comparisons within a cell use returns
as they are; the probability of improvement does not depend on the scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sppo.report.cells import Cell, Setting, Value, order_key, seeds_of
from sppo.report.labels import order_labels
from sppo.report.statistics import (
    Array,
    Estimate,
    difference,
    interquartile_mean,
    mean_estimate,
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
Notes = dict[str, list[str]]


@dataclass(frozen=True, eq=False)
class Row:
    """A number over some cells, which say how many runs are behind it."""

    cells: tuple[Cell, ...]

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
class FinalReturn(Row):
    """Final returns of one cell: mean with Student-t interval, interquartile mean with bootstrap one."""

    mean: Estimate
    iqm: Estimate
    low: float
    high: float

    @property
    def cell(self) -> Cell:
        return self.cells[0]


@dataclass(frozen=True, eq=False)
class Comparison(Row):
    """An algorithm against its baseline on one task, or pooled over several (then ``env`` is ``None``).

    ``difference`` is of mean final returns and given for single tasks only, where the scale is one.
    """

    label: str
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

    label: str
    setting: Setting | None
    iqm: Estimate

    @property
    def where(self) -> str:
        return self.setting.text if self.setting else "all settings"


@dataclass(frozen=True, eq=False)
class Profile(Row):
    """Fraction of runs above each of :data:`THRESHOLDS`, for one algorithm at one m."""

    label: str
    n_epochs: Value
    value: Array
    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class Summary:
    """Everything that a report states, and what has to be said about it."""

    cells: tuple[Cell, ...]
    finals: tuple[FinalReturn, ...]
    comparisons: tuple[Comparison, ...]
    aggregates: tuple[Aggregate, ...]
    profiles: tuple[Profile, ...]
    bounds: Bounds
    notes: tuple[str, ...]


def summarise(cells: Sequence[Cell], baselines: Sequence[str] = DEFAULT_BASELINES) -> Summary:
    """All tables of a study's cells."""
    bounds = normalisation_bounds(cells)
    notes: Notes = {}
    aggregates = _aggregates(cells, bounds, notes)
    profiles = _profiles(cells, bounds, notes)
    for cell in cells:
        restarted = sum(run.episode_restarts > 0 for run in cell.completed)
        if restarted:
            # such a run is not the one that would have come out without the interruption
            where = f"{restarted} of {cell.n}: {cell.env}, {cell.label}, {cell.setting.text}"
            _note(notes, "runs that were interrupted and had to start their episodes again", where)
    for env, (low, high) in bounds.items():
        if low == high:
            _note(notes, "all final returns are equal, there is no normalised score", env)
    comparisons = _comparisons(cells, baselines, notes)
    return Summary(
        cells=tuple(cells),
        finals=tuple(_final_return(cell) for cell in cells),
        comparisons=tuple(comparisons),
        aggregates=tuple(aggregates),
        profiles=tuple(profiles),
        bounds=bounds,
        notes=tuple(_merged(text, where) for text, where in notes.items()),
    )


def normalisation_bounds(cells: Iterable[Cell]) -> Bounds:
    """Lowest and highest final return of any completed run, per environment."""
    bounds: Bounds = {}
    for cell in cells:
        if cell.n:
            low, high = bounds.get(cell.env, (np.inf, -np.inf))
            bounds[cell.env] = (min(low, float(cell.finals.min())), max(high, float(cell.finals.max())))
    return bounds


def counterpart(label: str, baseline: str, labels: Iterable[str]) -> str | None:
    """The baseline's label, preferably of the same variant (``sppo (gamma=1)``: ``ppo (gamma=1)``)."""
    _, bracket, variant = label.partition(" (")
    known = set(labels)
    return next((name for name in (baseline + bracket + variant, baseline) if name in known), None)


def _final_return(cell: Cell) -> FinalReturn:
    nan = float("nan")
    if not cell.n:
        return FinalReturn((cell,), Estimate(nan), Estimate(nan), nan, nan)
    low, high = float(cell.finals.min()), float(cell.finals.max())
    return FinalReturn((cell,), mean_estimate(cell.finals), interquartile_mean([cell.finals]), low, high)


def _comparisons(cells: Sequence[Cell], baselines: Sequence[str], notes: Notes) -> list[Comparison]:
    found: list[Comparison] = []
    by_label = _by_label(cells)
    for label, mine in by_label.items():
        for baseline in baselines:
            against = counterpart(label, baseline, by_label)
            if against is None or label.partition(" (")[0] in baselines:
                continue
            theirs = by_label[against]
            pairs = [(mine[task], theirs[task]) for task in mine if task in theirs]
            pairs = [(a, b) for a, b in pairs if a.n and b.n]
            for env, first, second in sorted({(a.env, a.steps, b.steps) for a, b in pairs}):
                if first != second:
                    text = f"{label} ran {first} steps and {against} {second}, compared all the same"
                    _note(notes, text, env)
            found += [_compare([pair], pair[0].env, pair[0].setting.text) for pair in pairs]
            found += _pooled(pairs)
    return found


def _pooled(pairs: Sequence[Pair]) -> list[Comparison]:
    """Over environments at each setting, over everything at each m, and over everything."""
    groups: dict[str, list[Pair]] = {}
    for setting in sorted({a.setting for a, _ in pairs}, key=Setting.sort_key):
        groups[setting.text] = [pair for pair in pairs if pair[0].setting == setting]
    passes = sorted({a.setting.n_epochs for a, _ in pairs}, key=order_key)
    for m in passes if len(passes) > 1 else ():
        groups[f"all m={m}"] = [pair for pair in pairs if pair[0].setting.n_epochs == m]
    if len(groups) > 1:
        groups["all settings"] = list(pairs)
    return [_compare(group, None, name) for name, group in groups.items()]


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


def _aggregates(cells: Sequence[Cell], bounds: Bounds, notes: Notes) -> list[Aggregate]:
    grid = [cell for cell in cells if cell.setting.on_grid]
    settings: list[Setting | None] = [*sorted({cell.setting for cell in grid}, key=Setting.sort_key)]
    found = []
    for setting in [*settings, None] if len(settings) > 1 else settings:
        group = [cell for cell in grid if setting in (None, cell.setting)]
        where = setting.text if setting else "all settings"
        for label, shared in _comparable(group, bounds, where, notes).items():
            iqm = interquartile_mean(_scores(shared, bounds))
            found.append(Aggregate(tuple(shared), label, setting, iqm))
    return found


def _profiles(cells: Sequence[Cell], bounds: Bounds, notes: Notes) -> list[Profile]:
    grid = [cell for cell in cells if cell.setting.on_grid]
    found = []
    for m in sorted({cell.setting.n_epochs for cell in grid}, key=order_key):
        group = [cell for cell in grid if cell.setting.n_epochs == m]
        for label, shared in _comparable(group, bounds, f"m={m}", notes).items():
            curve = performance_profile(_scores(shared, bounds), THRESHOLDS)
            found.append(Profile(tuple(shared), label, m, *curve))
    return found


def _comparable(cells: Sequence[Cell], bounds: Bounds, where: str, notes: Notes) -> dict[str, list[Cell]]:
    """The cells of each algorithm on the tasks that all of them have at least one completed run of.

    An algorithm with less than half of the tasks is left out instead of taking the others' tasks away;
    either loss is noted, so that the reader knows what an aggregate is over.
    """
    usable = [c for c in cells if c.n and bounds[c.env][0] < bounds[c.env][1]]
    by_label = _by_label(usable)
    tasks = {(c.env, c.setting) for c in usable}
    kept = {label: own for label, own in by_label.items() if 2 * len(own) >= len(tasks)}
    for label in by_label.keys() - kept.keys():
        text = f"{label} has runs of less than half of the tasks and is left out of aggregates"
        _note(notes, text, where)
    shared = set.intersection(*(set(own) for own in kept.values())) if kept else set()
    if kept and len(shared) < len(tasks):
        text = f"aggregated over the {len(shared)} of {len(tasks)} tasks that all algorithms have"
        _note(notes, text, where)
    if not shared:
        return {}
    return {label: [own[task] for task in own if task in shared] for label, own in kept.items()}


def _note(notes: Notes, text: str, where: str) -> None:
    places = notes.setdefault(text, [])
    if where not in places:
        places.append(where)


def _merged(text: str, where: Sequence[str]) -> str:
    shown = [*where[:3], f"and {len(where) - 3} more"] if len(where) > 4 else where
    return f"{text} ({'; '.join(shown)})"


def _by_label(cells: Sequence[Cell]) -> dict[str, dict[Task, Cell]]:
    labels = order_labels(cell.label for cell in cells)
    return {label: {(c.env, c.setting): c for c in cells if c.label == label} for label in labels}


def _scores(cells: Iterable[Cell], bounds: Bounds) -> list[Array]:
    return [
        (cell.finals - bounds[cell.env][0]) / (bounds[cell.env][1] - bounds[cell.env][0]) for cell in cells
    ]
