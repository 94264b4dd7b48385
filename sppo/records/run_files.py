"""The files of a run: their names, and how they are written and read.

A study directory holds one directory per run, named by the first 16 hexadecimal digits of the run's
identity (:attr:`sppo.records.config.RunConfig.hash`)::

    runs/<study>/
      study.toml            a copy of the study file
      .study/               the runner's own bookkeeping; plan.json lists the planned runs
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
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sppo.records.config import RunConfig
from sppo.records.parameters import Values

#: Version of this layout; ``config.json`` states it. Files without one are of version 1.
SCHEMA = 1

BOOKKEEPING = ".study"
PLAN = "plan.json"
STUDY_FILE = "study.toml"
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluations:
    """The evaluations of one run, in the order they were made: one element each.

    :param returns: mean over the evaluation's episodes
    :param spreads: standard deviation over them
    :param episodes: how many there were
    """

    timesteps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    returns: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    spreads: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    episodes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class RunWriter:
    """Writes the records of one run.

    :param write: puts bytes into a file, whole or not at all
    :param guard: called before every write; raises if the directory has become somebody else's
    """

    directory: Path
    write: Callable[[Path, bytes], None]
    guard: Callable[[], None]

    def file(self, name: str, data: bytes) -> None:
        self.guard()
        self.write(self.directory / name, data)

    def config(self, config: RunConfig, versions: dict[str, str], git_revision: str | None) -> None:
        header = {"config": config.as_dict(), "hash": config.hash, "schema": SCHEMA}
        self._json(CONFIG, {**header, "versions": versions, "git_revision": git_revision})

    def evaluation(self, number: int, timesteps: int, episodes: Sequence[tuple[float, int]]) -> None:
        """Return and length of each episode; they are appended to what is there."""
        numbered = enumerate(episodes)
        rows = [f"{number},{timesteps},{index},{total!r},{length}\n" for index, (total, length) in numbered]
        self._append(EVALUATIONS, "".join(rows), header=EVALUATIONS_HEADER + "\n")

    def restart(self, timesteps: int) -> None:
        """Episodes were started again at this step."""
        self._append(RESTARTS, f"{timesteps}\n")

    def progress(self, timesteps: int, total_timesteps: int, wall_seconds: float) -> None:
        # Not synced to disk: it is for watching only, and comes often.
        self.guard()
        aside = self.directory / f".{PROGRESS}.aside"
        content = {"timesteps": timesteps, "total_timesteps": total_timesteps, "wall_seconds": wall_seconds}
        with contextlib.suppress(OSError):
            aside.write_text(json.dumps(content))
            aside.replace(self.directory / PROGRESS)

    def result(self, config: RunConfig, timesteps: int, wall_seconds: float) -> None:
        """Last, since it says that all the others are there; refused if the last return is not finite."""
        final = read_evaluations(self.directory).returns[-1]
        if not np.isfinite(final):
            raise ValueError(f"the last evaluation has a return of {final}")
        restarts = self.directory / RESTARTS
        content = {
            "status": "completed",
            "timesteps": timesteps,
            "final_return": float(final),
            "wall_seconds": wall_seconds,
            "hash": config.hash,
            # Other than 0, the run is not what it would have been without interruptions.
            "episode_restarts": len(restarts.read_text().splitlines()) if restarts.exists() else 0,
        }
        self._json(RESULT, content)
        (self.directory / PROGRESS).unlink(missing_ok=True)

    def failure(self, error: str, traceback: str, timesteps: int) -> None:
        content = {"status": "failed", "error": error, "traceback": traceback, "timesteps": timesteps}
        self._json(FAILURE, content)

    def _append(self, name: str, text: str, header: str = "") -> None:
        self.guard()
        with open(self.directory / name, "a") as table:
            table.write(text if table.tell() else header + text)

    def _json(self, name: str, content: Values) -> None:
        self.file(name, (json.dumps(content, indent=1) + "\n").encode())


def read_json(path: str | os.PathLike[str]) -> Values | None:
    """The object in a JSON file; ``None`` if there is none.

    Records are written atomically, so half a file means that somebody tampered with it: it counts as absent.
    """
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def run_directories(study: str | os.PathLike[str]) -> list[Path]:
    """The run directories of a study directory, sorted by name."""
    return [Path(study, name) for name in sorted(os.listdir(study)) if _RUN_NAME.fullmatch(name)]


def read_evaluations(directory: str | os.PathLike[str]) -> Evaluations:
    """The evaluations of a run directory; ``ValueError`` if the file is not what :class:`RunWriter` writes.

    A last line without its newline (a run killed while writing) is left out.
    """
    path = Path(directory, EVALUATIONS)
    text = path.read_text() if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    if lines and lines[0] != EVALUATIONS_HEADER:
        raise ValueError(f"{path}: the first line is not {EVALUATIONS_HEADER!r}")
    rows = [line.split(",") for line in lines[1:]]
    evaluation, timesteps, _, values, _ = zip(*rows, strict=True) if rows else [()] * 5
    returns = np.array(values, np.float64)
    numbers, first, index = np.unique(np.array(evaluation, np.int64), return_index=True, return_inverse=True)
    episodes = np.bincount(index, minlength=len(numbers))
    means = np.bincount(index, weights=returns, minlength=len(numbers)) / episodes
    # episodes are compared with their own mean first: squares of large returns would lose the digits
    with np.errstate(invalid="ignore"):  # whether returns are finite is for others to say
        squares = np.bincount(index, weights=(returns - means[index]) ** 2, minlength=len(numbers))
    steps = np.array(timesteps, np.int64)[first]
    return Evaluations(timesteps=steps, returns=means, spreads=np.sqrt(squares / episodes), episodes=episodes)
