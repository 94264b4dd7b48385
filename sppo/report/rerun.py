"""The command that runs a cell of a study again."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

from sppo.records.subset import format_seeds
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
    words = ["python", "-m", "sppo", "study", "run", study_file, "--env", cell.env]
    words += ["--algorithm", first.algorithm]
    names = [name for name in AXES if first.parameters.get(name) is not None]
    names += [name.removeprefix("parameters.") for name in cell.varied if name.startswith("parameters.")]
    for name in names:
        value = first.parameters[name]
        text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
        words += ["--where", f"{name}={text}"]
    return shlex.join([*words, "--seeds", format_seeds({run.seed for run in cell.completed})])
