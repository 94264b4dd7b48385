"""Executes runs as tasks of a Ray cluster: the same function, other processes.

The study directory must lie on storage that all nodes share, and the nodes need the same software.
A task whose node dies is started again by Ray on another one, where it goes on from its checkpoint.
A request to stop reaches the tasks as a file on that storage. Cancelling them instead would raise
``KeyboardInterrupt`` wherever they are, without a checkpoint, and unnoticed where it is swallowed.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from sppo.records import run_files
from sppo.records.config import RunConfig
from sppo.study.execution import Options, Outcome, execute
from sppo.study.local import THREAD_VARIABLES
from sppo.study.lock import SILENCE_SECONDS, is_locked

#: How often Ray takes up a task again whose node or process died.
_RETRIES = 20


class RayPool:
    """Ray tasks of ``cpus`` CPUs each.

    :param address: of a running cluster (``"auto"``: the one of this machine); ``None`` starts a local one
    """

    def __init__(self, directory: Path, options: Options, address: str | None, cpus: float) -> None:
        try:
            import ray
        except ImportError as error:
            raise RuntimeError('the Ray executor needs the extra "ray": pip install ".[ray]"') from error
        self._ray: ModuleType = ray
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        environment = {"env_vars": dict.fromkeys(THREAD_VARIABLES, "1")}
        self._task = ray.remote(num_cpus=cpus, max_retries=_RETRIES, runtime_env=environment)(_task)
        self.directory = directory.resolve()
        # One per runner: others may be at work in the same directory.
        self._stop_file = self.directory / run_files.BOOKKEEPING / f"stop-{uuid.uuid4().hex}"
        self._options = options
        self._cpus = cpus
        self.running: dict[object, RunConfig] = {}

    def has_room(self) -> bool:
        # Asked every time, since nodes come and go.
        return len(self.running) < max(1, int(self._ray.cluster_resources().get("CPU", 1) / self._cpus))

    def start(self, run: RunConfig) -> None:
        place = str(self.directory / run.directory_name)
        self.running[self._task.remote(run, place, self._options, str(self._stop_file))] = run

    def events(self) -> Iterator[tuple[RunConfig, str | Outcome]]:
        errors = self._ray.exceptions
        done, _ = self._ray.wait(list(self.running), num_returns=1, timeout=0.5)
        for reference in done:
            run = self.running.pop(reference)
            try:
                outcome, messages = self._ray.get(reference)
            except errors.TaskCancelledError:
                words = "cancelled; goes on from its last checkpoint, if it has one"
                outcome, messages = Outcome("interrupted", words), []
            except errors.RayError as error:
                first = str(error).strip().splitlines()[0]
                words = f"Ray gave up ({type(error).__name__}: {first}); run again to go on"
                outcome, messages = Outcome("interrupted", words), []
            yield from ((run, event) for event in (*messages, outcome))

    def stop(self, at_once: bool) -> None:
        self._stop_file.touch()
        for reference, run in self.running.items():
            # Those that wait for room in the cluster would see the file only once they got it.
            if at_once or not is_locked(self.directory / run.directory_name):
                with contextlib.suppress(Exception):
                    self._ray.cancel(reference, force=at_once)

    def close(self) -> None:
        self._stop_file.unlink(missing_ok=True)


def _task(run: RunConfig, directory: str, options: Options, stop_file: str) -> tuple[Outcome, list[str]]:
    messages: list[str] = []
    stopping = Path(stop_file).exists
    deadline = time.monotonic() + 2 * SILENCE_SECONDS
    while True:
        outcome = execute(run, directory, options, stopping, messages.append)
        # A dead node's lock is silent, but not yet for long enough.
        if outcome.status != "busy" or time.monotonic() > deadline or stopping():
            return outcome, messages
        time.sleep(2.0)
