"""Where a report comes from, and how its runs are made again: command, versions, seeds."""

from __future__ import annotations

import importlib.util
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sppo.records.runs import Run
from sppo.records.subset import format_seeds
from sppo.report.cells import AXES, Cell, grouped


@dataclass(frozen=True)
class Provenance:
    """What every figure and table carries.

    :param versions: what the runs recorded; a package that changed between runs has all of its versions, and
        one that some did not record is unknown too
    :param programs: what the report is made with
    :param study_file: path of the study's file, for commands that run its cells again; empty without one
    """

    command: str
    versions: str
    programs: str
    study_file: str = ""

    def footer(self, seeds: Iterable[int]) -> str:
        return f"Made by: {self.command} | Runs with: {self.versions} | Seeds: {seeds_text(seeds) or 'none'}"


def collect(command: str, runs: Sequence[Run], study_file: str = "") -> Provenance:
    recorded = [run.versions for run in runs if run.versions]
    parts = [
        f"{name} {'/'.join(sorted({str(versions.get(name, 'unknown')) for versions in recorded}))}"
        for name in sorted({name for versions in recorded for name in versions})
    ]
    revisions = sorted({run.git_revision[:12] for run in runs if run.git_revision})
    if revisions:
        more = f" and {len(revisions) - 3} more" if len(revisions) > 3 else ""
        parts.append(f"git {'/'.join(revisions[:3])}{more}")
    versions = ", ".join(parts) or "no versions recorded"
    return Provenance(command, versions, installed("sppo", "numpy", "matplotlib"), study_file)


def installed(*packages: str) -> str:
    """``name version`` of packages, for the programs that made a file."""
    return ", ".join(f"{name} {importlib.import_module(name).__version__}" for name in packages)


def require(*packages: str, extra: str) -> None:
    """Raise an error that names the extra if a package is not there, before minutes are spent on reading."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            hint = f'pip install ".[{extra}]" in the checkout'
            raise ModuleNotFoundError(f"{package} is not installed: {hint}")


def shown_path(path: Path) -> str:
    """A path as a reader elsewhere can use it: relative to the working directory, else its name."""
    inside = path.resolve().is_relative_to(Path.cwd())
    return path.resolve().relative_to(Path.cwd()).as_posix() if inside else path.name


def seeds_text(seeds: Iterable[int]) -> str:
    """Sorted seeds with runs of three or more contracted: ``0-4, 7``."""
    # seeds that follow each other are equally far from their places in the list
    groups = grouped(enumerate(sorted(set(seeds))), lambda pair: pair[1] - pair[0]).values()
    runs = [[str(seed) for _, seed in group] for group in groups]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def rerun_command(cell: Cell, study_file: str) -> str:
    """One command line that runs all completed seeds of a cell again, with the numbers that they had."""
    if not study_file or not cell.n:
        return ""
    first = cell.completed[0]
    words = ["python", "-m", "sppo", "study", "run", study_file, "--env", cell.env]
    words += ["--algorithm", first.algorithm]
    names = [name for name in AXES if first.parameters.get(name) is not None]
    names += [name.removeprefix("parameters.") for name in cell.varied if name.startswith("parameters.")]
    for name in names:
        value = first.parameters[name]
        text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
        words += ["--where", f"{name}={text}"]
    return shlex.join([*words, "--seeds", format_seeds({run.seed for run in cell.completed})])
