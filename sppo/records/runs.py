"""One run directory to one :class:`Run`: what became of it, and its evaluations if they can be believed.

A run whose files contradict themselves or the plan is ``damaged``: it is listed with the reason and
enters no mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from sppo.records import run_files
from sppo.records.config import same_run, settled
from sppo.records.parameters import Values
from sppo.records.run_files import Evaluations

#: what can become of a run, best first
STATUSES = ("completed", "unfinished", "failed", "damaged", "missing", "unplanned")


@dataclass(frozen=True, eq=False)
class Run(Evaluations):
    """One planned run.

    Only completed runs have evaluations: the curves of unfinished ones would bias every mean towards those
    that got far. A run that is on disk but not in the plan, say from before the study's file was changed, is
    ``unplanned`` and enters no mean either.
    """

    hash: str
    config: Values
    status: str
    error: str = ""
    traceback: str = ""
    steps_done: int = 0
    wall_seconds: float = float("nan")
    episode_restarts: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    git_revision: str = ""
    path: Path | None = None

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
    def parameters(self) -> Values:
        """The algorithm's, those included that came after the run; none where the record is damaged."""
        found = self.settled.get("parameters")
        return found if isinstance(found, Mapping) else {}

    @cached_property
    def settled(self) -> Values:
        """The configuration, whenever it was written: see :func:`sppo.records.config.settled`."""
        return settled(self.config)

    @property
    def final_return(self) -> float:
        """Mean return of the last evaluation."""
        return float(self.returns[-1])


def read_run(path: Path, planned: Values | None = None) -> Run:
    """The run in a directory.

    :param planned: the run's configuration by the study's plan, if that is on record; it stands in for
        one that cannot be read, so that the run is counted in its place
    """
    header = run_files.read_json(path / run_files.CONFIG) or {}
    versions, revision = header.get("versions"), str(header.get("git_revision") or "")
    run = Run(path.name, planned or {}, "damaged", path=path, git_revision=revision)
    run = replace(run, versions=versions if isinstance(versions, dict) else {})
    try:
        _check_header(header, planned)
        run = replace(run, config=header["config"])
        if not str(header.get("hash", path.name)).startswith(path.name):
            raise ValueError(f"config.json belongs to the run {header['hash']}")
        return _with_outcome(run, path)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        return replace(run, error=str(error) if isinstance(error, ValueError) else repr(error))


def _check_header(header: Values, planned: Values | None) -> None:
    if not isinstance(header.get("config"), dict):
        raise ValueError("config.json is missing or unreadable")
    check_config(header["config"], "config.json ")
    schema = header.get("schema", 1)
    if not isinstance(schema, int) or schema > run_files.SCHEMA:
        reason = f"is of version {schema!r}, this sppo reads {run_files.SCHEMA}: upgrade it"
        raise ValueError(f"config.json {reason}")
    if planned is not None and not same_run(header["config"], planned):
        raise ValueError("config.json differs from the plan of the study")


def check_config(config: Values, source: str = "") -> None:
    """Refuse a configuration that cannot be one of a run; the reason begins with its source."""
    numbers = ("seed", "total_timesteps", "evaluations", "eval_episodes")
    kinds = {"env": str, "algorithm": str, **dict.fromkeys(numbers, int), "parameters": dict}
    if missing := [name for name in kinds if name not in config]:
        raise ValueError(f"{source}lacks {', '.join(missing)}")
    for name, kind in kinds.items():
        if type(config[name]) is not kind or (kind is int and not 0 <= config[name] < 2**53):
            raise ValueError(f"{source}has an impossible {name}")


def _with_outcome(run: Run, path: Path) -> Run:
    result, failure = (run_files.read_json(path / name) for name in (run_files.RESULT, run_files.FAILURE))
    if result is not None:
        return _completed(run, path, result)
    # an unreadable result or failure counts as absent for the runner, which would run it again; a report
    # has to say that there was one
    for name in (run_files.RESULT, *([run_files.FAILURE] if failure is None else [])):
        if (path / name).exists():
            raise ValueError(f"{name} is unreadable")
    if failure is not None:
        return replace(
            run,
            status="failed",
            error=str(failure.get("error", "no error recorded")),
            traceback=str(failure.get("traceback", "")),
            steps_done=int(failure.get("timesteps", 0)),
        )
    done = int((run_files.read_json(path / run_files.PROGRESS) or {}).get("timesteps", 0))
    reason = f"in progress or interrupted after {done} of {run.config['total_timesteps']} steps"
    return replace(run, status="unfinished", error=reason, steps_done=done)


def _completed(run: Run, path: Path, result: Values) -> Run:
    try:
        found = run_files.read_evaluations(path)
    except (ValueError, OverflowError, OSError) as error:
        reason = str(error).replace(str(path) + "/", "")
        raise ValueError(f"evaluations.csv cannot be read: {reason}") from error
    check_evaluations(run.config, found)
    final, last = float(result["final_return"]), found.returns[-1]
    if abs(final - last) > 1e-6 * max(1.0, abs(final)):
        raise ValueError(f"result.json has the final return {final:g}, evaluations.csv {last:g}")
    return replace(
        run,
        status="completed",
        steps_done=int(result["timesteps"]),
        wall_seconds=float(result["wall_seconds"]),
        episode_restarts=int(result.get("episode_restarts", 0)),
        **vars(found),
    )


def check_evaluations(config: Values, found: Evaluations) -> None:
    """Refuse evaluations that are not those of a completed run with this configuration."""
    done, planned, per_evaluation = len(found.returns), config["evaluations"], config["eval_episodes"]
    if not done:
        raise ValueError("completed without a single evaluation")
    if done < planned:
        raise ValueError(f"completed with {done} of {planned} evaluations")
    if found.episodes.min() < per_evaluation:
        short = int(found.episodes.argmin())
        raise ValueError(f"evaluation {short + 1} has {found.episodes[short]} of {per_evaluation} episodes")
    if not np.isfinite(found.returns).all():
        raise ValueError("a return is not finite")
    if (np.diff(found.timesteps) <= 0).any():
        raise ValueError("evaluations are not in the order of their timesteps")
