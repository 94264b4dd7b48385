"""Copies of this process, where they are safe; small, because a process that only compiles imports it."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any


def can_fork() -> bool:
    """Whether a copy of this process is safe to make: on Linux, while Python runs one thread."""
    return sys.platform == "linux" and threading.active_count() == 1


def quiet_start(process: Any) -> None:
    """Start a process of ``multiprocessing``."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside the idle threads of BLAS; the child does not use them.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
