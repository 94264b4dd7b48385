"""The first run on a machine: compile the update's kernel in a second process while this one gets ready.

Numba keeps compiled code on disk, so this happens once per machine and version. The kernel is the same
whichever process compiles it; should the other one fail, this one compiles it itself when it needs it.
Run as a module, this file is that other process.
"""

from __future__ import annotations

import glob
import math
import os
import subprocess
import sys

import numpy as np
from numba import config

from sppo.engine import kernels

#: far more than a slow machine needs
PATIENCE_SECONDS = 120.0


class Warmup:
    """A compilation that may be under way in another process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin, unless the kernel is on disk already."""
        if self._process is None and not config.DISABLE_JIT and not is_compiled():  # type: ignore[attr-defined]
            command = [sys.executable, "-m", "sppo.engine.warmup"]
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            except OSError:
                return

    def wait(self) -> None:
        """Wait for the end, so that the kernel is read from disk instead of compiled twice."""
        if self._process is not None:
            try:
                self._process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._process = None


#: one for all models of the process
WARMUP = Warmup()


def is_compiled() -> bool:
    """Whether Numba has the update's kernel on disk (or in memory)."""
    kernel = kernels.run_epoch
    if kernel.signatures:
        return True
    folder = kernel._cache.cache_path  # type: ignore[attr-defined]
    return bool(glob.glob(os.path.join(glob.escape(folder), "kernels.run_epoch-*.nbi")))


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
