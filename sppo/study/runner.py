"""Runs taken up one after another, on this machine or a cluster, until they are done or Ctrl-C says stop.

What happens is said in a line per event, and in one now and then while nothing happens.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from sppo.records.config import RunConfig
from sppo.records.run_files import PROGRESS, read_json
from sppo.study.execution import Outcome
from sppo.study.local import LocalPool
from sppo.study.overview import duration, predicted_seconds

if TYPE_CHECKING:
    from sppo.study.ray_executor import RayPool

_STOPPING = b"\nstopping after the present iterations, with checkpoints; again to stop at once\n"


class Stopper:
    """Counts requests to stop (SIGINT, SIGTERM) instead of letting them interrupt anything.

    :param at_once: whether the second request raises ``KeyboardInterrupt``
    """

    def __init__(self, at_once: bool = False) -> None:
        self.requests = 0
        self._at_once = at_once

    def __enter__(self) -> Stopper:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._previous = {number: signal.signal(number, self._request) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requests += 1
        if self.requests == 1:
            # Not print: a signal may come in the middle of one, which must not be entered twice.
            os.write(2, _STOPPING)
        elif self._at_once:
            raise KeyboardInterrupt


def run_all(
    todo: Sequence[RunConfig],
    settled: Sequence[str],
    pool: LocalPool | RayPool,
    stopper: Stopper,
    varied: tuple[str, ...] = (),
) -> list[Outcome]:
    """Execute runs in this order; returns when all have ended, or all that were begun before Ctrl-C.

    :param settled: the statuses of runs that are left alone, and counted
    :param varied: parameters that tell runs apart
    """
    display, queue = Display(settled, todo, varied, pool.directory), deque(todo)
    outcomes: list[Outcome] = []
    told = 0
    try:
        while pool.running or (queue and not stopper.requests):
            while queue and pool.has_room() and not stopper.requests:
                pool.start(queue[0])
                display.started(queue.popleft())
            for run, event in pool.events() if pool.running else ():
                if isinstance(event, str):
                    display.say(f"{run.env} seed={run.seed}: {event}")
                    continue
                display.ended(run, event)
                if event.status == "killed":
                    queue.appendleft(run)
                else:
                    outcomes.append(event)
            if stopper.requests > told:
                told = stopper.requests
                pool.stop(at_once=told > 1)
            display.tick()
    finally:
        pool.close()
    return outcomes


class Display:
    """Counts what happens and prints it."""

    #: seconds between two lines that only say that all is well
    QUIET = 60.0

    def __init__(
        self,
        settled: Sequence[str],
        todo: Sequence[RunConfig],
        varied: tuple[str, ...],
        directory: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = len(settled) + len(todo)
        self._settled = Counter(settled)
        self._cost = {run.hash: predicted_seconds(run) for run in todo}
        self._running: dict[str, RunConfig] = {}
        self._fraction = dict.fromkeys(self._cost, 0.0)
        # Work that an earlier session did on a run must not count as this session's speed.
        self._credit: dict[str, float] = {}
        self._varied = varied
        self._directory = directory
        self._clock = clock
        self._began = self._shown = clock()

    def started(self, run: RunConfig) -> None:
        self._running[run.hash] = run
        self._look()
        self._credit.setdefault(run.hash, self._fraction[run.hash])

    def ended(self, run: RunConfig, outcome: Outcome) -> None:
        """A training process has given up a run, done or not."""
        self._look()
        self._running.pop(run.hash, None)
        self._settled[outcome.status] += 1
        if outcome.status in ("completed", "failed"):
            self._fraction[run.hash] = 1.0
        words = (outcome.status, run.describe(self._varied), outcome.message)
        self.say(": ".join(filter(None, words)))

    def say(self, text: str) -> None:
        self._shown = self._clock()
        print(f"[{self.summary()}] {text}".rstrip(), flush=True)

    def tick(self) -> None:
        """Called about twice a second."""
        if self._clock() - self._shown > self.QUIET:
            self.say("")

    def summary(self) -> str:
        """Counts and remaining time in one line."""
        parts = [f"{self._settled['completed']}/{self._total} done", f"{len(self._running)} running"]
        for status, text in (("failed", "failed"), ("busy", "in other runners")):
            parts += [f"{self._settled[status]} {text}"] if self._settled[status] else []
        eta = self.eta()
        return ", ".join([*parts, "ETA " + ("unknown" if eta is None else duration(eta))])

    def eta(self) -> float | None:
        """Seconds until everything is done, at this session's speed; ``None`` before there is one."""
        self._look()
        left = sum(cost * (1.0 - self._fraction[key]) for key, cost in self._cost.items())
        work = sum(self._cost[key] * (self._fraction[key] - begun) for key, begun in self._credit.items())
        elapsed = self._clock() - self._began
        if left == 0.0:
            return 0.0
        return left * elapsed / work if work > 0.0 and elapsed > 1.0 else None

    def _look(self) -> None:
        """How far the running trainings have come."""
        for key, run in self._running.items():
            progress = read_json(self._directory / run.directory_name / PROGRESS) or {}
            fraction = float(progress.get("timesteps", 0)) / run.total_timesteps
            self._fraction[key] = min(1.0, max(self._fraction[key], fraction))
