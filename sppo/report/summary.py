"""Cells to the rows of every table that is over several of them: comparisons, aggregates, profiles.

Scores that are pooled over environments are min-max normalised per environment, with 0 the lowest and 1
the highest final return of any completed run of the study there. Comparisons within a cell use returns
as they are; the probability of improvement does not depend on the scale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sppo.report import statistics
from sppo.report.cells import Cell, Setting, grouped, looks_of, order_key
from sppo.report.labels import Look, order_labels
from sppo.report.statistics import Array, Estimate

#: direct-representation algorithms that the others are compared with, where both ran the same setting
DEFAULT_BASELINES = ("ppo", "mdpo")
THRESHOLDS = np.linspace(0, 1, 101)
EVERYWHERE = "all settings"

#: a cell, or an algorithm's and its baseline's on the same task
Cells = tuple[Cell, ...]
#: environment -> lowest and highest final return
Bounds = dict[str, tuple[float, float]]
#: what a reader must know about a number -> where it holds
Notes = defaultdict[str, list[str]]


@dataclass(frozen=True, eq=False)
class Row:
    """Numbers over some cells, which say how many runs are behind them; ``where`` says at which settings."""

    label: str
    where: str
    cells: Cells

    @property
    def n(self) -> int:
        return sum(cell.n for cell in self.cells)


@dataclass(frozen=True, eq=False)
class Comparison(Row):
    """An algorithm against its baseline on one task, or pooled over several (then ``env`` is ``None``).

    ``difference`` is of mean final returns, and a number for single tasks only, where the scale is one.
    """

    baseline: str
    env: str | None
    tasks: int
    #: how many runs of the algorithm, and of its baseline
    sides: tuple[int, int]
    difference: Estimate
    improvement: Estimate


@dataclass(frozen=True, eq=False)
class Aggregate(Row):
    """An algorithm's normalised final returns, per task, on the tasks that all shown algorithms have."""

    scores: Sequence[Array]

    @cached_property
    def iqm(self) -> Estimate:
        return statistics.interquartile_mean(self.scores)

    @cached_property
    def profile(self) -> tuple[Array, Array, Array]:
        """Fraction of runs above each of :data:`THRESHOLDS`, with bounds."""
        return statistics.performance_profile(self.scores, THRESHOLDS)


@dataclass(frozen=True, eq=False)
class Summary:
    """Everything that a report states, and what has to be said about it.

    Aggregates are over environments at each setting, and over everything; profiles at each m.
    """

    cells: Cells
    comparisons: tuple[Comparison, ...]
    aggregates: tuple[Aggregate, ...]
    profiles: tuple[Aggregate, ...]
    bounds: Bounds
    notes: tuple[str, ...]

    @cached_property
    def looks(self) -> dict[str, Look]:
        return looks_of(self.cells)


def summarise(cells: Sequence[Cell], baselines: Sequence[str] = DEFAULT_BASELINES) -> Summary:
    """All tables of a study's cells."""
    bounds = normalisation_bounds(cells)
    notes: Notes = defaultdict(list)
    grid = [(cell,) for cell in cells if cell.setting.on_grid]
    aggregates = tuple(_aggregates(_pools(grid, by_passes=False), bounds, notes))
    profiles = tuple(_aggregates(_at_each_m(grid), bounds, notes))
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
    compared = {row.label for row in comparisons}
    names = {cell.label: cell.label.partition(" (")[0] for cell in cells}
    for label, name in names.items() if set(baselines) & set(names.values()) else ():
        if name not in baselines and label not in compared:
            notes["not compared, because no completed run has a setting of the baseline's"].append(label)
    for places in notes.values():
        places[3:] = [f"and {len(places) - 3} more"] if len(places) > 4 else places[3:]
    texts = tuple(f"{text} ({'; '.join(places)})" for text, places in notes.items())
    return Summary(tuple(cells), comparisons, aggregates, profiles, bounds, texts)


def normalisation_bounds(cells: Iterable[Cell]) -> Bounds:
    """Lowest and highest final return of any completed run, per environment."""
    by_env = grouped((cell for cell in cells if cell.n), lambda cell: cell.env)
    finals = {env: np.concatenate([cell.finals for cell in own]) for env, own in by_env.items()}
    return {env: (float(found.min()), float(found.max())) for env, found in finals.items()}


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
            yield from (_compare(a.setting.text, [(a, b)], a.env) for a, b in pairs)
            yield from (_compare(where, own) for where, own in _pools(pairs))


def _compare(where: str, pairs: Sequence[Cells], env: str | None = None) -> Comparison:
    mine, theirs = zip(*pairs, strict=True)
    x, y = ([cell.finals for cell in side] for side in (mine, theirs))
    return Comparison(
        label=mine[0].label,
        where=where,
        cells=(*mine, *theirs),
        baseline=theirs[0].label,
        env=env,
        tasks=len(pairs),
        sides=(sum(cell.n for cell in mine), sum(cell.n for cell in theirs)),
        difference=Estimate() if env is None else statistics.difference(x[0], y[0]),
        improvement=statistics.probability_of_improvement(x, y),
    )


def _pools(items: Sequence[Cells], by_passes: bool = True) -> list[tuple[str, list[Cells]]]:
    """Over environments at each setting, over everything at each m if that is more, and over everything."""
    ordered = sorted(items, key=lambda item: item[0].setting.sort_key())
    settings = grouped(ordered, lambda item: item[0].setting)
    pools = [(setting.text, own) for setting, own in settings.items()]
    at_each_m = _at_each_m(items) if by_passes else []
    pools += at_each_m if 1 < len(at_each_m) < len(pools) else []
    return [*pools, (EVERYWHERE, list(items))] if len(pools) > 1 else pools


def _at_each_m(items: Sequence[Cells]) -> list[tuple[str, list[Cells]]]:
    ordered = sorted(items, key=lambda item: order_key(item[0].setting.n_epochs))
    return [(f"all m={m}", own) for m, own in grouped(ordered, lambda item: item[0].setting.n_epochs).items()]


def _aggregates(
    pools: Iterable[tuple[str, list[Cells]]], bounds: Bounds, notes: Notes
) -> Iterator[Aggregate]:
    """Each algorithm in each pool, on the tasks that all have a completed run of.

    An algorithm with less than half of the tasks is left out instead of taking the others' tasks away;
    either loss is noted, so that the reader knows what an aggregate is over.
    """
    for where, pool in pools:
        usable = [cell for (cell,) in pool if cell.n and bounds[cell.env][0] < bounds[cell.env][1]]
        by_label = _by_label(usable)
        tasks = {(cell.env, cell.setting) for cell in usable}
        kept = {label: own for label, own in by_label.items() if 2 * len(own) >= len(tasks)}
        for label in [label for label in by_label if label not in kept]:
            text = f"{label} has runs of less than half of the tasks and is left out of aggregates"
            notes[text].append(where)
        shared = tasks.intersection(*kept.values())
        if kept and len(shared) < len(tasks):
            text = f"aggregated over the {len(shared)} of {len(tasks)} tasks that all algorithms have"
            notes[text if shared else "no aggregate: there is no task that all algorithms have"].append(where)
        for label, own in kept.items() if shared else ():
            chosen = tuple(cell for task, cell in own.items() if task in shared)
            limits = [bounds[cell.env] for cell in chosen]
            scores = [(c.finals - low) / (high - low) for c, (low, high) in zip(chosen, limits, strict=True)]
            yield Aggregate(label, where, chosen, scores)


def _by_label(cells: Sequence[Cell]) -> dict[str, dict[tuple[str, Setting], Cell]]:
    labels = order_labels(cell.label for cell in cells)
    return {label: {(c.env, c.setting): c for c in cells if c.label == label} for label in labels}
