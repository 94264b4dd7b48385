"""Copies of this process, where they are safe; small, because a process that only compiles imports it."""

from __future__ import annotations

import functools
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
    """Start a process of ``multiprocessing``, as a lean one if it is a fork of this one."""
    if can_fork():
        _keep_shared()
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside the idle threads of BLAS; the child does not use them.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()


@functools.cache
def _keep_shared() -> None:
    """Keep what exists now, modules mostly, from the garbage collectors of this process and its forks.

    Their marks would unshare the memory, some 40 MB. Once per process, because what is kept from them is
    freed only if it is in no cycle: a second time might keep a model.
    """
    gc.freeze()
