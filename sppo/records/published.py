"""A study in two CSV files, small enough for git: ``runs.csv`` and ``evaluations.csv``.

A report writes them, and a report can be made from them again without the run directories.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sppo.records.run_files import Evaluations
from sppo.records.runs import (
    STATUSES,
    DamagedError,
    Run,
    check_config,
    check_evaluations,
    integer,
    number,
)

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
    listed = list(runs)
    runs_path, evaluations_path = out / RUNS_CSV, out / EVALUATIONS_CSV
    with runs_path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(RUNS_HEADER)
        for run in listed:
            rows.writerow([
                run.hash, run.env, run.algorithm, run.seed, run.status, run.steps_done, run.wall_seconds,
                run.episode_restarts,
                run.error, run.git_revision, json.dumps(dict(run.versions), sort_keys=True),
                json.dumps(dict(run.config), sort_keys=True),
            ])  # fmt: skip
    with evaluations_path.open("w", newline="", encoding="utf-8") as file:
        file.write(",".join(EVALUATIONS_HEADER) + "\n")
        for run in listed:
            columns = (run.timesteps, run.episodes, run.returns, run.spreads)
            points = zip(*(column.tolist() for column in columns), strict=True)
            file.writelines(
                f"{run.hash},{number},{int(step)},{int(episodes)},{mean!r},{spread!r}\n"
                for number, (step, episodes, mean, spread) in enumerate(points, start=1)
            )
    return [runs_path, evaluations_path]


def read_runs(directory: Path) -> list[Run]:
    """The runs in the two files.

    :raises ValueError: if the files are not what :func:`write_runs` writes
    """
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    with (directory / RUNS_CSV).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lacking = sorted(set(RUNS_HEADER) - set(rows[0])) if rows else []
    if lacking:
        raise ValueError(f"{directory / RUNS_CSV}: columns {', '.join(lacking)} are missing")
    curves = _read_curves(directory / EVALUATIONS_CSV)
    return [_read_run(row, curves) for row in rows]


def completed_runs(directory: Path) -> dict[str, Run]:
    """Hash -> run, of the completed runs in the two files.

    :raises FileNotFoundError: if they are not there
    """
    if not is_published(directory):
        raise FileNotFoundError(f"no {RUNS_CSV} and {EVALUATIONS_CSV} of a report in {directory}")
    return {run.hash: run for run in read_runs(directory) if run.status == "completed"}


def _read_curves(path: Path) -> dict[str, Evaluations]:
    points: dict[str, list[list[float]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        if tuple(next(rows, ())) != EVALUATIONS_HEADER:
            raise ValueError(f"{path}: the first line is not {','.join(EVALUATIONS_HEADER)}")
        for row in rows:
            if len(row) != len(EVALUATIONS_HEADER):
                raise ValueError(f"{path}: line {rows.line_num} has {len(row)} entries")
            points.setdefault(row[0], []).append([float(value) for value in row[2:]])
    return {name: _evaluations(values) for name, values in points.items()}


def _evaluations(rows: list[list[float]]) -> Evaluations:
    timesteps, episodes, means, spreads = np.array(rows).reshape(-1, 4).T
    return Evaluations(timesteps.astype(np.int64), means, spreads, episodes.astype(np.int64))


def _read_run(row: Mapping[str, str], curves: Mapping[str, Evaluations]) -> Run:
    run = Run(
        hash=row["hash"],
        config=json.loads(row["config"]),
        status=row["status"],
        error=row["error"],
        steps_done=integer(row["timesteps"]),
        wall_seconds=number(row["wall_seconds"]),
        episode_restarts=integer(row["episode_restarts"]),
        versions=json.loads(row["versions"]),
        git_revision=row["git_revision"],
    )
    try:
        if run.status not in STATUSES:
            raise DamagedError(f"runs.csv has the status {run.status!r}")
        if run.status != "completed":
            return run
        check_config(run.config)
        found = curves.get(run.hash) or _evaluations([])
        check_evaluations(run.config, found)
    except DamagedError as problem:
        return replace(run, status="damaged", error=str(problem))
    return replace(run, **vars(found))
