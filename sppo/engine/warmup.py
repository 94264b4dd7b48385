"""The first run on a machine: compile the update's kernel in a second process while this one gets ready.

Numba keeps compiled code on disk, so this happens once per machine and version. The kernel is the same
whichever process compiles it; should the other one fail, this one compiles it itself when it needs it.
Where forking is safe the other process is a copy of this one, which starts at once and shares its memory;
elsewhere it runs this file as a module.
"""

from __future__ import annotations

import glob
import math
import multiprocessing as mp
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
from numba import config, types

from sppo.engine import kernels
from sppo.engine.forking import can_fork, quiet_start

#: far more than a slow machine needs
PATIENCE_SECONDS = 120.0


class Warmup:
    """A compilation that may be under way in another process."""

    def __init__(self) -> None:
        self._process: Any = None

    def start(self) -> None:
        """Begin, unless the kernel is on disk already."""
        if self._process is not None or config.DISABLE_JIT or is_compiled():  # type: ignore[attr-defined]
            return
        try:
            self._process = _fork() if can_fork() else _spawn()
        except OSError:
            return

    def wait(self) -> None:
        """Wait for the end, so that the kernel is read from disk instead of compiled twice."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if isinstance(process, subprocess.Popen):
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        else:
            process.join(PATIENCE_SECONDS)
            process.kill()


#: one for all models of the process
WARMUP = Warmup()


def _fork() -> Any:
    # What both processes need, with Numba's tables that the first compilation fills: once, and shared.
    flat = types.Array(types.float32, 1, "C")
    kernels.forward.compile((types.Array(types.int64, 2, "C"), flat, flat, flat, flat, types.int64))
    process = mp.get_context("fork").Process(target=_compile_quietly, daemon=True)
    quiet_start(process)
    return process


def _spawn() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sppo.engine.warmup"]
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)


def _compile_quietly() -> None:
    """The copy's life; what goes wrong here is told, if it matters, by the process that waits for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        compile_update()
    except Exception:
        os._exit(1)


def is_compiled() -> bool:
    """Whether Numba has the update's kernel on disk (or in memory), or has nowhere to keep it."""
    kernel = kernels.run_epoch
    if kernel.signatures:
        return True
    folder = kernel._cache.cache_path
    return folder is None or bool(glob.glob(os.path.join(glob.escape(folder), "kernels.run_epoch-*.nbi")))


def compile_update() -> None:
    """Call the kernel on the smallest problem there is: one feature, one action, two samples."""
    layers = np.array(
        [[-1, 1, 1, 1, 2, kernels.IDENTITY, 0, 0], [-1, 1, 1, 3, 4, kernels.IDENTITY, 1, 0]], np.int64
    )
    objective = kernels.Objective(
        *(True, True, 0.2, 0.2, math.log(1.2), 0.0, math.inf, 0.0, 0.5, True, math.inf),
    )
    adam = kernels.Adam(1e-3, 0.9, 0.999, 1e-5, 0.0, 0.5)

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    data = (zeros(2, 1), zeros(2, 0), zeros(2), zeros(2), zeros(2), zeros(2))
    state = (zeros(5), zeros(5), zeros(5), zeros(5))
    workspace = (zeros(2), zeros(4), zeros(4), np.ones(2, np.float32), zeros(1))
    kernels.run_epoch(
        *(layers, np.array([0, 1, 0], np.int64), kernels.GAUSSIAN, np.zeros(0, np.int64), objective, adam, 0),
        *(np.arange(2), zeros(2, 1), data, state, workspace, np.zeros((1, kernels.N_MEASUREMENTS))),
    )


if __name__ == "__main__":
    compile_update()
