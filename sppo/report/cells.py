"""Runs grouped into cells: one environment, one algorithm, one setting, several seeds.

A cell holds runs that differ in nothing but their seed. What an algorithm's runs differ in is told apart
in this order: the paper's axes (m = ``n_epochs``, ε = ``clip_range``), the step size η = ``eta`` of the
divergence family, and whatever else varies between runs that share all of these, which becomes part of
the algorithm's label. So two learning rates, say, are two lines and are never averaged into one.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from sppo.records.runs import STATUSES, Run
from sppo.report.labels import Look, looks, order_labels, title_of
from sppo.report.statistics import Array, Estimate, interquartile_mean, mean_estimate

#: the paper's rows, first in every listing; other environments follow in their order of appearance
PAPER_ENVIRONMENTS = ("Hopper", "Walker2d", "HalfCheetah", "Ant", "Humanoid")
#: the parameters of :class:`Setting`, in its order, as the paper writes them
AXES = {"n_epochs": "m", "clip_range": "ε", "eta": "η"}
#: points at which the curves of runs that logged at different steps are averaged
_POINTS = 200

Value = float | int | str | None
T = TypeVar("T")
K = TypeVar("K")


class Setting(NamedTuple):
    """Where a run stands on the study's axes; ``None`` where an algorithm has no such parameter."""

    n_epochs: Value = None
    clip_range: Value = None
    eta: Value = None

    @property
    def on_grid(self) -> bool:
        """Whether this is a cell of the paper's m × ε grid."""
        return self.n_epochs is not None and self.clip_range is not None and self.eta is None

    @property
    def text(self) -> str:
        given = [(name, v) for name, v in zip(AXES.values(), self, strict=True) if v is not None]
        plain = (f"{name}={v:g}" if isinstance(v, float) else f"{name}={v}" for name, v in given)
        return ", ".join(plain) or "default"

    @property
    def slug(self) -> str:
        """The text in characters that are safe in file names and regular expressions."""
        return self.text.replace("ε", "eps").replace("η", "eta").replace(", ", ",")

    def sort_key(self) -> tuple[tuple[bool, float | str], ...]:
        return tuple(map(order_key, self))


@dataclass(frozen=True, eq=False)
class Cell:
    """The runs of one environment, label and setting, one per seed."""

    env: str
    label: str
    setting: Setting
    runs: tuple[Run, ...]
    #: entries of the configuration, beside the axes, that set this label apart from its algorithm's others
    varied: tuple[str, ...] = ()

    @cached_property
    def completed(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.status == "completed")

    @cached_property
    def finals(self) -> Array:
        """Final return of each completed run."""
        return np.array([run.final_return for run in self.completed])

    @cached_property
    def mean(self) -> Estimate:
        """Of the final returns, with Student-t interval."""
        return mean_estimate(self.finals)

    @cached_property
    def iqm(self) -> Estimate:
        """Of the final returns, with bootstrap interval."""
        return interquartile_mean([self.finals]) if self.n else Estimate()

    @cached_property
    def curves(self) -> tuple[Array, Array]:
        """Timesteps ``(points,)`` and returns ``(runs, points)`` of the completed runs.

        Runs that were measured at different timesteps are interpolated over the range that all cover.
        """
        runs = self.completed
        if not runs:
            return np.empty(0), np.empty((0, 0))
        steps = np.asarray(runs[0].timesteps, dtype=np.float64)
        if not all(np.array_equal(run.timesteps, steps) for run in runs):
            first, last = max(run.timesteps[0] for run in runs), min(run.timesteps[-1] for run in runs)
            steps = np.linspace(first, last, _POINTS) if first < last else np.empty(0)
        return steps, np.array([np.interp(steps, run.timesteps, run.returns) for run in runs])

    @property
    def n(self) -> int:
        return len(self.completed)

    @property
    def steps(self) -> int:
        """Planned length of the runs."""
        return int(self.runs[0].config.get("total_timesteps", 0) or 0)

    def tally(self) -> str:
        """``5``, or ``3 of 5 (1 failed, 1 missing)`` when something is not there."""
        lost = not_there([self])
        return f"{self.n} of {len(self.runs)} ({lost})" if lost else str(self.n)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by a key, both in their order."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def span(counts: Collection[int], to: str = " to ") -> str:
    """``5``, or ``2 to 5``: the smallest and the largest of them; ``0`` for none."""
    return to.join(map(str, dict.fromkeys((min(counts), max(counts))))) if counts else "0"


def not_there(cells: Iterable[Cell]) -> str:
    """``1 failed, 2 missing``: the runs of these cells that are not completed; empty if all are."""
    counts = Counter(run.status for cell in cells for run in cell.runs)
    return ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts[s] and s != "completed")


def seeds_of(cells: Iterable[Cell]) -> tuple[int, ...]:
    """The seeds of the completed runs."""
    return tuple(sorted({run.seed for cell in cells for run in cell.completed}))


def build_cells(runs: Iterable[Run]) -> list[Cell]:
    """All cells of a study's runs, sorted by environment, setting and label.

    Runs whose configuration cannot be read, and runs that are not in the plan, belong to no cell; they
    appear in the list of runs only.
    """
    planned = [run for run in runs if run.config and run.status != "unplanned"]
    entries = {run: _flat(run.settled) for run in planned}
    # what varies between runs with one place on the axes sets apart all runs of their algorithm
    varied: dict[str, set[str]] = defaultdict(set)
    places = grouped(planned, lambda run: (run.algorithm, run.env, setting_of(run)))
    for (algorithm, _, _), own in places.items():
        names = {name for run in own for name in entries[run]}
        varied[algorithm] |= {name for name in names if len({entries[run].get(name) for run in own}) > 1}

    def label(run: Run) -> str:
        names = sorted(varied[run.algorithm])
        text = ", ".join(f"{name.split('.')[-1]}={entries[run].get(name, 'unset')}" for name in names)
        return f"{run.algorithm} ({text})" if text else run.algorithm

    ordered = sorted(planned, key=lambda run: run.seed)
    members = grouped(ordered, lambda run: (run.env, label(run), setting_of(run)))
    cells = [
        Cell(*place, tuple(own), tuple(sorted(varied[own[0].algorithm]))) for place, own in members.items()
    ]
    environments = order_environments(run.env for run in planned)
    labels = order_labels(cell.label for cell in cells)
    cells.sort(key=lambda c: (environments.index(c.env), c.setting.sort_key(), labels.index(c.label)))
    return cells


def looks_of(cells: Iterable[Cell]) -> dict[str, Look]:
    """How each label is called and drawn; by the label alone where its runs are of several kinds."""
    titles = {}
    for label, own in grouped(cells, lambda cell: cell.label).items():
        found = {title_of(label, cell.runs[0].config) for cell in own}
        titles[label] = found.pop() if len(found) == 1 else title_of(label, {})
    return looks(titles)


def setting_of(run: Run) -> Setting:
    values = map(run.parameters.get, AXES)
    return Setting(*(v if v is None or isinstance(v, int | float | str) else json.dumps(v) for v in values))


def order_environments(names: Iterable[str]) -> list[str]:
    places = {name: place for place, name in enumerate(PAPER_ENVIRONMENTS)}
    return sorted(dict.fromkeys(names), key=lambda name: places.get(name.partition("-v")[0], len(places)))


def order_key(value: Value) -> tuple[bool, float | str]:
    """Sorts numbers by value, before text; nothing first."""
    return isinstance(value, str), -math.inf if value is None else value


def _flat(config: Mapping[str, object]) -> dict[str, str]:
    """The entries that tell apart what is no axis, in the form ``parameters.gamma``."""
    entries: dict[str, object] = {}
    for name, value in config.items():
        nested = value if isinstance(value, dict) else {}
        entries |= {f"{name}.{key}": inner for key, inner in nested.items()} or {name: value}
    told_apart = {"env", "algorithm", "seed", *(f"parameters.{name}" for name in AXES)}
    return {n: json.dumps(value, sort_keys=True) for n, value in entries.items() if n not in told_apart}
