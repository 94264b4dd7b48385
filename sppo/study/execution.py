"""One run as files: locked, resumed, recorded; whatever happens ends in one of a few outcomes."""

from __future__ import annotations

import errno
import io
import pickle
import shutil
import subprocess
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sppo.checkpoint.files import sweep, write_atomically
from sppo.records import run_files
from sppo.records.conditions import conditions
from sppo.records.config import RunConfig, differences, same_run
from sppo.records.run_files import RunWriter, read_json
from sppo.study.lock import BusyError, RunLock

if TYPE_CHECKING:
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm


@dataclass(frozen=True)
class Options:
    """How to execute runs; nothing here changes their results."""

    #: iterations between two checkpoints
    checkpoint_every: int
    #: train runs again that have failed before
    retry_failed: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt at a run.

    ``status`` is ``"completed"``, ``"failed"``, ``"interrupted"`` (goes on next time) or ``"busy"``
    (somebody else is training it).
    """

    status: str
    message: str = ""


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
        with RunLock(directory) as lock:
            sweep(directory)
            writer = RunWriter(directory, write_atomically, lock.check)
            return Attempt(config, writer, options, stop, report, watch).outcome()
    except BusyError as error:
        return Outcome("busy", str(error))
    except OSError as error:
        return Outcome("failed", f"cannot use {directory}: {error}")


def record_death(directory: Path, message: str) -> Outcome:
    """For a training that could not record its own failure, unless somebody else is at it already."""
    try:
        with RunLock(directory) as lock:
            return _record_failure(RunWriter(directory, write_atomically, lock.check), message, "", 0)
    except (BusyError, OSError) as error:
        return Outcome("failed", f"{message} (and this could not be recorded: {error})")


@dataclass
class Attempt:
    """One attempt at a run, whose lock is held."""

    config: RunConfig
    writer: RunWriter
    options: Options
    stop: Callable[[], bool]
    report: Callable[[str], None]
    watch: Callable[[int], None]
    timesteps: int = 0

    def __post_init__(self) -> None:
        self.directory = self.writer.directory
        self.shown = time.monotonic()
        before = read_json(self.directory / run_files.PROGRESS) or {}
        self.began = self.shown - float(before.get("wall_seconds", 0.0))

    def outcome(self) -> Outcome:
        header = read_json(self.directory / run_files.CONFIG) or {}
        if (theirs := self._somebody_elses(header)) is not None:
            return Outcome("failed", f"{self.directory} holds {theirs}: choose another directory")
        if read_json(self.directory / run_files.RESULT) is not None:
            # Left over if the process was killed at the very end.
            shutil.rmtree(self.directory / run_files.CHECKPOINTS, ignore_errors=True)
            return Outcome("completed", "by somebody else, or before")
        failure = read_json(self.directory / run_files.FAILURE)
        if failure is not None and not self.options.retry_failed:
            return Outcome("failed", str(failure.get("error")))
        try:
            if not isinstance(header.get("config"), dict):
                self.record_beginning()
            if failure is not None:
                number = 1 + sum(1 for _ in self.directory.glob("failure-*.json"))
                (self.directory / run_files.FAILURE).rename(self.directory / f"failure-{number}.json")
            return self._train(begin_again=failure is not None)
        except BusyError:
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                message = f"the disk is full ({error}); make room and run again with --retry-failed"
            return _record_failure(self.writer, message, traceback.format_exc(), self.timesteps)

    def _train(self, begin_again: bool) -> Outcome:
        # Not before: a run that is already done must not wait for torch.
        from sppo.study.training import Interrupted, train

        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                model = train(self, begin_again)
        except Interrupted:
            return Outcome("interrupted", f"after {self.timesteps} of {self.config.total_timesteps} steps")
        finally:
            for warning in {str(one.message): one for one in caught}.values():
                self.report(f"{warning.category.__name__}: {warning.message}")
        self._finish(model)
        return Outcome("completed")

    def record_beginning(self) -> None:
        self.writer.config(self.config, conditions(), git_revision())

    def progress(self, now: int) -> None:
        """To be called with the number of steps after each iteration."""
        first, self.timesteps = self.timesteps == 0, now
        if first or time.monotonic() - self.shown > 1.0 or now >= self.config.total_timesteps:
            self.shown = time.monotonic()
            self.writer.progress(now, self.config.total_timesteps, self._spent())
            self.watch(now)

    def _spent(self) -> float:
        return round(time.monotonic() - self.began, 3)

    def _finish(self, model: OnPolicyAlgorithm) -> None:
        buffer = io.BytesIO()
        model.save(buffer)
        self.writer.file(run_files.MODEL, buffer.getvalue())
        normalize = model.get_vec_normalize_env()
        if normalize is not None:
            self.writer.file(run_files.VECNORMALIZE, pickle.dumps(normalize))
        self.writer.result(self.config, model.num_timesteps, self._spent())
        shutil.rmtree(self.directory / run_files.CHECKPOINTS, ignore_errors=True)

    def _somebody_elses(self, header: Mapping[str, object]) -> str | None:
        """What the directory holds that must not be written over."""
        stored, wanted = header.get("config"), self.config.as_dict()
        if isinstance(stored, dict):
            changed = "; ".join(differences(stored, wanted))
            return None if same_run(stored, wanted) else f"another run ({changed})"
        records = (run_files.EVALUATIONS, run_files.MODEL, run_files.RESULT)
        patterns = (*records, f"{run_files.CHECKPOINTS}/*", f"{run_files.TENSORBOARD}/*")
        unknown = any(any(self.directory.glob(pattern)) for pattern in patterns)
        return "a run whose config.json is missing or damaged" if unknown else None


def _record_failure(writer: RunWriter, message: str, trace: str, timesteps: int) -> Outcome:
    """If even this fails, the run stays unfinished and is tried again next time."""
    try:
        writer.failure(message, trace, timesteps)
    except OSError as second:
        return Outcome("failed", f"{message} (and this could not be recorded: {second})")
    return Outcome("failed", message)


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
        git("ls-files", "--error-unmatch", str(Path(__file__).resolve()))
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.SubprocessError):
        return None
