"""Builders for gymnasium's spaces, through their constructors; ``gym``'s old spaces become gymnasium's.

Only what Stable-Baselines3's policies take: no tuples, texts, graphs. A space's random generator starts anew:
nothing in training draws from it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from sppo.loading.errors import NotRestorable
from sppo.loading.pickletree import Call

if TYPE_CHECKING:
    from sppo.loading.rebuild import Rebuilder

#: A space may claim to be large without holding an array of its size.
_MAX_ELEMENTS = 2**24
#: Arrays of more dimensions are printed in full, however large they are.
_MAX_DIMENSIONS = 5
#: What a space makes of each element of its bounds: copies, masks, texts.
_BYTES_PER_ELEMENT = 64
_GENERATORS = ("_np_random", "np_random")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or abs(int(value)) >= 2**62:
        raise NotRestorable("a space has a size that is no integer")
    return int(value)


def _box(state: dict[str, Any]) -> spaces.Box:
    low, high, dtype = state["low"], state["high"], state["dtype"]
    if not all(isinstance(bound, np.ndarray) for bound in (low, high)) or not isinstance(dtype, np.dtype):
        raise NotRestorable("a Box has malformed bounds")
    if not low.shape == high.shape == state.get("_shape", state.get("shape")):
        raise NotRestorable("a Box has bounds of another shape than its own")
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)


def _discrete(state: dict[str, Any]) -> spaces.Discrete:
    dtype = state.get("dtype")
    kind = dtype.type if isinstance(dtype, np.dtype) and dtype.kind in "iu" else np.int64
    return spaces.Discrete(_whole(state["n"]), start=_whole(state.get("start", 0)), dtype=kind)


def _multi_discrete(state: dict[str, Any]) -> spaces.MultiDiscrete:
    nvec, start = state["nvec"], state.get("start")
    if not isinstance(nvec, np.ndarray) or nvec.dtype.kind not in "iu":
        raise NotRestorable("a MultiDiscrete has malformed sizes")
    if start is not None and not isinstance(start, np.ndarray):
        raise NotRestorable("a MultiDiscrete has a malformed start")
    return spaces.MultiDiscrete(nvec, dtype=nvec.dtype.type, start=start)


def _multi_binary(state: dict[str, Any]) -> spaces.MultiBinary:
    n = state["n"]
    sizes = [_whole(size) for size in (n if isinstance(n, (tuple, list, np.ndarray)) else [n])]
    if math.prod(sizes) > _MAX_ELEMENTS:
        raise NotRestorable(f"a MultiBinary has more than {_MAX_ELEMENTS} elements")
    return spaces.MultiBinary(sizes if isinstance(n, (tuple, list, np.ndarray)) else sizes[0])


def _dict(state: dict[str, Any]) -> spaces.Dict:
    parts = state["spaces"]
    if not isinstance(parts, dict) or not all(isinstance(key, str) for key in parts):
        raise NotRestorable("a Dict space has malformed parts")
    # An OrderedDict keeps the order of the file.
    made = spaces.Dict(OrderedDict(parts))
    made.sort_keys = bool(state.get("sort_keys", True))
    return made


_BY_STATE: dict[type[spaces.Space], Callable[[dict[str, Any]], spaces.Space]] = {
    spaces.Box: _box,
    spaces.Discrete: _discrete,
    spaces.MultiDiscrete: _multi_discrete,
    spaces.MultiBinary: _multi_binary,
    spaces.Dict: _dict,
}


def _state(rebuilder: Rebuilder, call: Call) -> dict[str, Any]:
    """A space's attributes, charged for what the constructor makes of them."""
    nodes = rebuilder.attributes(call)
    state = {key: rebuilder.value(node) for key, node in nodes.items() if key not in _GENERATORS}
    for array in (value for value in state.values() if isinstance(value, np.ndarray)):
        if array.ndim > _MAX_DIMENSIONS:
            raise NotRestorable(f"a space has more than {_MAX_DIMENSIONS} dimensions")
        # An array that many spaces share is copied by each of them.
        rebuilder.budget.memory(_BYTES_PER_ELEMENT * array.size)
        rebuilder.budget.work(min(array.size, 8000) // 20)
    return state


def of_class(cls: type[spaces.Space]) -> Callable[[Rebuilder, Call], spaces.Space]:
    """A builder for one of gymnasium's classes, or one that the user derived from it.

    What gymnasium's class knows is rebuilt by its constructor; attributes of the user's own are set, and
    no method of the user's is called.
    """
    base = next((ancestor for ancestor in cls.__mro__ if ancestor in _BY_STATE), None)
    if base is None:
        raise NotRestorable(f"{cls.__module__}.{cls.__qualname__} derives from no space that can be restored")

    def build(rebuilder: Rebuilder, call: Call) -> spaces.Space:
        state = _state(rebuilder, call)
        known = _BY_STATE[base](state)
        if cls is base:
            return known
        made = object.__new__(cls)
        own = {name: value for name, value in state.items() if name != "_shape" and not hasattr(cls, name)}
        made.__dict__.update(own | known.__dict__)
        return made

    return build


BUILDERS = {f"{cls.__module__}.{cls.__qualname__}": of_class(cls) for cls in _BY_STATE}
