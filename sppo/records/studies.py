"""A study's files as one object: every run that was planned, whatever became of it."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from sppo.records import published
from sppo.records.parameters import Values
from sppo.records.run_files import BOOKKEEPING, PLAN, run_directories
from sppo.records.runs import STATUSES, Run, check_config, read_run
from sppo.records.subset import Subset


@dataclass(frozen=True, eq=False)
class StudyRecords:
    """All runs of a study; unless its plan is on record (``planned``), none is known to be missing."""

    name: str
    runs: tuple[Run, ...]
    planned: bool

    def counts(self) -> dict[str, int]:
        """Number of runs by status, every status present."""
        found = Counter(run.status for run in self.runs)
        return {status: found[status] for status in STATUSES}

    def completed_from(self, directory: Path) -> StudyRecords:
        """This study, with the completed runs of an earlier report where it has none of its own.

        A plan says which runs belong to a study; without one, all of the report do.
        """
        earlier = published.completed_runs(directory)
        own = (run if run.status == "completed" else earlier.get(run.hash, run) for run in self.runs)
        runs = {run.hash: run for run in own}
        further = earlier.keys() - runs.keys()
        if self.planned and further:
            what = f"{len(further)} completed runs of {directory} are not in the plan of this study"
            warnings.warn(f"{what}, and left out", stacklevel=2)
        return replace(self, runs=tuple((runs if self.planned else earlier | runs).values()))

    def part(self, subset: Subset) -> StudyRecords:
        """The selected runs, and those whose configuration cannot be read, which may be among them."""
        chosen = set(map(id, subset.choose([run for run in self.runs if run.config])))
        kept = tuple(run for run in self.runs if not run.config or id(run) in chosen)
        return replace(self, runs=kept)


def read_records(directory: Path) -> StudyRecords:
    """Read a study directory, or a directory with the CSV files of an earlier report."""
    if not directory.is_dir():
        raise FileNotFoundError(f"no study directory {directory}")
    name = directory.resolve().name
    if published.is_published(directory):
        return StudyRecords(name, tuple(published.read_runs(directory)), planned=True)
    plan = _read_plan(directory)
    found = {path.name: read_run(path, plan.get(path.name)) for path in run_directories(directory)}
    if not plan:
        return StudyRecords(name, tuple(found.values()), planned=False)
    gone, stray = "planned, no record on disk", "in the directory, but not in the plan of this study"
    missing = (Run(key, config, "missing", error=gone) for key, config in plan.items())
    runs = [found.pop(run.hash, run) for run in missing]
    unplanned = (replace(run, status="unplanned", error=stray) for run in found.values())
    return StudyRecords(name, (*runs, *unplanned), planned=True)


def _read_plan(directory: Path) -> dict[str, Values]:
    """Hash -> configuration of every planned run, in the order of the plan; empty if it cannot be read."""
    try:
        entries = json.loads((directory / BOOKKEEPING / PLAN).read_bytes())
        plan: dict[str, Values] = {str(entry["hash"])[:16]: dict(entry["config"]) for entry in entries}
        for config in plan.values():
            check_config(config)
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return plan
