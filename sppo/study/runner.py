"""Runs taken up one after another, on this machine or a cluster, until they are done or Ctrl-C says stop."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from sppo.records.config import RunConfig
from sppo.study.display import Display
from sppo.study.execution import Outcome
from sppo.study.local import LocalPool

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
    todo: Sequence[RunConfig], pool: LocalPool | RayPool, display: Display, stopper: Stopper
) -> list[Outcome]:
    """Execute runs in this order; returns when all have ended, or all that were begun before Ctrl-C."""
    queue = deque(todo)
    outcomes: list[Outcome] = []
    told = 0
    try:
        while pool.running or (queue and not stopper.requests):
            while queue and pool.has_room() and not stopper.requests:
                pool.start(queue[0])
                display.started(queue.popleft())
            for run, outcome in pool.ended() if pool.running else ():
                display.ended(run, outcome)
                if outcome.status == "killed":
                    queue.appendleft(run)
                else:
                    outcomes.append(outcome)
            if stopper.requests > told:
                told = stopper.requests
                pool.stop(at_once=told > 1)
            display.tick()
    finally:
        pool.close()
    return outcomes
