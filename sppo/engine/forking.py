"""Copies of this process, where they are safe; small, because a process that only compiles imports it."""

from __future__ import annotations

import gc
import multiprocessing as mp
import sys
import threading
import warnings
from typing import Any


def can_fork() -> bool:
    """Whether a copy of this process is safe to make: on Linux, while Python runs one thread."""
    return sys.platform == "linux" and threading.active_count() == 1


def start_context() -> Any:
    """How to start workers: by forking (at once, sharing memory) where that is safe."""
    return mp.get_context("fork" if can_fork() else "spawn")


def quiet_start(process: Any) -> None:
    """Start a process of ``multiprocessing``, as a lean one if it is a fork of this one.

    The child's garbage collector leaves alone what it inherits: its marks would unshare the memory.
    """
    gc.freeze()
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside the idle threads of BLAS; the child does not use them.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
    finally:
        gc.unfreeze()
