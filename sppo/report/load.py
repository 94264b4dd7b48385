"""A study's files as one object: every run that was planned, whatever became of it.

Two forms are read: a study directory as the runner leaves it (one directory per run, see
:mod:`sppo.study.records`), and the two files ``runs.csv`` and ``evaluations.csv`` that a report writes,
so that a published report can be made again without the run directories.

A run whose files contradict themselves is ``damaged``: it is listed with the reason and enters no mean.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sppo.study import records

#: what can become of a planned run, best first
STATUSES = ("completed", "unfinished", "failed", "damaged", "missing", "unplanned")
RUNS_CSV = "runs.csv"
EVALUATIONS_CSV = "evaluations.csv"
RUNS_HEADER = (
    "hash", "env", "algorithm", "seed", "status", "timesteps", "wall_seconds", "error",
    "git_revision", "versions", "config",
)  # fmt: skip
EVALUATIONS_FIELDS = ("hash", "evaluation", "timesteps", "episodes", "mean_return", "std_return")

_EMPTY = np.empty(0)


@dataclass(frozen=True, eq=False)
class Run:
    """One planned run.

    The four arrays have one element per evaluation and are filled for completed runs only: the curves of
    unfinished runs would bias every mean towards those that got far. A run that is on disk but not in the
    plan, say from before the study's file was changed, is ``unplanned`` and enters no mean either.
    """

    hash: str
    config: Mapping[str, Any]
    status: str
    error: str = ""
    traceback: str = ""
    steps_done: int = 0
    wall_seconds: float = float("nan")
    versions: Mapping[str, str] = field(default_factory=dict)
    git_revision: str = ""
    path: Path | None = None
    timesteps: NDArray[Any] = field(default_factory=lambda: _EMPTY)
    returns: NDArray[Any] = field(default_factory=lambda: _EMPTY)
    spreads: NDArray[Any] = field(default_factory=lambda: _EMPTY)
    episodes: NDArray[Any] = field(default_factory=lambda: _EMPTY)

    @property
    def env(self) -> str:
        return str(self.config.get("env", "?"))

    @property
    def algorithm(self) -> str:
        return str(self.config.get("algorithm", "?"))

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def final_return(self) -> float:
        """Mean return of the last evaluation."""
        return float(self.returns[-1])


@dataclass(frozen=True, eq=False)
class Study:
    """All runs of a study; ``planned`` says whether the plan was on record or inferred from the seeds."""

    name: str
    runs: tuple[Run, ...]
    planned: bool

    def counts(self) -> dict[str, int]:
        """Number of runs by status, every status present."""
        found = Counter(run.status for run in self.runs)
        return {status: found[status] for status in STATUSES}


def load_study(directory: Path) -> Study:
    """Read a study directory, or a directory with the CSV files of an earlier report."""
    if not directory.is_dir():
        raise FileNotFoundError(f"no study directory {directory}")
    if (directory / RUNS_CSV).is_file() and (directory / EVALUATIONS_CSV).is_file():
        return _load_published(directory)
    runs = [_read_run(path) for path in records.run_directories(directory)]
    plan = _read_plan(directory)
    if plan is not None:
        known = {name for name, _ in plan}
        stray = "in the directory, but not in the plan of this study"
        runs = [run if run.hash in known else replace(run, status="unplanned", error=stray) for run in runs]
        present = {run.hash for run in runs}
        runs += [
            Run(hash=name, config=config, status="missing", error="planned, no record on disk")
            for name, config in plan
            if name not in present
        ]
        order = {name: index for index, (name, _) in enumerate(plan)}
        runs.sort(key=lambda run: order.get(run.hash, len(order)))
    else:
        runs += _inferred_missing(runs)
    return Study(directory.resolve().name, tuple(runs), planned=plan is not None)


def write_records(study: Study, out: Path) -> list[Path]:
    """Write every run and every evaluation as the two CSV files that :func:`load_study` reads."""
    runs_path, evaluations_path = out / RUNS_CSV, out / EVALUATIONS_CSV
    with runs_path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(RUNS_HEADER)
        for run in study.runs:
            rows.writerow([
                run.hash, run.env, run.algorithm, run.seed, run.status, run.steps_done, run.wall_seconds,
                run.error, run.git_revision, json.dumps(dict(run.versions), sort_keys=True),
                json.dumps(dict(run.config), sort_keys=True),
            ])  # fmt: skip
    with evaluations_path.open("w", newline="") as file:
        file.write(",".join(EVALUATIONS_FIELDS) + "\n")
        for run in study.runs:
            points = zip(
                run.timesteps.tolist(),
                run.episodes.tolist(),
                run.returns.tolist(),
                run.spreads.tolist(),
                strict=True,
            )
            file.writelines(
                f"{run.hash},{number},{int(step)},{int(episodes)},{mean!r},{spread!r}\n"
                for number, (step, episodes, mean, spread) in enumerate(points, start=1)
            )
    return [runs_path, evaluations_path]


def _read_run(path: Path) -> Run:
    record = records.read_run(path)
    if record is None:
        return Run(path.name, {}, "damaged", error="config.json is missing or unreadable", path=path)
    name = path.name
    common: dict[str, Any] = {
        "hash": name,
        "config": record.config,
        "versions": record.versions if isinstance(record.versions, dict) else {},
        "git_revision": str(record.git_revision or ""),
        "path": path,
    }
    broken = _broken_files(path, record)
    if broken:
        return Run(status="damaged", error=broken, **common)
    if record.status == "failed":
        failure = record.failure or {}
        return Run(
            status="failed",
            error=str(failure.get("error", "no error recorded")),
            traceback=str(failure.get("traceback", "")),
            steps_done=_integer(failure.get("timesteps")),
            **common,
        )
    if record.status != "completed":
        progress = records.read_json(path / records.PROGRESS) or {}
        done, total = _integer(progress.get("timesteps")), record.config.get("total_timesteps", "?")
        return Run(
            status="unfinished",
            error=f"in progress or interrupted after {done} of {total} steps",
            steps_done=done,
            **common,
        )
    return _completed(record, common)


def _completed(record: records.RunRecord, common: dict[str, Any]) -> Run:
    result = record.result or {}
    try:
        rows = record.evaluations()
        timesteps, returns, spreads, episodes = _by_evaluation(rows)
    except (ValueError, OSError) as error:
        reason = str(error).replace(str(record.path) + "/", "")
        return Run(status="damaged", error=f"evaluations.csv cannot be read: {reason}", **common)
    problem = _contradiction(record.config, timesteps, returns, episodes)
    final = _number(result.get("final_return"))
    if not problem and abs(final - returns[-1]) > 1e-6 * max(1.0, abs(final)):
        problem = f"result.json has the final return {final:g}, evaluations.csv {returns[-1]:g}"
    if problem:
        return Run(status="damaged", error=problem, **common)
    return Run(
        status="completed",
        steps_done=_integer(result.get("timesteps")),
        wall_seconds=_number(result.get("wall_seconds")),
        timesteps=timesteps,
        returns=returns,
        spreads=spreads,
        episodes=episodes,
        **common,
    )


def _broken_files(path: Path, record: records.RunRecord) -> str:
    """Why the files that state the run's identity and outcome cannot be believed, or nothing."""
    missing = [key for key in ("env", "algorithm", "seed") if key not in record.config]
    if missing:
        return f"config.json lacks {', '.join(missing)}"
    if not isinstance(record.config["seed"], int):
        return f"config.json has the seed {record.config['seed']!r}"
    if not record.hash.startswith(path.name):
        return f"config.json belongs to the run {record.hash}"
    # an unreadable result or failure counts as absent for the runner, which would run it again; a report
    # has to say that there was one
    for name, parsed in ((records.RESULT, record.result), (records.FAILURE, record.failure)):
        if parsed is None and record.result is None and (path / name).exists():
            return f"{name} is unreadable"
    return ""


def _by_evaluation(rows: records.Evaluations) -> tuple[NDArray[Any], ...]:
    """Per evaluation: timesteps, mean return, standard deviation over its episodes, episodes."""
    numbers, first, index = np.unique(rows.evaluation, return_index=True, return_inverse=True)
    episodes = np.bincount(index, minlength=len(numbers))
    means = np.bincount(index, weights=rows.returns, minlength=len(numbers)) / np.maximum(episodes, 1)
    squares = np.bincount(index, weights=(rows.returns - means[index]) ** 2, minlength=len(numbers))
    return rows.timesteps[first], means, np.sqrt(squares / np.maximum(episodes, 1)), episodes


def _contradiction(
    config: Mapping[str, Any], timesteps: NDArray[Any], returns: NDArray[Any], episodes: NDArray[Any]
) -> str:
    planned, per_evaluation = config.get("evaluations"), config.get("eval_episodes")
    if not len(returns):
        return "completed without a single evaluation"
    if isinstance(planned, int) and len(returns) < planned:
        return f"completed with {len(returns)} of {planned} evaluations"
    if isinstance(per_evaluation, int) and episodes.min() < per_evaluation:
        number = int(episodes.argmin()) + 1
        return f"evaluation {number} has {episodes.min()} of {per_evaluation} episodes"
    if not np.isfinite(returns).all():
        return f"evaluation {int(np.argmin(np.isfinite(returns))) + 1} has a return that is not finite"
    if (np.diff(timesteps) <= 0).any():
        return "evaluations are not in the order of their timesteps"
    return ""


def _read_plan(directory: Path) -> list[tuple[str, dict[str, Any]]] | None:
    try:
        entries = json.loads((directory / ".study" / "plan.json").read_bytes())
        plan = [(str(entry["hash"])[:16], dict(entry["config"])) for entry in entries]
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


def _load_published(directory: Path) -> Study:
    with (directory / RUNS_CSV).open(newline="") as file:
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        rows = list(csv.DictReader(file))
    if rows and set(RUNS_HEADER) - set(rows[0]):
        raise ValueError(
            f"{directory / RUNS_CSV}: columns {sorted(set(RUNS_HEADER) - set(rows[0]))} are missing"
        )
    curves = _published_curves(directory / EVALUATIONS_CSV)
    return Study(directory.resolve().name, tuple(_published_run(row, curves) for row in rows), planned=True)


def _published_curves(path: Path) -> dict[str, NDArray[np.float64]]:
    points: dict[str, list[list[float]]] = {}
    with path.open(newline="") as file:
        rows = csv.reader(file)
        if tuple(next(rows, ())) != EVALUATIONS_FIELDS:
            raise ValueError(f"{path}: the first line is not {','.join(EVALUATIONS_FIELDS)}")
        for row in rows:
            points.setdefault(row[0], []).append([float(value) for value in row[2:]])
    return {name: np.array(values).T for name, values in points.items()}


def _published_run(row: Mapping[str, str], curves: Mapping[str, NDArray[np.float64]]) -> Run:
    status, error = row["status"], row["error"]
    curve = curves.get(row["hash"], np.empty((4, 0)))
    config = json.loads(row["config"])
    if status == "completed":
        problem = _contradiction(config, curve[0], curve[2], curve[1])
        status, error = ("damaged", problem) if problem else (status, error)
    empty = status != "completed"
    return Run(
        hash=row["hash"],
        config=config,
        status=status,
        error=error,
        steps_done=_integer(row["timesteps"]),
        wall_seconds=_number(row["wall_seconds"]),
        versions=json.loads(row["versions"]),
        git_revision=row["git_revision"],
        timesteps=_EMPTY if empty else curve[0].astype(np.int64),
        episodes=_EMPTY if empty else curve[1].astype(np.int64),
        returns=_EMPTY if empty else curve[2],
        spreads=_EMPTY if empty else curve[3],
    )


def seeds_text(seeds: Iterable[int]) -> str:
    """Sorted seeds with runs of three or more contracted: ``0-4, 7``."""
    ordered = sorted(set(seeds))
    groups: list[list[int]] = []
    for seed in ordered:
        if groups and seed == groups[-1][-1] + 1:
            groups[-1].append(seed)
        else:
            groups.append([seed])
    parts = []
    for group in groups:
        parts += [f"{group[0]}-{group[-1]}"] if len(group) > 2 else [str(seed) for seed in group]
    return ", ".join(parts)


def _integer(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
