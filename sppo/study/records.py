"""The files of a study, read back: plain data for whoever plans, watches or reports.

A study directory holds one directory per run, named by the first 16 hexadecimal digits of the hash of
the run's frozen configuration::

    runs/<study>/
      study.toml            a copy of the study file
      .study/               the runner's own bookkeeping
      <hash>/
        config.json         {"config": {...}, "hash": ..., "versions": {...}, "git_revision": ...}
        evaluations.csv     evaluation,timesteps,episode,return,length; one row per evaluation episode
        tensorboard/        event files
        progress.json       {"timesteps": ..., "total_timesteps": ..., "wall_seconds": ...}, while it runs
        model.zip           the final model
        vecnormalize.pkl    the final normalisation statistics
        restarts.txt        steps at which episodes had to be started again (environments that cannot
                            be captured); their number is result.json's "episode_restarts"
        result.json         {"status": "completed", ...}; written last
        failure.json        {"status": "failed", "error": ..., "traceback": ...}; only if it failed

Only the standard library and NumPy are imported here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BOOKKEEPING = ".study"
CONFIG = "config.json"
RESULT = "result.json"
FAILURE = "failure.json"
PROGRESS = "progress.json"
EVALUATIONS = "evaluations.csv"
EVALUATIONS_HEADER = "evaluation,timesteps,episode,return,length"
TENSORBOARD = "tensorboard"
MODEL = "model.zip"
VECNORMALIZE = "vecnormalize.pkl"
CHECKPOINTS = "checkpoints"
RESTARTS = "restarts.txt"

_RUN_NAME = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Evaluations:
    """The evaluation episodes of one run, in the order they were made; all arrays have one length.

    ``evaluation`` counts from 1, ``episode`` from 0.
    """

    evaluation: np.ndarray
    timesteps: np.ndarray
    episode: np.ndarray
    returns: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        return len(self.returns)

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Timesteps of each evaluation and the mean return of its episodes."""
        numbers, first, index = np.unique(self.evaluation, return_index=True, return_inverse=True)
        sums = np.bincount(index, weights=self.returns, minlength=len(numbers))
        counts = np.bincount(index, minlength=len(numbers))
        return self.timesteps[first], sums / counts


@dataclass(frozen=True)
class RunRecord:
    """One run as its files describe it.

    ``status`` is ``"completed"``, ``"failed"`` or ``"unfinished"`` (in progress, or interrupted).
    """

    path: Path
    config: dict[str, Any]
    hash: str
    status: str
    result: dict[str, Any] | None
    failure: dict[str, Any] | None
    versions: dict[str, str]
    git_revision: str | None

    def evaluations(self) -> Evaluations:
        """The run's evaluation episodes so far."""
        return read_evaluations(self.path)


def read_json(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The object in a JSON file; ``None`` if there is no such file or it holds no JSON object.

    Records are written atomically, so half a file means that somebody else tampered with it: such a
    record counts as absent.
    """
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def read_run(path: str | os.PathLike[str]) -> RunRecord | None:
    """The record of one run directory; ``None`` if it has no readable ``config.json``."""
    path = Path(path)
    header = read_json(path / CONFIG)
    if header is None or not isinstance(header.get("config"), dict):
        return None
    result = read_json(path / RESULT)
    failure = None if result is not None else read_json(path / FAILURE)
    if result is not None:
        status = "completed"
    else:
        status = "failed" if failure is not None else "unfinished"
    return RunRecord(
        path=path,
        config=header["config"],
        hash=str(header.get("hash", path.name)),
        status=status,
        result=result,
        failure=failure,
        versions=header.get("versions", {}),
        git_revision=header.get("git_revision"),
    )


def run_directories(study: str | os.PathLike[str]) -> list[Path]:
    """The run directories of a study directory, sorted by name."""
    try:
        with os.scandir(study) as entries:
            names = [entry.name for entry in entries if _RUN_NAME.fullmatch(entry.name)]
    except FileNotFoundError:
        return []
    return [Path(study, name) for name in sorted(names)]


def scan(study: str | os.PathLike[str]) -> Iterator[RunRecord]:
    """Every run of a study directory, sorted by name; directories without a configuration are skipped."""
    for path in run_directories(study):
        record = read_run(path)
        if record is not None:
            yield record


def read_evaluations(path: str | os.PathLike[str]) -> Evaluations:
    """The evaluation episodes of a run directory; empty if there is none yet.

    A last line without its newline (a run killed while writing) is left out.
    """
    try:
        text = Path(path, EVALUATIONS).read_text()
    except FileNotFoundError:
        text = ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    if lines and lines[0] != EVALUATIONS_HEADER:
        raise ValueError(f"{Path(path, EVALUATIONS)}: the first line is not {EVALUATIONS_HEADER!r}")
    rows = [line.split(",") for line in lines[1:]]
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    return Evaluations(
        evaluation=np.array(columns[0], dtype=np.int64),
        timesteps=np.array(columns[1], dtype=np.int64),
        episode=np.array(columns[2], dtype=np.int64),
        returns=np.array(columns[3], dtype=np.float64),
        length=np.array(columns[4], dtype=np.int64),
    )
