"""Executes runs in processes on this machine, one per core."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from sppo.records.config import RunConfig
from sppo.study.execution import Options, Outcome, execute, record_death

#: How often a run is taken up again whose process was killed from outside (by the out-of-memory killer).
_KILLED_ATTEMPTS = 3
#: What ``multiprocessing`` says of a process whose fork server was killed.
_ORPHANED = 255
#: Not Numba's, whose kernels here run in one thread, and which refuses a change once its threads have begun.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
LOG = "log.txt"
#: Imported once for all trainings. torch._dynamo (a second) would otherwise come with the first optimizer.
PRELOAD = ["sppo.study.training", "sppo.engine.fast", "torch._dynamo", "mujoco"]


@dataclass
class _Worker:
    """A training process, as far as the runner hears of it."""

    run: RunConfig
    process: BaseProcess
    connection: Connection
    outcome: Outcome | None = None


def single_threaded() -> None:
    """Let numerical libraries that are loaded from now on use one thread.

    The networks are small, and other trainings use the other cores.
    """
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))


class LocalPool:
    """Up to ``jobs`` processes at a time."""

    def __init__(self, directory: Path, options: Options, jobs: int) -> None:
        single_threaded()
        # A server process imports torch once; each training is a fork of it: begun at once, isolated.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self.directory = directory
        self._options = options
        self._jobs = jobs
        self._killed: Counter[str] = Counter()
        self._stopping = False
        self.running: list[_Worker] = []

    def has_room(self) -> bool:
        return len(self.running) < self._jobs

    def start(self, run: RunConfig) -> None:
        ours, theirs = self._context.Pipe()
        arguments = (theirs, run, str(self.directory / run.directory_name), self._options)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        try:
            process.start()
        except (EOFError, OSError):  # the server is just dying; a second later it is seen, and replaced
            time.sleep(1.0)
            process.start()
        theirs.close()
        self.running.append(_Worker(run, process, ours))

    def events(self) -> Iterator[tuple[RunConfig, str | Outcome]]:
        """What was said, and what has ended (``"killed"``: to be started again), within half a second."""
        talking = [worker.connection for worker in self.running if worker.outcome is None]
        wait([*talking, *(worker.process.sentinel for worker in self.running)], timeout=0.5)
        for worker in list(self.running):
            # Asked first: the last words come before the end.
            code = worker.process.exitcode
            with contextlib.suppress(EOFError, OSError):
                while worker.connection.poll():
                    message = worker.connection.recv()
                    if isinstance(message, str):
                        yield worker.run, message
                    else:
                        worker.outcome = message
            if code is not None:
                self.running.remove(worker)
                # An orphan, of which nobody will tell how it ends, ends with its pipe.
                worker.connection.close()
                yield worker.run, worker.outcome or self._without_a_word(worker.run, code)

    def stop(self, at_once: bool) -> None:
        self._stopping = True
        for worker in self.running:
            (worker.process.kill if at_once else worker.process.terminate)()

    def close(self) -> None:
        self.stop(at_once=True)

    def _without_a_word(self, run: RunConfig, code: int) -> Outcome:
        """The outcome of a process that could not tell."""
        if code in (-signal.SIGKILL, -signal.SIGTERM, _ORPHANED):
            if self._stopping:
                return Outcome("interrupted", "stopped at once; goes on from its last checkpoint")
            self._killed[run.hash] += 1
            if self._killed[run.hash] < _KILLED_ATTEMPTS:
                return Outcome("killed", "its process was killed; it goes on from its last checkpoint")
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        message = f"the training process died ({name}), see {LOG}; out of memory, or a crash in a library"
        return record_death(self.directory / run.directory_name, message)


def _work(connection: Connection, run: RunConfig, directory: str, options: Options) -> None:
    """The training process: one run, its output in a file, its outcome through the pipe."""
    # Ctrl-C reaches every process of the terminal; the runner decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_end_with_the_runner, args=(connection,), daemon=True).start()
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, LOG), "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    connection.send(execute(run, directory, options, stop.is_set, connection.send))


def _end_with_the_runner(connection: Connection) -> None:
    """Whoever starts the next runner expects this run to be free; its last checkpoint is good enough."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os._exit(1)
