"""Builders for gymnasium's spaces, through their constructors; ``gym``'s old spaces become gymnasium's."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from sppo.loading.errors import NotRestorable
from sppo.loading.pickletree import Call, Node

if TYPE_CHECKING:
    from sppo.loading.rebuild import Rebuilder

#: A space may claim to be large without holding an array of its size.
_MAX_ELEMENTS = 2**24
#: Arrays of more dimensions are printed in full, however large they are.
_MAX_DIMENSIONS = 5
#: What a space makes of each element of its bounds: copies, masks, texts.
_BYTES_PER_ELEMENT = 64


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or abs(int(value)) >= 2**62:
        raise NotRestorable("a space has a size that is no integer")
    return int(value)


def _box(state: dict[str, Any]) -> spaces.Box:
    low, high, dtype = state["low"], state["high"], state["dtype"]
    if not all(isinstance(bound, np.ndarray) for bound in (low, high)) or not isinstance(dtype, np.dtype):
        raise NotRestorable("a Box has malformed bounds")
    shape = state.get("_shape", state.get("shape"))
    if low.shape != shape or high.shape != shape:
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


def _tuple(state: dict[str, Any]) -> spaces.Tuple:
    return spaces.Tuple(tuple(state["spaces"]))


def _text(state: dict[str, Any]) -> spaces.Text:
    order = list(state.get("_char_list", sorted(state["_char_set"])))
    if not all(isinstance(one, str) and len(one) == 1 for one in order):
        raise NotRestorable("a Text space has a malformed alphabet")
    longest, shortest = _whole(state["max_length"]), _whole(state["min_length"])
    return spaces.Text(longest, min_length=shortest, charset="".join(order))


_BY_STATE: dict[type[spaces.Space], Callable[[dict[str, Any]], spaces.Space]] = {
    spaces.Box: _box,
    spaces.Discrete: _discrete,
    spaces.MultiDiscrete: _multi_discrete,
    spaces.MultiBinary: _multi_binary,
    spaces.Dict: _dict,
    spaces.Tuple: _tuple,
    spaces.Text: _text,
}


def _state(rebuilder: Rebuilder, call: Call) -> tuple[dict[str, Any], np.random.Generator | None]:
    """A space's attributes, and its random generator if that can be restored."""
    nodes: dict[str, Node] = rebuilder.attributes(call)
    generator_node = nodes.pop("_np_random", nodes.pop("np_random", None))
    try:
        generator = rebuilder.value(generator_node)
        if generator is not None and not isinstance(generator, np.random.Generator):
            raise NotRestorable("it is no generator")
    except NotRestorable:
        generator = None
        rebuilder.replaced.append("the random generator of a space")
    state = {key: rebuilder.value(node) for key, node in nodes.items()}
    for array in (value for value in state.values() if isinstance(value, np.ndarray)):
        if array.ndim > _MAX_DIMENSIONS:
            raise NotRestorable(f"a space has more than {_MAX_DIMENSIONS} dimensions")
        # An array that many spaces share is copied by each of them.
        rebuilder.budget.memory(_BYTES_PER_ELEMENT * array.size)
        rebuilder.budget.work(min(array.size, 8000) // 20)
    return state, generator


def _builder(cls: type[spaces.Space]) -> Callable[[Rebuilder, Call], spaces.Space]:
    def build(rebuilder: Rebuilder, call: Call) -> spaces.Space:
        state, generator = _state(rebuilder, call)
        made = _BY_STATE[cls](state)
        made._np_random = generator  # type: ignore[assignment]
        return made

    return build


def of_user_class(cls: type[spaces.Space]) -> Callable[[Rebuilder, Call], spaces.Space]:
    """A builder for a class that the user derived from one of gymnasium's.

    What gymnasium's class knows is rebuilt as for that class; attributes of the user's own are set, and
    no method of the user's is called.
    """
    base = next((ancestor for ancestor in cls.__mro__ if ancestor in _BY_STATE), None)
    if base is None:
        raise NotRestorable(f"{cls.__module__}.{cls.__qualname__} derives from no space that can be restored")

    def build(rebuilder: Rebuilder, call: Call) -> spaces.Space:
        state, generator = _state(rebuilder, call)
        made = object.__new__(cls)
        made.__dict__.update(_BY_STATE[base](state).__dict__)
        for name, value in state.items():
            if not hasattr(cls, name) and name not in made.__dict__ and name not in ("shape", "_shape"):
                made.__dict__[name] = value
        made.__dict__["_np_random"] = generator
        return made

    return build


BUILDERS = {f"{cls.__module__}.{cls.__qualname__}": _builder(cls) for cls in _BY_STATE}
