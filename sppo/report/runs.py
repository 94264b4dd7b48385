"""One run directory to one :class:`Run`: what became of it, and its evaluations if they can be believed.

A run whose files contradict themselves or the plan is ``damaged``: it is listed with the reason and
enters no mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sppo.study import records

#: what can become of a run, best first
STATUSES = ("completed", "unfinished", "failed", "damaged", "missing", "unplanned")
EMPTY = np.empty(0)


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
    episode_restarts: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    git_revision: str = ""
    path: Path | None = None
    timesteps: NDArray[Any] = field(default_factory=lambda: EMPTY)
    returns: NDArray[Any] = field(default_factory=lambda: EMPTY)
    spreads: NDArray[Any] = field(default_factory=lambda: EMPTY)
    episodes: NDArray[Any] = field(default_factory=lambda: EMPTY)

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


def read_run(path: Path, planned: Mapping[str, Any] | None = None) -> Run:
    """The run in a directory.

    :param planned: the run's configuration by the study's plan, if that is on record; it stands in for
        one that cannot be read, so that the run is counted in its place
    """
    record = records.read_run(path)
    if record is None:
        reason = "config.json is missing or unreadable"
        return Run(path.name, planned or {}, "damaged", error=reason, path=path)
    common: dict[str, Any] = {
        "hash": path.name,
        "config": record.config,
        "versions": record.versions if isinstance(record.versions, dict) else {},
        "git_revision": str(record.git_revision or ""),
        "path": path,
    }
    problem = config_problem(record.config)
    if problem or (planned is not None and record.config != planned):
        common["config"] = planned or {}
        reason = f"config.json {problem or 'differs from the plan of the study'}"
        return Run(status="damaged", error=reason, **common)
    broken = _broken_files(path, record)
    if broken:
        return Run(status="damaged", error=broken, **common)
    if record.status == "completed":
        return _completed(record, common)
    if record.status == "failed":
        failure = record.failure or {}
        return Run(
            status="failed",
            error=str(failure.get("error", "no error recorded")),
            traceback=str(failure.get("traceback", "")),
            steps_done=integer(failure.get("timesteps")),
            **common,
        )
    progress = records.read_json(path / records.PROGRESS) or {}
    done = integer(progress.get("timesteps"))
    reason = f"in progress or interrupted after {done} of {record.config['total_timesteps']} steps"
    return Run(status="unfinished", error=reason, steps_done=done, **common)


def config_problem(config: Mapping[str, Any]) -> str:
    """Why a configuration cannot be one of a run, or nothing."""
    kinds: dict[str, type] = {
        "env": str, "algorithm": str, "seed": int, "total_timesteps": int, "evaluations": int,
        "eval_episodes": int, "parameters": dict,
    }  # fmt: skip
    missing = [name for name in kinds if name not in config]
    if missing:
        return f"lacks {', '.join(missing)}"
    for name, kind in kinds.items():
        if type(config[name]) is not kind or (kind is int and not 0 <= config[name] < 2**53):
            return f"has an impossible {name}"
    return ""


def _completed(record: records.RunRecord, common: dict[str, Any]) -> Run:
    result = record.result or {}
    try:
        rows = record.evaluations()
        timesteps, returns, spreads, episodes = _by_evaluation(rows)
    except (ValueError, OverflowError, OSError) as error:
        reason = str(error).replace(str(record.path) + "/", "")
        return Run(status="damaged", error=f"evaluations.csv cannot be read: {reason}", **common)
    problem = contradiction(record.config, timesteps, returns, episodes)
    final = number(result.get("final_return"))
    if not problem and abs(final - returns[-1]) > 1e-6 * max(1.0, abs(final)):
        problem = f"result.json has the final return {final:g}, evaluations.csv {returns[-1]:g}"
    if problem:
        return Run(status="damaged", error=problem, **common)
    return Run(
        status="completed",
        steps_done=integer(result.get("timesteps")),
        wall_seconds=number(result.get("wall_seconds")),
        episode_restarts=integer(result.get("episode_restarts")),
        timesteps=timesteps,
        returns=returns,
        spreads=spreads,
        episodes=episodes,
        **common,
    )


def _broken_files(path: Path, record: records.RunRecord) -> str:
    """Why the files that state the run's identity and outcome cannot be believed, or nothing."""
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
    if not np.isfinite(rows.returns).all():
        raise ValueError("a return is not finite")
    numbers, first, index = np.unique(rows.evaluation, return_index=True, return_inverse=True)
    episodes = np.bincount(index, minlength=len(numbers))
    means = np.bincount(index, weights=rows.returns, minlength=len(numbers)) / np.maximum(episodes, 1)
    # episodes are compared with their own mean first: squares of large returns would lose the digits
    squares = np.bincount(index, weights=(rows.returns - means[index]) ** 2, minlength=len(numbers))
    return rows.timesteps[first], means, np.sqrt(squares / np.maximum(episodes, 1)), episodes


def contradiction(
    config: Mapping[str, Any], timesteps: NDArray[Any], returns: NDArray[Any], episodes: NDArray[Any]
) -> str:
    """Why a completed run's evaluations are not those of its configuration, or nothing."""
    planned, per_evaluation = config.get("evaluations"), config.get("eval_episodes")
    if not len(returns):
        return "completed without a single evaluation"
    if isinstance(planned, int) and len(returns) < planned:
        return f"completed with {len(returns)} of {planned} evaluations"
    if isinstance(per_evaluation, int) and episodes.min() < per_evaluation:
        number = int(episodes.argmin()) + 1
        return f"evaluation {number} has {episodes.min()} of {per_evaluation} episodes"
    if not np.isfinite(returns).all():
        return "a return is not finite"
    if (np.diff(timesteps) <= 0).any():
        return "evaluations are not in the order of their timesteps"
    return ""


def integer(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
