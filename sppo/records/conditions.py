"""What a training's numbers depend on besides its configuration: versions of packages, and the processor."""

from __future__ import annotations

import contextlib
import platform
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

#: SciPy brings the BLAS and Numba the compiler of the engine
_PACKAGES = ("sppo", "torch", "stable_baselines3", "sb3_contrib", "gymnasium", "mujoco", "numpy",
             "scipy", "numba")  # fmt: skip

#: of /proc/cpuinfo on x86, and what they are called here
_GENERATION = {"cpu family": "family", "model": "model"}


@cache
def conditions() -> dict[str, str]:
    """Those of this process, by name."""
    found = {"python": sys.version.split()[0], "processor": processor_name()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def processor_name() -> str:
    """Float32 sums are made in an order that depends on it.

    With its generation where that is told: on virtual machines, a maker's processors may share one name.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    told = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    name = told.get("model name") or platform.processor() or platform.machine()
    details = [f"{what} {told[key]}" for key, what in _GENERATION.items() if key in told]
    return f"{name} ({', '.join(details)})" if details else name
