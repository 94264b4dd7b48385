"""One run as files: locked, resumed, recorded; whatever happens ends in one of a few outcomes."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import pickle
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from sppo.checkpoint.files import CheckpointError, checkpoints, newest_readable, sweep, write_atomically
from sppo.records import run_files
from sppo.records.config import RunConfig, differences
from sppo.study.lock import BusyError, RunLock

#: Packages whose versions a training's numbers may depend on.
_PACKAGES = ("sppo", "torch", "stable_baselines3", "sb3_contrib", "gymnasium", "mujoco", "numpy")


@dataclass(frozen=True)
class Options:
    """How to execute runs; nothing here changes their results.

    :param checkpoint_every: iterations between two checkpoints
    :param retry_failed: train runs again that have failed before
    """

    checkpoint_every: int
    retry_failed: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt at a run.

    ``status`` is ``"completed"``, ``"failed"``, ``"interrupted"`` (goes on next time) or ``"busy"``
    (somebody else is training it).
    """

    status: str
    message: str = ""


class OtherRunError(ValueError):
    """A directory that belongs to another run, and in which therefore nothing is written."""


def execute(
    config: RunConfig,
    directory: str | Path,
    options: Options,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = print,
    watch: Callable[[int], None] = lambda timesteps: None,
) -> Outcome:
    """Bring one run to its end, from wherever it is; never raises for what goes wrong in the run itself.

    :param stop: asked between iterations; ``True`` ends the attempt after a checkpoint
    :param report: called with messages for the user
    :param watch: called with the number of steps, about once a second
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with RunLock(directory):
            return _execute_locked(config, directory, options, stop, report, watch)
    except BusyError as error:
        return Outcome("busy", str(error))
    except OSError as error:
        return Outcome("failed", f"cannot use {directory}: {error}")


def _execute_locked(
    config: RunConfig,
    directory: Path,
    options: Options,
    stop: Callable[[], bool],
    report: Callable[[str], None],
    watch: Callable[[int], None],
) -> Outcome:
    sweep(directory)
    if run_files.read_json(directory / run_files.RESULT) is not None:
        # Left over if the process was killed at the very end.
        shutil.rmtree(directory / run_files.CHECKPOINTS, ignore_errors=True)
        return Outcome("completed", "by somebody else, or before")
    failure = run_files.read_json(directory / run_files.FAILURE)
    if failure is not None and not options.retry_failed:
        return Outcome("failed", str(failure.get("error")))
    timesteps = 0
    started = shown = time.monotonic()
    before = float((run_files.read_json(directory / run_files.PROGRESS) or {}).get("wall_seconds", 0.0))

    def progress(now: int) -> None:
        nonlocal timesteps, shown
        first, timesteps = timesteps == 0, now
        if first or time.monotonic() - shown > 1.0 or now >= config.total_timesteps:
            shown = time.monotonic()
            _write_progress(directory, config, now, before + shown - started)
            watch(now)

    try:
        _prepare(config, directory, failure is not None, report)
        # Not before: a run that is already done must not wait for torch.
        from sppo.study.training import Interrupted, train

        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                model = train(config, directory, options.checkpoint_every, stop, report, progress)
        except Interrupted:
            return Outcome("interrupted", f"after {timesteps} of {config.total_timesteps} steps")
        finally:
            for warning in {str(one.message): one for one in caught}.values():
                report(f"{warning.category.__name__}: {warning.message}")
        _finish(config, directory, model, before + time.monotonic() - started)
        return Outcome("completed")
    except OtherRunError as error:
        return Outcome("failed", str(error))
    except Exception as error:
        return _record_failure(directory, error, timesteps)


def _prepare(config: RunConfig, directory: Path, failed_before: bool, report: Callable[[str], None]) -> None:
    """Write the run's configuration, or check that the directory holds the same one."""
    header = {
        "config": config.as_dict(),
        "hash": config.hash,
        "versions": versions(),
        "git_revision": git_revision(),
    }
    found = run_files.read_json(directory / run_files.CONFIG)
    if found is None:
        _write_json(directory / run_files.CONFIG, header)
    elif found.get("config") != header["config"]:
        different = "; ".join(differences(found.get("config", {}), config.as_dict()))
        raise OtherRunError(f"{directory} holds another run ({different}): choose another directory")
    elif found.get("versions") != header["versions"]:
        changed = "; ".join(differences(found.get("versions", {}), versions()))
        report(f"going on with other versions than it was begun with ({changed}): results may differ")
    if failed_before:
        number = 1 + sum(1 for _ in directory.glob("failure-*.json"))
        (directory / run_files.FAILURE).rename(directory / f"failure-{number}.json")
        _set_aside_unreadable(directory, report)


def _set_aside_unreadable(directory: Path, report: Callable[[str], None]) -> None:
    """On request only: where no checkpoint can be read, keep them aside and begin again."""
    try:
        newest_readable(directory / run_files.CHECKPOINTS)
    except CheckpointError:
        for path in checkpoints(directory / run_files.CHECKPOINTS):
            path.rename(path.with_suffix(".unreadable"))
        report("no checkpoint could be read: begun again from the first step")


def _finish(config: RunConfig, directory: Path, model: Any, wall_seconds: float) -> None:
    """The final files; ``result.json`` last, since it says that all the others are there."""
    buffer = io.BytesIO()
    model.save(buffer)
    write_atomically(directory / run_files.MODEL, buffer.getvalue())
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        write_atomically(directory / run_files.VECNORMALIZE, pickle.dumps(normalize))
    _, returns = run_files.read_evaluations(directory).curve()
    if not math.isfinite(returns[-1]):
        raise ValueError(f"the last evaluation has a return of {returns[-1]}")
    result = {
        "status": "completed",
        "timesteps": model.num_timesteps,
        "final_return": float(returns[-1]),
        "wall_seconds": round(wall_seconds, 3),
        "hash": config.hash,
        # Other than 0, the run is not what it would have been without interruptions.
        "episode_restarts": _count_lines(directory / run_files.RESTARTS),
    }
    _write_json(directory / run_files.RESULT, result)
    shutil.rmtree(directory / run_files.CHECKPOINTS, ignore_errors=True)
    (directory / run_files.PROGRESS).unlink(missing_ok=True)


def _count_lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def _record_failure(directory: Path, error: Exception, timesteps: int) -> Outcome:
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        message = f"the disk is full ({error}); make room and run again with --retry-failed"
    return record_failure(directory, message, traceback.format_exc(), timesteps)


def record_failure(directory: Path, message: str, trace: str, timesteps: int) -> Outcome:
    """Write ``failure.json``; if even that fails, the run stays unfinished and is tried again next time."""
    failure = {"status": "failed", "error": message, "traceback": trace, "timesteps": timesteps}
    try:
        _write_json(directory / run_files.FAILURE, failure)
    except OSError as second:
        return Outcome("failed", f"{message} (and this could not be recorded: {second})")
    return Outcome("failed", message)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())


def _write_progress(directory: Path, config: RunConfig, timesteps: int, wall_seconds: float) -> None:
    # Not synced to disk: it is for watching only, and comes often.
    aside = directory / f".{run_files.PROGRESS}.aside"
    progress = {
        "timesteps": timesteps,
        "total_timesteps": config.total_timesteps,
        "wall_seconds": round(wall_seconds, 3),
    }
    with contextlib.suppress(OSError):
        aside.write_text(json.dumps(progress))
        aside.replace(directory / run_files.PROGRESS)


@cache
def versions() -> dict[str, str]:
    """The versions of what the numbers depend on."""
    found = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def git_revision() -> str | None:
    """The revision of the source tree that this code runs from, with ``-dirty`` if it was changed."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()

    try:
        # Installed into some other project's tree, that project's revision would say nothing.
        if git("ls-files", "--error-unmatch", str(Path(__file__).resolve())) == "":
            return None
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.SubprocessError):
        return None
