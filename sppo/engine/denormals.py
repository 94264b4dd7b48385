"""Numbers too small for float32's full precision count as zero during an update.

Adam's averages of a gradient that stays zero (a ReLU that no observation reaches any more) shrink by a
constant factor at every step. After a thousand steps they are denormal, and Intel's processors compute with
them many times more slowly. They are 1e33 times smaller than Adam's epsilon: no weight notices, but an exact
zero, which stays one instead of moving by 1e-36.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch as th


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """On this thread, for the compiled code as for PyTorch's own; as before afterwards."""
    before = counts_as_zero()
    th.set_flush_denormal(True)
    try:
        yield
    finally:
        th.set_flush_denormal(before)


def counts_as_zero() -> bool:
    """Whether this thread takes denormal results for zero now."""
    return bool(np.float32(1e-30) * np.float32(1e-10) == 0)
