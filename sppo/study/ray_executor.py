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
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sppo.records import run_files
from sppo.records.config import RunConfig
from sppo.study.display import Display
from sppo.study.execution import Options, Outcome, execute
from sppo.study.local import THREAD_VARIABLES
from sppo.study.lock import SILENCE_SECONDS, is_locked
from sppo.study.stopping import StopFile, Stopper

#: How often Ray takes up a task again whose node or process died.
_RETRIES = 20


def run_ray(
    todo: Sequence[RunConfig],
    directory: Path,
    options: Options,
    address: str | None,
    cpus: float,
    display: Display,
    stopper: Stopper,
) -> list[Outcome]:
    """Execute runs as Ray tasks of ``cpus`` CPUs each; returns when all have ended.

    :param address: of a running cluster (``"auto"``: the one of this machine); ``None`` starts a local one
    """
    ray = _import_ray()
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    environment = {"env_vars": dict.fromkeys(THREAD_VARIABLES, "1")}
    task = ray.remote(num_cpus=cpus, max_retries=_RETRIES, runtime_env=environment)(_task)
    directory = directory.resolve()
    # One per runner: others may be at work in the same directory.
    stop = StopFile(directory / run_files.BOOKKEEPING / f"stop-{uuid.uuid4().hex}")
    queue = deque(todo)
    pending: dict[Any, RunConfig] = {}
    outcomes: list[Outcome] = []
    told = 0
    while pending or (queue and not stopper.requests):
        # As many as there is room for, asked every time, since nodes come and go.
        window = max(1, int(ray.cluster_resources().get("CPU", 1) / cpus))
        while queue and len(pending) < window and not stopper.requests:
            run = queue.popleft()
            place = directory / run.directory_name
            pending[task.remote(run.as_dict(), str(place), options, str(stop.path))] = run
            display.started(run)
        done, _ = ray.wait(list(pending), num_returns=1, timeout=0.5)
        for reference in done:
            run = pending.pop(reference)
            outcome, messages = _outcome(ray, reference)
            for message in messages:
                display.message(f"{run.env} seed={run.seed}: {message}")
            outcomes.append(outcome)
            display.ended(run, outcome)
        if stopper.requests > told:
            told = stopper.requests
            stop.path.touch()
            for reference, run in pending.items():
                # Those that wait for room in the cluster would see the file only once they got it.
                if told > 1 or not is_locked(directory / run.directory_name):
                    with contextlib.suppress(Exception):
                        ray.cancel(reference, force=told > 1)
        display.tick()
    stop.path.unlink(missing_ok=True)
    return outcomes


def _task(config: dict[str, Any], directory: str, options: Options, stop: str) -> tuple[Outcome, list[str]]:
    messages: list[str] = []
    stopping = StopFile(Path(stop)).requested
    run = RunConfig.from_dict(config)
    deadline = time.monotonic() + 2 * SILENCE_SECONDS
    while True:
        outcome = execute(run, directory, options, stopping, messages.append)
        # A dead node's lock is silent, but not yet for long enough.
        if outcome.status != "busy" or time.monotonic() > deadline or stopping():
            return outcome, messages
        time.sleep(2.0)


def _outcome(ray: Any, reference: Any) -> tuple[Outcome, list[str]]:
    try:
        return ray.get(reference)
    except ray.exceptions.TaskCancelledError:
        return Outcome("interrupted", "cancelled; goes on from its last checkpoint, if it has one"), []
    except ray.exceptions.RayError as error:
        first = str(error).strip().splitlines()[0]
        return Outcome(
            "interrupted", f"Ray gave up ({type(error).__name__}: {first}); run again to go on"
        ), []


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise RuntimeError('the Ray executor needs the extra "ray": pip install ".[ray]"') from error
    return ray
