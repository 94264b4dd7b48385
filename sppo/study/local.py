"""Executes runs in processes on this machine, one per core."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from sppo.records.config import RunConfig
from sppo.study.display import Display
from sppo.study.execution import Options, Outcome, execute, record_death
from sppo.study.stopping import Stopper

#: How often a run is taken up again whose process was killed from outside (by the out-of-memory killer).
_KILLED_ATTEMPTS = 3
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
LOG = "log.txt"
#: Imported once for all trainings. torch._dynamo (a second) would otherwise come with the first optimizer.
PRELOAD = ["sppo.study.training", "sppo.engine.fast", "torch._dynamo", "mujoco"]
#: What ``multiprocessing`` says of a process whose fork server has died: nobody knows.
_UNKNOWN = 255


@dataclass
class _Worker:
    """A training process, as far as the runner hears of it."""

    run: RunConfig
    process: BaseProcess
    connection: Connection
    outcome: Outcome | None = None
    silent: bool = False

    def signs(self) -> list[Connection | int]:
        """What to wait for."""
        pipe: list[Connection | int] = [] if self.silent else [self.connection]
        return pipe if self.process.exitcode is not None else [*pipe, self.process.sentinel]

    def receive(self, display: Display) -> None:
        try:
            while not self.silent and self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, Outcome):
                    self.outcome = message
                else:
                    display.message(f"{self.run.env} seed={self.run.seed}: {message}")
        except (EOFError, OSError):
            self.silent = True

    def ended(self) -> bool:
        """Its pipe is the witness where the fork server is none: it closes when the training has ended."""
        code = self.process.exitcode
        return code is not None and (code != _UNKNOWN or self.silent)

    def stop(self, at_once: bool) -> None:
        if not at_once:
            with contextlib.suppress(OSError):
                self.connection.send("stop")
            return
        self.process.kill()
        # A process that the fork server no longer answers for ends when its pipe does.
        self.connection.close()
        self.silent = True


def available_cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def single_threaded() -> None:
    """Let numerical libraries that are loaded from now on use one thread.

    The networks are small, and other trainings use the other cores.
    """
    for variable in THREAD_VARIABLES:
        os.environ[variable] = "1"


def run_local(
    todo: Sequence[RunConfig],
    directory: Path,
    options: Options,
    jobs: int,
    display: Display,
    stopper: Stopper,
) -> list[Outcome]:
    """Execute runs in up to ``jobs`` processes at a time; returns when all have ended."""
    single_threaded()
    # A server process imports torch once; each training is a fork of it: begun at once, isolated.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    queue = deque(todo)
    attempts: Counter[str] = Counter()
    workers: list[_Worker] = []
    outcomes: list[Outcome] = []
    told = 0
    try:
        while workers or (queue and not stopper.requests):
            while queue and len(workers) < jobs and not stopper.requests:
                workers.append(_start(context, queue.popleft(), directory, options, display))
            wait([sign for worker in workers for sign in worker.signs()], timeout=0.5)
            for worker in list(workers):
                worker.receive(display)
                if not worker.ended():
                    continue
                workers.remove(worker)
                outcome = _conclude(worker, directory, attempts, bool(stopper.requests), display)
                display.ended(worker.run, outcome)
                if outcome.status == "killed":
                    queue.appendleft(worker.run)
                else:
                    outcomes.append(outcome)
            if stopper.requests > told:
                told = stopper.requests
                for worker in workers:
                    worker.stop(at_once=told > 1)
            display.tick()
    finally:
        for worker in workers:
            worker.stop(at_once=True)
    return outcomes


def _start(
    context: ForkServerContext, run: RunConfig, directory: Path, options: Options, display: Display
) -> _Worker:
    ours, theirs = context.Pipe()
    arguments = (theirs, run.as_dict(), str(directory / run.directory_name), options)
    process = context.Process(target=_work, args=arguments, daemon=True)
    process.start()
    theirs.close()
    display.started(run)
    return _Worker(run, process, ours)


def _conclude(
    worker: _Worker, directory: Path, attempts: Counter[str], stopping: bool, display: Display
) -> Outcome:
    """The outcome of a process that has ended, in whatever way."""
    worker.process.join()
    # Its last words may have come after the last look.
    worker.receive(display)
    worker.connection.close()
    if worker.outcome is not None:
        return worker.outcome
    code = worker.process.exitcode or 0
    if code in (-signal.SIGKILL, -signal.SIGTERM, _UNKNOWN):
        if stopping:
            return Outcome("interrupted", "stopped at once; goes on from its last checkpoint")
        attempts[worker.run.hash] += 1
        if attempts[worker.run.hash] < _KILLED_ATTEMPTS:
            return Outcome("killed", "its process was killed; it goes on from its last checkpoint")
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    message = f"the training process died ({name}), see {LOG}; out of memory, or a crash in a library"
    return record_death(directory / worker.run.directory_name, message)


def _work(connection: Connection, config: dict[str, Any], directory: str, options: Options) -> None:
    """The training process: one run, its output in a file, its outcome through the pipe."""
    # Ctrl-C reaches every process of the terminal; the runner decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_listen, args=(connection, stop), daemon=True).start()
    try:
        _redirect_output(directory)
        outcome = execute(RunConfig.from_dict(config), directory, options, stop.is_set, connection.send)
    except BaseException as error:
        traceback.print_exc()
        outcome = Outcome("failed", f"{type(error).__name__}: {error}")
    connection.send(outcome)


def _listen(connection: Connection, stop: threading.Event) -> None:
    try:
        while True:
            if connection.recv() == "stop":
                stop.set()
    except (EOFError, OSError):
        # The runner is gone. Whoever starts the next one expects this run to be free; its last
        # checkpoint is as good as what it has now.
        os._exit(1)


def _redirect_output(directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, LOG), "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
