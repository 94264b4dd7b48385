"""Ctrl-C, once and twice, here and on other machines."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

_STOPPING = b"\nstopping after the present iterations, with checkpoints; again to stop at once\n"


class Stopper:
    """Counts requests to stop (SIGINT, SIGTERM) instead of letting them interrupt anything.

    :param at_once: whether the second request raises ``KeyboardInterrupt``
    """

    def __init__(self, at_once: bool = False) -> None:
        self.requests = 0
        self._at_once = at_once
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Stopper:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._request)
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


class StopFile:
    """A request to stop that reaches every machine on the same storage: a file that appears."""

    #: how often the disk is asked, in seconds
    EVERY = 0.5

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next = 0.0
        self._seen = False

    def requested(self) -> bool:
        """Asked as often as one likes; what it costs is a clock, and now and then a look at the disk."""
        now = time.monotonic()
        if not self._seen and now >= self._next:
            self._next = now + self.EVERY
            self._seen = self.path.exists()
        return self._seen
