"""What a training's numbers depend on besides its configuration: versions of packages, and the processor."""

from __future__ import annotations

import contextlib
import platform
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

_PACKAGES = ("sppo", "torch", "stable_baselines3", "sb3_contrib", "gymnasium", "mujoco", "numpy")


@cache
def conditions() -> dict[str, str]:
    """Those of this process, by name."""
    found = {"python": sys.version.split()[0], "processor": processor_name()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def processor_name() -> str:
    """Float32 sums are made in an order that depends on it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
