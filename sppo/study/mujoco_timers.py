"""MuJoCo times itself, with so many looks at the clock that they are 7 to 14 % of a step of its tasks."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path


def stop_mujoco_timers() -> None:
    """Take MuJoCo's clock away, in a study's process, where nobody reads ``data.timer``; its physics stay.

    The clock is the C library's global ``mjcb_time``, which may be null; ``mujoco.set_mjcb_time(None)``
    leaves the bindings' own clock there. Where MuJoCo is not imported, or has its library elsewhere, nothing
    happens.
    """
    package = sys.modules.get("mujoco")
    if package is None or package.__file__ is None:
        return
    for path in Path(package.__file__).parent.glob("libmujoco.*"):
        # By the path of the library that is loaded: not a second copy of it.
        with contextlib.suppress(OSError, ValueError):
            ctypes.c_void_p.in_dll(ctypes.CDLL(str(path)), "mjcb_time").value = None
