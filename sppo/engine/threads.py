"""How many threads the engine lets BLAS use: one, unless a matrix product is large enough to gain.

A minibatch of 64 through layers of 64 is microseconds of arithmetic; a second thread costs more in
waiting than it saves, and its spinning slows down whatever else runs on the machine. Where products
are large, the engine uses as many threads as PyTorch would (``OMP_NUM_THREADS`` and
``torch.set_num_threads`` are obeyed). The number is set for the duration of a kernel and restored.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import scipy.linalg.cython_blas
import torch as th

from sppo.engine.networks import FAN_IN, FAN_OUT, Layout

#: multiply-adds of the largest product of a minibatch from which several threads are used
LARGE_PRODUCT = 8_000_000


@functools.cache
def _controls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's getter and setter of its number of threads; ``None`` if SciPy has another BLAS."""
    try:
        library = ctypes.CDLL(scipy.linalg.cython_blas.__file__)
    except OSError:
        return None
    for prefix in ("scipy_openblas", "openblas"):
        if hasattr(library, f"{prefix}_get_num_threads"):
            return library[f"{prefix}_get_num_threads"], library[f"{prefix}_set_num_threads"]
    return None


@contextmanager
def blas_threads(layout: Layout, rows: int) -> Iterator[None]:
    """Set the number of BLAS threads that suits minibatches of ``rows`` samples."""
    controls = _controls()
    if controls is None:
        yield
        return
    read, write = controls
    largest = rows * int((layout.layers[:, FAN_IN] * layout.layers[:, FAN_OUT]).max())
    before = read()
    write(th.get_num_threads() if largest >= LARGE_PRODUCT else 1)
    try:
        yield
    finally:
        write(before)
