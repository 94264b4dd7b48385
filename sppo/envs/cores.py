"""How many cores there are for environments, and how many of them nobody uses just now."""

from __future__ import annotations

import os
import time


def cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def available_processes() -> int:
    """Processes a training may use: the cores it may run on, and not more than ``OMP_NUM_THREADS``."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(limit)) if limit.isdigit() and int(limit) > 0 else cores()


def idle_cores(samples: int = 20, pause: float = 1e-3) -> float:
    """Cores nobody is using just now, this process's own counted as idle; all of them if unknown.

    The scheduler's count of runnable processes, seen a few times within some milliseconds. (The load
    average would still remember a training that ended a minute ago.)
    """
    others = 0
    try:
        for _ in range(samples):
            with open("/proc/loadavg") as file:
                others += int(file.read().split()[3].split("/")[0]) - 1
            time.sleep(pause)
    except (OSError, ValueError, IndexError):
        return cores()
    return max(cores() - others / samples, 0.0)
