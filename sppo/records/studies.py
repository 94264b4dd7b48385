"""A study's files as one object: every run that was planned, whatever became of it.

Two forms are read: a study directory as the runner leaves it (one directory per run, see
:mod:`sppo.records.run_files`), and the two files that a report publishes
(:mod:`sppo.records.published`).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sppo.records import published
from sppo.records.run_files import BOOKKEEPING, PLAN, run_directories
from sppo.records.runs import STATUSES, Run, check_config, read_run
from sppo.records.subset import Subset


@dataclass(frozen=True, eq=False)
class StudyRecords:
    """All runs of a study; ``planned`` says whether the plan was on record or inferred from the seeds."""

    name: str
    runs: tuple[Run, ...]
    planned: bool

    def counts(self) -> dict[str, int]:
        """Number of runs by status, every status present."""
        found = Counter(run.status for run in self.runs)
        return {status: found[status] for status in STATUSES}

    def completed_from(self, directory: Path) -> StudyRecords:
        """This study, with the completed runs of an earlier report where it has none of its own.

        :raises FileNotFoundError: if there is no report's CSV files
        """
        earlier = published.completed_runs(directory)
        runs = (run if run.status == "completed" else earlier.get(run.hash, run) for run in self.runs)
        return replace(self, runs=tuple(runs))

    def part(self, subset: Subset) -> StudyRecords:
        """The selected runs, and those whose configuration cannot be read, which may be among them.

        :raises ValueError: if a flag names something that the study does not have
        """
        chosen = set(map(id, subset.choose([run for run in self.runs if run.config])))
        kept = tuple(run for run in self.runs if not run.config or id(run) in chosen)
        return replace(self, runs=kept)


def read_records(directory: Path) -> StudyRecords:
    """Read a study directory, or a directory with the CSV files of an earlier report."""
    if not directory.is_dir():
        raise FileNotFoundError(f"no study directory {directory}")
    if published.is_published(directory):
        return StudyRecords(directory.resolve().name, tuple(published.read_runs(directory)), planned=True)
    plan = _read_plan(directory)
    paths = run_directories(directory)
    runs = [read_run(path, (plan or {}).get(path.name)) for path in paths]
    if plan is None:
        runs += _inferred_missing(runs)
        return StudyRecords(directory.resolve().name, tuple(runs), planned=False)
    stray = "in the directory, but not in the plan of this study"
    runs = [run if run.hash in plan else replace(run, status="unplanned", error=stray) for run in runs]
    present = {run.hash for run in runs}
    runs += [
        Run(hash=name, config=config, status="missing", error="planned, no record on disk")
        for name, config in plan.items()
        if name not in present
    ]
    order = {name: index for index, name in enumerate(plan)}
    runs.sort(key=lambda run: order.get(run.hash, len(order)))
    return StudyRecords(directory.resolve().name, tuple(runs), planned=True)


def _read_plan(directory: Path) -> dict[str, dict[str, Any]] | None:
    """Hash -> configuration of every planned run, in the order of the plan."""
    try:
        entries = json.loads((directory / BOOKKEEPING / PLAN).read_bytes())
        plan = {str(entry["hash"])[:16]: dict(entry["config"]) for entry in entries}
        for config in plan.values():
            check_config(config)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return plan or None


def _inferred_missing(runs: list[Run]) -> list[Run]:
    """Without a plan on record: the seeds that other settings of the same environment have."""
    settings: dict[str, dict[int, Run]] = {}
    seeds: dict[str, set[int]] = {}
    for run in runs:
        if run.config:
            rest = json.dumps({**run.config, "seed": None}, sort_keys=True)
            settings.setdefault(rest, {})[run.seed] = run
            seeds.setdefault(run.env, set()).add(run.seed)
    missing = []
    for present in settings.values():
        sibling = next(iter(present.values()))
        for seed in sorted(seeds[sibling.env] - present.keys()):
            reason = f"no record of seed {seed}, which other settings of {sibling.env} have"
            missing.append(Run("", {**sibling.config, "seed": seed}, "missing", error=reason))
    return missing
