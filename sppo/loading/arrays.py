"""Builders for NumPy: data types, arrays, scalars and the random generators inside spaces."""

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
_GENERATORS: dict[str, Any] = {"PCG64": np.random.PCG64, "PCG64DXSM": np.random.PCG64DXSM}


def _dtype(rebuilder: Rebuilder, call: Call) -> np.dtype:
    """A numeric data type: no objects, whose bytes would be pointers, and no structures."""
    code, *_ = rebuilder.arguments(call, 1, 2, 3)
    # The data type of a space of texts is "U0".
    if not isinstance(code, str) or not (_NUMERIC.fullmatch(code) or code == "U0"):
        raise NotRestorable(f"it holds an array of {brief(code, 40)}, which are no numbers")
    state = rebuilder.value(rebuilder.state_node(call))
    dtype = np.dtype(code)
    if state is not None:
        order, *structure = state[1:5]
        if any(part is not None for part in structure) or order not in ("<", ">", "|", "="):
            raise NotRestorable("it holds an array with a structured data type")
        dtype = dtype.newbyteorder(order)
    return dtype


def array_from_bytes(rebuilder: Rebuilder, raw: Any, dtype: Any, shape: Any, order: str) -> np.ndarray:
    """A new array with the contents ``raw``, which must be as long as dtype and shape say."""
    if not isinstance(raw, bytes) or not isinstance(dtype, np.dtype) or order not in ("C", "F"):
        raise NotRestorable("it holds a malformed array")
    if not isinstance(shape, tuple) or len(shape) > _MAX_DIMENSIONS:
        raise NotRestorable("it holds an array with a malformed shape")
    if not all(type(length) is int and 0 <= length < 2**31 for length in shape):
        raise NotRestorable("it holds an array with a malformed shape")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise NotRestorable(f"it holds an array of shape {shape} with {len(raw)} bytes")
    rebuilder.budget.memory(len(raw))
    if dtype.kind == "b":
        # Any other byte than 0 and 1 would make a truth value that NumPy does not expect.
        flat = np.frombuffer(raw, np.uint8) != 0
    else:
        flat = np.frombuffer(raw, dtype) if raw else np.empty(0, dtype)
    return np.array(flat.reshape(shape, order=order), order=order)  # type: ignore[call-overload]


def _from_buffer(rebuilder: Rebuilder, call: Call) -> np.ndarray:
    rebuilder.state_node(call)
    raw, dtype, shape, order, *axes = rebuilder.arguments(call, 4, 5)
    if order != "K":
        return array_from_bytes(rebuilder, raw, dtype, shape, order)
    # NumPy 2.3 writes transposed arrays as they lie in memory, with the order of their axes.
    if not axes or not isinstance(axes[0], tuple) or sorted(axes[0]) != list(range(len(shape))):
        raise NotRestorable("it holds an array with malformed axes")
    return array_from_bytes(rebuilder, raw, dtype, shape, "C").transpose(axes[0])


def _reconstruct(rebuilder: Rebuilder, call: Call) -> np.ndarray:
    kind = call.args[0] if isinstance(call.args, tuple) and call.args else None
    if not isinstance(kind, Global) or (kind.module, kind.name) != ("numpy", "ndarray"):
        raise NotRestorable("it holds an array of an unexpected class")
    _, shape, dtype, fortran, raw = rebuilder.value(rebuilder.state_node(call))
    return array_from_bytes(rebuilder, raw, dtype, shape, "F" if fortran else "C")


def _scalar(rebuilder: Rebuilder, call: Call) -> Any:
    rebuilder.state_node(call)
    dtype, raw = rebuilder.arguments(call, 2)
    return array_from_bytes(rebuilder, raw, dtype, (), "C")[()]


def _seed_sequence(rebuilder: Rebuilder, call: Call) -> np.random.SeedSequence:
    state = rebuilder.value(rebuilder.state_node(call))
    entropy, children, _, pool_size, spawn_key = state
    if not (entropy is None or isinstance(entropy, int)) or not isinstance(pool_size, int):
        raise NotRestorable("it holds a malformed seed")
    if not 4 <= pool_size <= 64 or len(spawn_key) > 64 or not all(type(part) is int for part in spawn_key):
        raise NotRestorable("it holds a malformed seed")
    return np.random.SeedSequence(
        entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=int(children)
    )


def _bit_generator(rebuilder: Rebuilder, call: Call) -> Any:
    """A PCG64 with its state. Other generators index memory with numbers from their state."""
    named = call.args[0] if isinstance(call.args, tuple) and len(call.args) == 1 else None
    name = named.name if isinstance(named, Global) else named
    if name not in _GENERATORS:
        raise NotRestorable(f"it holds a random generator other than {' or '.join(_GENERATORS)}")
    state = rebuilder.value(rebuilder.state_node(call))
    seed = None
    if isinstance(state, tuple):
        state, seed = state
    if not isinstance(seed, np.random.SeedSequence):
        seed = None
    generator = _GENERATORS[name](seed)
    generator.state = state
    return generator


def _generator(rebuilder: Rebuilder, call: Call) -> np.random.Generator:
    bits, *_ = call.args if isinstance(call.args, tuple) and call.args else (None,)
    made: Any = rebuilder.value(bits)
    state = rebuilder.value(rebuilder.state_node(call))
    if isinstance(made, str) and made in _GENERATORS:
        made = _GENERATORS[made]()
    if type(made) not in _GENERATORS.values():
        raise NotRestorable("it holds a malformed random generator")
    if state is not None:
        made.state = state
    return np.random.Generator(made)


BUILDERS = {
    "numpy.dtype": _dtype,
    "numpy._core.numeric._frombuffer": _from_buffer,
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy.random.bit_generator.__pyx_unpickle_SeedSequence": _seed_sequence,
    "numpy.random._pickle.__bit_generator_ctor": _bit_generator,
    "numpy.random._pickle.__generator_ctor": _generator,
}
