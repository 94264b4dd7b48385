"""Runs grouped into cells: one environment, one algorithm, one setting, several seeds.

A cell holds runs that differ in nothing but their seed. What an algorithm's runs differ in is told apart
in this order: the paper's axes (m = ``n_epochs``, ε = ``clip_range``), the step size η = ``eta`` of the
divergence family, and whatever else varies between runs that share all of these, which becomes part of
the algorithm's label. So two learning rates, say, are two lines and are never averaged into one.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sppo.records.runs import STATUSES, Run
from sppo.records.studies import StudyRecords

#: the paper's rows, first in every listing; other environments follow in their order of appearance
PAPER_ENVIRONMENTS = ("Hopper", "Walker2d", "HalfCheetah", "Ant", "Humanoid")
NAMES = {"ppo": "PPO", "sppo": "sPPO", "mdpo": "MDPO", "smdpo": "sMDPO", "trpo": "TRPO", "a2c": "A2C"}

#: the parameters of :class:`Setting`, in its order
AXES = ("n_epochs", "clip_range", "eta")

Value = float | int | str | None


@dataclass(frozen=True)
class Setting:
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
        named = (("m", self.n_epochs), ("ε", self.clip_range), ("η", self.eta))
        return ", ".join(f"{name}={_plain(value)}" for name, value in named if value is not None) or "default"

    @property
    def slug(self) -> str:
        """The text in characters that are safe in file names and regular expressions."""
        return self.text.replace("ε", "eps").replace("η", "eta").replace(", ", ",")

    def sort_key(self) -> tuple[Any, ...]:
        return tuple(order_key(value) for value in (self.n_epochs, self.clip_range, self.eta))


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
    def finals(self) -> NDArray[np.float64]:
        """Final return of each completed run."""
        return np.array([run.final_return for run in self.completed])

    @cached_property
    def curves(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Timesteps ``(evaluations,)`` and returns ``(runs, evaluations)`` of the completed runs."""
        if not self.completed:
            return np.empty(0), np.empty((0, 0))
        shortest = min(len(run.returns) for run in self.completed)
        steps = np.mean([run.timesteps[:shortest] for run in self.completed], axis=0)
        return steps, np.array([run.returns[:shortest] for run in self.completed])

    @property
    def n(self) -> int:
        return len(self.completed)

    @property
    def steps(self) -> int:
        """Planned length of the runs."""
        return int(self.runs[0].config.get("total_timesteps", 0) or 0)

    def counts(self) -> dict[str, int]:
        return {status: sum(run.status == status for run in self.runs) for status in STATUSES}

    def tally(self) -> str:
        """``5``, or ``3 of 5 (1 failed, 1 missing)`` when something is not there."""
        lost = not_there([self])
        return f"{self.n} of {len(self.runs)} ({lost})" if lost else str(self.n)


def not_there(cells: Iterable[Cell]) -> str:
    """``1 failed, 2 missing``: the runs of these cells that are not completed; empty if all are."""
    counts = Counter[str]()
    for cell in cells:
        counts.update(cell.counts())
    return ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts[s] and s != "completed")


def build_cells(study: StudyRecords) -> list[Cell]:
    """All cells of a study, sorted by environment, setting and label.

    Runs whose configuration cannot be read, and runs that are not in the plan, belong to no cell; they
    appear in the list of runs only.
    """
    alike: dict[str, list[Run]] = defaultdict(list)
    for run in study.runs:
        if run.config and run.status != "unplanned":
            alike[json.dumps({**run.config, "seed": None}, sort_keys=True)].append(run)
    variants = _variant_keys([runs[0].config for runs in alike.values()])
    groups: dict[tuple[str, str, Setting], list[Run]] = defaultdict(list)
    for runs in alike.values():
        first = runs[0]
        label = _label(first.config, variants.get(first.algorithm, ()))
        groups[first.env, label, setting_of(first.config)] += runs
    cells = [
        Cell(*key, tuple(sorted(runs, key=lambda run: run.seed)), variants.get(runs[0].algorithm, ()))
        for key, runs in groups.items()
    ]
    environments = {env: index for index, env in enumerate(order_environments(cell.env for cell in cells))}
    labels = {label: index for index, label in enumerate(order_labels(cell.label for cell in cells))}
    cells.sort(key=lambda c: (environments[c.env], c.setting.sort_key(), labels[c.label]))
    return cells


def setting_of(config: Mapping[str, Any]) -> Setting:
    parameters = config.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    return Setting(*(_value(parameters.get(name)) for name in AXES))


def display_name(label: str) -> str:
    """``sppo-one-sided`` -> ``sPPO one-sided``; unknown names stay as they are."""
    base, bracket, variant = label.partition(" (")
    head, dash, rest = base.partition("-")
    if head.lower() not in NAMES:
        return label
    return NAMES[head.lower()] + (f" {rest}" if dash else "") + bracket + variant


def order_environments(names: Iterable[str]) -> list[str]:
    seen = list(dict.fromkeys(names))

    def rank(name: str) -> int:
        base = name.partition("-v")[0]
        return PAPER_ENVIRONMENTS.index(base) if base in PAPER_ENVIRONMENTS else len(PAPER_ENVIRONMENTS)

    return sorted(seen, key=rank)


def order_labels(names: Iterable[str]) -> list[str]:
    """PPO, then sPPO and its variants, then the others by name."""

    def rank(label: str) -> tuple[int, str]:
        head = label.split("-")[0].split(" ")[0].lower()
        known = ("ppo", "sppo", "mdpo", "smdpo", "trpo")
        return (known.index(head) if head in known else len(known), label)

    return sorted(set(names), key=rank)


def order_key(value: Value) -> tuple[int, float, str]:
    """Sorts numbers by value, before text; nothing first."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, str):
        return (2, 0.0, value)
    return (1, float(value), "")


def _variant_keys(configs: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """For each algorithm, the entries that vary between configurations with one place on the axes."""
    together: dict[tuple[str, str, Setting], list[dict[str, str]]] = defaultdict(list)
    for config in configs:
        together[str(config["algorithm"]), str(config["env"]), setting_of(config)].append(_flat(config))
    varying: dict[str, set[str]] = defaultdict(set)
    for (algorithm, _, _), entries in together.items():
        names = {name for one in entries for name in one}
        varying[algorithm] |= {name for name in names if len({one.get(name) for one in entries}) > 1}
    return {algorithm: tuple(sorted(names)) for algorithm, names in varying.items()}


def _label(config: Mapping[str, Any], variant_keys: Iterable[str]) -> str:
    entries = _flat(config)
    text = ", ".join(f"{name.split('.')[-1]}={entries.get(name, 'unset')}" for name in variant_keys)
    return f"{config['algorithm']} ({text})" if text else str(config["algorithm"])


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    entries: dict[str, str] = {}
    for name, value in config.items():
        if name in ("env", "algorithm", "seed"):
            continue
        if isinstance(value, dict):
            for inner, content in value.items():
                if (name, inner) not in _AXES:
                    entries[f"{name}.{inner}"] = json.dumps(content, sort_keys=True)
        else:
            entries[name] = json.dumps(value, sort_keys=True)
    return entries


_AXES = {("parameters", name) for name in AXES}


def _value(value: Any) -> Value:
    if value is None or isinstance(value, (int, float, str)):
        return value
    return json.dumps(value, sort_keys=True)


def _plain(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
