"""Builders for NumPy: data types, arrays and scalars."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from sppo.loading.errors import NotRestorable, brief
from sppo.loading.pickletree import Call, Global

if TYPE_CHECKING:
    from sppo.loading.rebuild import Rebuilder

_NUMERIC = re.compile(r"[<>|=]?([biufc])([0-9]{1,2})")
_MAX_DIMENSIONS = 32


def _dtype(rebuilder: Rebuilder, call: Call) -> np.dtype:
    """A numeric data type: no objects, whose bytes would be pointers, and no structures."""
    code, *_ = rebuilder.arguments(call, 1, 2, 3)
    if not isinstance(code, str) or not _NUMERIC.fullmatch(code):
        raise NotRestorable(f"it holds an array of {brief(code, 40)}, which are no numbers")
    state = rebuilder.value(rebuilder.state_node(call))
    if state is None:
        return np.dtype(code)
    order, *structure = state[1:5]
    if any(part is not None for part in structure) or order not in ("<", ">", "|", "="):
        raise NotRestorable("it holds an array with a structured data type")
    return np.dtype(code).newbyteorder(order)


def _array(rebuilder: Rebuilder, raw: Any, dtype: Any, shape: Any, order: str) -> np.ndarray:
    """A new array with the contents ``raw``, which must be as long as dtype and shape say."""
    if not isinstance(raw, bytes) or not isinstance(dtype, np.dtype) or order not in ("C", "F"):
        raise NotRestorable("it holds a malformed array")
    sizes = shape if isinstance(shape, tuple) and len(shape) <= _MAX_DIMENSIONS else (None,)
    if not all(type(length) is int and 0 <= length < 2**31 for length in sizes):
        raise NotRestorable("it holds an array with a malformed shape")
    if math.prod(sizes) * dtype.itemsize != len(raw):
        raise NotRestorable(f"it holds an array of shape {shape} with {len(raw)} bytes")
    rebuilder.budget.memory(len(raw))
    # Any other byte than 0 and 1 would make a truth value that NumPy does not expect.
    flat = np.frombuffer(raw, np.uint8) != 0 if dtype.kind == "b" else np.frombuffer(raw, dtype)
    return np.array(flat.reshape(shape, order=order), order=order)  # type: ignore[call-overload]


def _from_buffer(rebuilder: Rebuilder, call: Call) -> np.ndarray:
    rebuilder.state_node(call)
    raw, dtype, shape, order, *axes = rebuilder.arguments(call, 4, 5)
    if order != "K":
        return _array(rebuilder, raw, dtype, shape, order)
    # NumPy 2.3 writes transposed arrays as they lie in memory, with the order of their axes.
    return _array(rebuilder, raw, dtype, shape, "C").transpose(*axes)


def _reconstruct(rebuilder: Rebuilder, call: Call) -> np.ndarray:
    kind = call.args[0] if isinstance(call.args, tuple) and call.args else None
    if not isinstance(kind, Global) or (kind.module, kind.name) != ("numpy", "ndarray"):
        raise NotRestorable("it holds an array of an unexpected class")
    _, shape, dtype, fortran, raw = rebuilder.value(rebuilder.state_node(call))
    return _array(rebuilder, raw, dtype, shape, "F" if fortran else "C")


def _scalar(rebuilder: Rebuilder, call: Call) -> Any:
    rebuilder.state_node(call)
    dtype, raw = rebuilder.arguments(call, 2)
    return _array(rebuilder, raw, dtype, (), "C")[()]


BUILDERS = {
    "numpy.dtype": _dtype,
    "numpy._core.numeric._frombuffer": _from_buffer,
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray.scalar": _scalar,
}
