"""A study in two CSV files, small enough for git: ``runs.csv`` and ``evaluations.csv``.

A report writes them, and a report can be made from them again without the run directories.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sppo.records.runs import STATUSES, Run, check_config, check_evaluations

RUNS_CSV = "runs.csv"
EVALUATIONS_CSV = "evaluations.csv"
RUNS_HEADER = (
    "hash", "env", "algorithm", "seed", "status", "timesteps", "wall_seconds", "episode_restarts",
    "error", "git_revision", "versions", "config",
)  # fmt: skip
EVALUATIONS_HEADER = ("hash", "evaluation", "timesteps", "episodes", "mean_return", "std_return")


def is_published(directory: Path) -> bool:
    return (directory / RUNS_CSV).is_file() and (directory / EVALUATIONS_CSV).is_file()


def write_runs(runs: Iterable[Run], out: Path) -> list[Path]:
    """Write every run and every evaluation as the two CSV files that :func:`read_runs` reads."""
    rows: list[tuple[object, ...]] = [RUNS_HEADER]
    points: list[tuple[object, ...]] = [EVALUATIONS_HEADER]
    for run in runs:
        versions, config = (json.dumps(dict(values), sort_keys=True) for values in (run.versions, run.config))
        rows.append((
            run.hash, run.env, run.algorithm, run.seed, run.status, run.steps_done, run.wall_seconds,
            run.episode_restarts, run.error, run.git_revision, versions, config,
        ))  # fmt: skip
        columns = (run.timesteps, run.episodes, run.returns, run.spreads)
        curve = zip(*(column.tolist() for column in columns), strict=True)
        points += [(run.hash, index, *point) for index, point in enumerate(curve, start=1)]
    tables = {out / RUNS_CSV: rows, out / EVALUATIONS_CSV: points}
    for path, table in tables.items():
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
    return list(tables)


def read_runs(directory: Path) -> list[Run]:
    """The runs in the two files; ``ValueError`` if they are not what :func:`write_runs` writes."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    curves: dict[str, list[list[float]]] = {}
    for row in _rows(directory / EVALUATIONS_CSV, EVALUATIONS_HEADER):
        curves.setdefault(row["hash"], []).append([float(row[name]) for name in EVALUATIONS_HEADER[2:]])
    rows = _rows(directory / RUNS_CSV, RUNS_HEADER)
    return [_read_run(row, np.array(curves.get(row["hash"], [])).reshape(-1, 4)) for row in rows]


def completed_runs(directory: Path) -> dict[str, Run]:
    """Hash -> run, of the completed runs in the two files, which have to be there."""
    if not is_published(directory):
        raise FileNotFoundError(f"no {RUNS_CSV} and {EVALUATIONS_CSV} of a report in {directory}")
    return {run.hash: run for run in read_runs(directory) if run.status == "completed"}


def _rows(path: Path, header: Sequence[str]) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, restval="")
        if lacking := [name for name in header if name not in (reader.fieldnames or ())]:
            raise ValueError(f"{path}: columns {', '.join(lacking)} are missing")
        return list(reader)


def _read_run(row: Mapping[str, str], curve: NDArray[np.float64]) -> Run:
    run = Run(
        hash=row["hash"],
        config=json.loads(row["config"]),
        status=row["status"],
        error=row["error"],
        steps_done=int(row["timesteps"]),
        wall_seconds=float(row["wall_seconds"]),
        episode_restarts=int(row["episode_restarts"]),
        versions=json.loads(row["versions"]),
        git_revision=row["git_revision"],
    )
    if run.status not in STATUSES:
        return replace(run, status="damaged", error=f"runs.csv has the status {run.status!r}")
    if run.status != "completed":
        return run
    steps, episodes = curve[:, :2].astype(np.int64).T
    complete = replace(run, timesteps=steps, episodes=episodes, returns=curve[:, 2], spreads=curve[:, 3])
    try:
        check_config(run.config)
        check_evaluations(run.config, complete)
    except ValueError as problem:
        return replace(run, status="damaged", error=str(problem))
    return complete
