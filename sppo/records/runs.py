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

from sppo.records import run_files
from sppo.records.config import same_run

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
    def parameters(self) -> Mapping[str, Any]:
        return self.config.get("parameters", {})

    @property
    def final_return(self) -> float:
        """Mean return of the last evaluation."""
        return float(self.returns[-1])


def read_run(path: Path, planned: Mapping[str, Any] | None = None) -> Run:
    """The run in a directory.

    :param planned: the run's configuration by the study's plan, if that is on record; it stands in for
        one that cannot be read, so that the run is counted in its place
    """
    header = run_files.read_json(path / run_files.CONFIG)
    config = (header or {}).get("config")
    if header is None or not isinstance(config, dict):
        reason = "config.json is missing or unreadable"
        return Run(path.name, planned or {}, "damaged", error=reason, path=path)
    versions = header.get("versions")
    common: dict[str, Any] = {
        "hash": path.name,
        "config": config,
        "versions": versions if isinstance(versions, dict) else {},
        "git_revision": str(header.get("git_revision") or ""),
        "path": path,
    }
    problem = config_problem(config) or _schema_problem(header)
    if problem or (planned is not None and not same_run(config, planned)):
        common["config"] = planned or {}
        reason = f"config.json {problem or 'differs from the plan of the study'}"
        return Run(status="damaged", error=reason, **common)
    result = run_files.read_json(path / run_files.RESULT)
    failure = None if result is not None else run_files.read_json(path / run_files.FAILURE)
    broken = _broken_files(path, str(header.get("hash", path.name)), result, failure)
    if broken:
        return Run(status="damaged", error=broken, **common)
    if result is not None:
        return _completed(path, config, result, common)
    if failure is not None:
        return Run(
            status="failed",
            error=str(failure.get("error", "no error recorded")),
            traceback=str(failure.get("traceback", "")),
            steps_done=integer(failure.get("timesteps")),
            **common,
        )
    progress = run_files.read_json(path / run_files.PROGRESS) or {}
    done = integer(progress.get("timesteps"))
    reason = f"in progress or interrupted after {done} of {config['total_timesteps']} steps"
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


def _schema_problem(header: Mapping[str, Any]) -> str:
    schema = header.get("schema", 1)
    if isinstance(schema, int) and schema <= run_files.SCHEMA:
        return ""
    return f"is of version {schema!r}, this sppo reads {run_files.SCHEMA}: upgrade it"


def _completed(
    path: Path, config: Mapping[str, Any], result: Mapping[str, Any], common: dict[str, Any]
) -> Run:
    try:
        found = run_files.read_evaluations(path)
    except (ValueError, OverflowError, OSError) as error:
        reason = str(error).replace(str(path) + "/", "")
        return Run(status="damaged", error=f"evaluations.csv cannot be read: {reason}", **common)
    problem = contradiction(config, found.timesteps, found.returns, found.episodes)
    final = number(result.get("final_return"))
    if not problem and abs(final - found.returns[-1]) > 1e-6 * max(1.0, abs(final)):
        problem = f"result.json has the final return {final:g}, evaluations.csv {found.returns[-1]:g}"
    if problem:
        return Run(status="damaged", error=problem, **common)
    return Run(
        status="completed",
        steps_done=integer(result.get("timesteps")),
        wall_seconds=number(result.get("wall_seconds")),
        episode_restarts=integer(result.get("episode_restarts")),
        **vars(found),
        **common,
    )


def _broken_files(
    path: Path, identity: str, result: dict[str, Any] | None, failure: dict[str, Any] | None
) -> str:
    """Why the files that state the run's identity and outcome cannot be believed, or nothing."""
    if not identity.startswith(path.name):
        return f"config.json belongs to the run {identity}"
    # an unreadable result or failure counts as absent for the runner, which would run it again; a report
    # has to say that there was one
    for name, parsed in ((run_files.RESULT, result), (run_files.FAILURE, failure)):
        if parsed is None and result is None and (path / name).exists():
            return f"{name} is unreadable"
    return ""


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
