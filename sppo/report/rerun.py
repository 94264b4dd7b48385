"""The command that runs a cell of a study again."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from sppo.report.cells import AXES, Cell
from sppo.report.provenance import shown_path

#: the study's own copy of its file, in the study directory and beside a report
STUDY_FILE = "study.toml"


def publish_study_file(study_dir: Path, out: Path) -> str:
    """Copy the study's file beside its report; returns its path as a reader writes it, or nothing."""
    source, copy = study_dir / STUDY_FILE, out / STUDY_FILE
    if source.is_file() and not (copy.exists() and copy.samefile(source)):
        shutil.copyfile(source, copy)
    return shown_path(copy) if copy.is_file() else ""


def rerun_command(cell: Cell, study_file: str) -> str:
    """One command line that runs all completed seeds of a cell again, with the numbers that they had."""
    if not study_file or not cell.n:
        return ""
    first = cell.completed[0]
    parameters = first.config["parameters"]
    words = ["python", "-m", "sppo", "study", "run", study_file, "--env", cell.env]
    words += ["--algorithm", first.algorithm]
    names = [name for name in AXES if parameters.get(name) is not None]
    names += [name.removeprefix("parameters.") for name in cell.varied if name.startswith("parameters.")]
    for name in names:
        value = parameters[name]
        text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
        words += ["--where", f"{name}={text}"]
    return shlex.join([*words, "--seeds", _seeds([run.seed for run in cell.completed])])


def _seeds(seeds: Sequence[int]) -> str:
    """``0:5`` for 0 to 4, else ``0,2,7``."""
    ordered = sorted(seeds)
    together = len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1))
    return f"{ordered[0]}:{ordered[-1] + 1}" if together else ",".join(map(str, ordered))
