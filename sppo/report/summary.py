"""Cells to the rows of every table: final returns, comparisons, aggregates, profiles.

Scores that are pooled over environments are min-max normalised per environment, with 0 the lowest and 1
the highest final return of any completed run of the study there. Comparisons within a cell use returns
as they are; the probability of improvement does not depend on the scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sppo.report.cells import Cell, Setting, order_key, order_labels
from sppo.report.statistics import (
    Estimate,
    difference,
    interquartile_mean,
    mean_interval,
    performance_profile,
    probability_of_improvement,
)

#: direct-representation algorithms that the others are compared with, where both ran the same setting
BASELINES = ("ppo", "mdpo")
THRESHOLDS = np.linspace(0, 1, 101)

Task = tuple[str, Setting]


class Note(NamedTuple):
    """What a reader must know about a number, and where it holds."""

    text: str
    where: str


@dataclass(frozen=True)
class FinalReturn:
    """Final returns of one cell: mean with Student-t interval, interquartile mean with bootstrap one."""

    cell: Cell
    mean: Estimate
    iqm: Estimate
    low: float
    high: float

    @property
    def seeds(self) -> tuple[int, ...]:
        return _seeds([self.cell])


@dataclass(frozen=True)
class Comparison:
    """An algorithm against its baseline on one task, or pooled over several (``env`` or setting empty).

    ``difference`` is of mean final returns and given for single tasks only, where the scale is one.
    """

    label: str
    baseline: str
    env: str
    setting: str
    n: int
    n_baseline: int
    tasks: int
    least_runs: int
    difference: Estimate | None
    improvement: Estimate
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Aggregate:
    """Interquartile mean of normalised final returns over the tasks that all shown algorithms have."""

    label: str
    setting: Setting | None
    tasks: int
    runs: int
    least_runs: int
    iqm: Estimate
    seeds: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Profile:
    """Fraction of runs above each of :data:`THRESHOLDS`, for one algorithm at one m."""

    label: str
    n_epochs: Any
    tasks: int
    runs: int
    least_runs: int
    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Summary:
    """Everything a report shows, computed once."""

    cells: tuple[Cell, ...]
    finals: tuple[FinalReturn, ...]
    comparisons: tuple[Comparison, ...]
    aggregates: tuple[Aggregate, ...]
    profiles: tuple[Profile, ...]
    bounds: dict[str, tuple[float, float]]
    notes: tuple[str, ...]


def summarise(cells: Sequence[Cell], baselines: Sequence[str] = BASELINES) -> Summary:
    """All tables of a study's cells."""
    grid = [cell for cell in cells if cell.setting.on_grid]
    bounds = normalisation_bounds(cells)
    notes: list[Note] = []
    aggregates = _aggregates(grid, bounds, notes)
    profiles = _profiles(grid, bounds, notes)
    for cell in cells:
        restarted = sum(run.episode_restarts > 0 for run in cell.completed)
        if restarted:
            # such a run is not the one that would have come out without the interruption
            where = f"{restarted} of {cell.n}: {cell.env}, {cell.label}, {cell.setting.text}"
            notes.append(Note("runs that were interrupted and had to start their episodes again", where))
    flat = [env for env, (low, high) in bounds.items() if low == high]
    if flat:
        notes += [Note("all final returns are equal, there is no normalised score", env) for env in flat]
    return Summary(
        cells=tuple(cells),
        finals=tuple(_final_return(cell) for cell in cells),
        comparisons=tuple(_comparisons(cells, baselines, notes)),
        aggregates=tuple(aggregates),
        profiles=tuple(profiles),
        bounds=bounds,
        notes=_merge(notes),
    )


def normalisation_bounds(cells: Iterable[Cell]) -> dict[str, tuple[float, float]]:
    """Lowest and highest final return of any completed run, per environment."""
    bounds: dict[str, tuple[float, float]] = {}
    for cell in cells:
        if cell.n:
            low, high = bounds.get(cell.env, (np.inf, -np.inf))
            bounds[cell.env] = (min(low, float(cell.finals.min())), max(high, float(cell.finals.max())))
    return bounds


def _final_return(cell: Cell) -> FinalReturn:
    nan = float("nan")
    if not cell.n:
        return FinalReturn(cell, Estimate(nan), Estimate(nan), nan, nan)
    mean = Estimate(*(float(bound) for bound in mean_interval(cell.finals)))
    iqm = interquartile_mean([cell.finals])
    return FinalReturn(cell, mean, iqm, float(cell.finals.min()), float(cell.finals.max()))


def _comparisons(cells: Sequence[Cell], baselines: Sequence[str], notes: list[Note]) -> list[Comparison]:
    found: list[Comparison] = []
    by_label = _by_label(cells)
    for label, mine in by_label.items():
        for baseline in baselines:
            against = _counterpart(label, baseline, by_label)
            if against is None or label.partition(" (")[0] in baselines:
                continue
            theirs = by_label[against]
            pairs = [(mine[task], theirs[task]) for task in mine if task in theirs]
            pairs = [(a, b) for a, b in pairs if a.n and b.n]
            for env, first, second in sorted({(a.env, a.steps, b.steps) for a, b in pairs}):
                if first != second:
                    notes.append(
                        Note(f"{label} ran {first} steps and {against} {second}, compared all the same", env)
                    )
            found += [_compare([pair], pair[0].env, pair[0].setting.text) for pair in pairs]
            found += _pooled(pairs)
    return found


def _counterpart(label: str, baseline: str, labels: Iterable[str]) -> str | None:
    """The baseline's label, preferably of the same variant (``sppo (gamma=1)``: ``ppo (gamma=1)``)."""
    _, bracket, variant = label.partition(" (")
    known = set(labels)
    return next((name for name in (baseline + bracket + variant, baseline) if name in known), None)


def _pooled(pairs: Sequence[tuple[Cell, Cell]]) -> list[Comparison]:
    """Over environments at each setting, over everything at each m, and over everything."""
    if not pairs:
        return []
    pooled = []
    for setting in sorted({a.setting for a, _ in pairs}, key=Setting.sort_key):
        pooled.append(_compare([p for p in pairs if p[0].setting == setting], "", setting.text))
    passes = sorted({a.setting.n_epochs for a, _ in pairs}, key=order_key)
    if len(passes) > 1:
        for m in passes:
            pooled.append(_compare([p for p in pairs if p[0].setting.n_epochs == m], "", f"all m={m}"))
    if len(pooled) > 1:
        pooled.append(_compare(pairs, "", "all settings"))
    return pooled


def _compare(pairs: Sequence[tuple[Cell, Cell]], env: str, setting: str) -> Comparison:
    mine, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    return Comparison(
        label=mine[0].label,
        baseline=theirs[0].label,
        env=env,
        setting=setting,
        n=sum(a.n for a in mine),
        n_baseline=sum(b.n for b in theirs),
        tasks=len(pairs),
        least_runs=min(cell.n for cell in (*mine, *theirs)),
        difference=difference(mine[0].finals, theirs[0].finals) if env else None,
        improvement=probability_of_improvement([a.finals for a in mine], [b.finals for b in theirs]),
        seeds=_seeds((*mine, *theirs)),
    )


def _aggregates(
    grid: Sequence[Cell], bounds: dict[str, tuple[float, float]], notes: list[Note]
) -> list[Aggregate]:
    found = []
    settings = sorted({cell.setting for cell in grid}, key=Setting.sort_key)
    for setting in settings:
        group = [cell for cell in grid if cell.setting == setting]
        for label, shared in _comparable(group, bounds, setting.text, notes).items():
            found.append(_aggregate(label, setting, shared, bounds))
    if len(settings) > 1:
        for label, shared in _comparable(grid, bounds, "all settings", notes).items():
            found.append(_aggregate(label, None, shared, bounds))
    return found


def _aggregate(
    label: str, setting: Setting | None, cells: Sequence[Cell], bounds: dict[str, tuple[float, float]]
) -> Aggregate:
    runs = [cell.n for cell in cells]
    iqm = interquartile_mean(_scores(cells, bounds))
    return Aggregate(label, setting, len(cells), sum(runs), min(runs), iqm, _seeds(cells))


def _profiles(
    grid: Sequence[Cell], bounds: dict[str, tuple[float, float]], notes: list[Note]
) -> list[Profile]:
    found = []
    for m in sorted({cell.setting.n_epochs for cell in grid}, key=order_key):
        group = [cell for cell in grid if cell.setting.n_epochs == m]
        for label, shared in _comparable(group, bounds, f"m={m}", notes).items():
            runs = [cell.n for cell in shared]
            curve = performance_profile(_scores(shared, bounds), THRESHOLDS)
            found.append(Profile(label, m, len(shared), sum(runs), min(runs), *curve, seeds=_seeds(shared)))
    return found


def _comparable(
    cells: Sequence[Cell], bounds: dict[str, tuple[float, float]], where: str, notes: list[Note]
) -> dict[str, list[Cell]]:
    """The cells of each algorithm on the tasks that all of them have at least one completed run of.

    An algorithm with less than half of the tasks is left out instead of taking the others' tasks away;
    either loss is noted, so that the reader knows what an aggregate is over.
    """
    usable = [c for c in cells if c.n and bounds[c.env][0] < bounds[c.env][1]]
    by_label = _by_label(usable)
    tasks = {(c.env, c.setting) for c in usable}
    kept = {label: own for label, own in by_label.items() if 2 * len(own) >= len(tasks)}
    for label in by_label.keys() - kept.keys():
        notes.append(
            Note(f"{label} has runs of less than half of the tasks and is left out of aggregates", where)
        )
    shared = set.intersection(*(set(own) for own in kept.values())) if kept else set()
    if kept and len(shared) < len(tasks):
        notes.append(
            Note(f"aggregated over the {len(shared)} of {len(tasks)} tasks that all algorithms have", where)
        )
    if not shared:
        return {}
    return {label: [own[task] for task in own if task in shared] for label, own in kept.items()}


def _merge(notes: Iterable[Note]) -> tuple[str, ...]:
    places: dict[str, dict[str, None]] = {}
    for note in notes:
        places.setdefault(note.text, {})[note.where] = None
    merged = []
    for text, found in places.items():
        where = list(found)
        more = [f"and {len(where) - 3} more"] if len(where) > 4 else []
        merged.append(f"{text} ({'; '.join(where[:3] + more if more else where)})")
    return tuple(merged)


def _by_label(cells: Iterable[Cell]) -> dict[str, dict[Task, Cell]]:
    listed = list(cells)
    found: dict[str, dict[Task, Cell]] = {label: {} for label in order_labels(c.label for c in listed)}
    for cell in listed:
        found[cell.label][cell.env, cell.setting] = cell
    return found


def _scores(cells: Iterable[Cell], bounds: dict[str, tuple[float, float]]) -> list[NDArray[np.float64]]:
    scores = []
    for cell in cells:
        low, high = bounds[cell.env]
        scores.append((cell.finals - low) / (high - low))
    return scores


def _seeds(cells: Iterable[Cell]) -> tuple[int, ...]:
    return tuple(sorted({run.seed for cell in cells for run in cell.completed}))
