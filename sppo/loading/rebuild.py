"""Makes objects of a parsed pickle: plain containers, and the calls for which there is a builder.

A builder is a function of ours that reads the arguments of one known call and makes the object from
checked values. No function, constructor or ``__setstate__`` that the file names is called with what the
file says; a call without a builder is not restored. This module has the builders of containers, NumPy's
arrays and gymnasium's spaces.
"""

from __future__ import annotations

import functools
import math
import pathlib
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from sppo.loading import allowlist
from sppo.loading.errors import LoadError, NotRestorable, brief
from sppo.loading.pickletree import ATOMS, Call, Global, Node, Pairs, Tree

Builder = Callable[["Rebuilder", Call], object]
#: by the name of the function or class that the file would call
BUILDERS: dict[str, Builder] = {}
#: an object's attributes
State = dict[str, Any]

_MAX_DEPTH = 60
#: Longer ones cannot even be printed.
_MAX_BITS = 4096
#: What an object of a known class takes, apart from its arrays.
_OBJECT_BYTES = 1024
_MAX_ARRAY_DIMENSIONS = 32
#: A space may claim to be large without holding an array of its size.
_MAX_CHOICES = 2**24
#: Arrays of more dimensions are printed in full, however large they are.
_MAX_SPACE_DIMENSIONS = 5
#: What a space makes of each element of its bounds: copies, masks, texts.
_BYTES_PER_ELEMENT = 64
#: Random generators of spaces start anew: nothing in training draws from them.
_GENERATORS = ("_np_random", "np_random")
_NUMERIC = re.compile(r"[<>|=]?([biufc])([0-9]{1,2})")


def builds(*names: str) -> Callable[[Builder], Builder]:
    """Makes a function the builder for what these names call."""

    def register(builder: Builder) -> Builder:
        BUILDERS.update(dict.fromkeys(names, builder))
        return builder

    return register


class Rebuilder:
    """Turns the nodes of one tree into objects; one that occurs twice is made, and paid for, twice."""

    def __init__(self, tree: Tree, builders: Mapping[str, Builder] | None = None) -> None:
        self.budget = tree.budget
        self.setters = setters(tree)
        self._root = tree.root
        self._builders = {**BUILDERS, **(builders or {})}
        self._depth = 0

    def root(self) -> object:
        """The tree's value; :class:`NotRestorable` if any part of it would need the file's code."""
        return self.value(self._root)

    def value(self, node: Node) -> object:
        """The object that ``node`` stands for."""
        self.budget.step(len(node) if isinstance(node, (str, bytes)) else 0)
        if isinstance(node, int) and node.bit_length() > _MAX_BITS:
            raise NotRestorable(f"it holds an integer of more than {_MAX_BITS} bits")
        if isinstance(node, ATOMS):
            return node
        if self._depth >= _MAX_DEPTH:
            raise NotRestorable(f"it is nested more than {_MAX_DEPTH} deep")
        self._depth += 1
        try:
            match node:
                case list() | tuple():
                    return type(node)([self.value(item) for item in node])
                case Pairs(pairs):
                    return self.mapping(pairs)
                case Global(module, name):
                    return allowlist.resolve(module, name)
                case Call(Global() as function):
                    return self._made(node, function)
            raise NotRestorable(f"it calls the result of {node}")
        finally:
            self._depth -= 1

    def _made(self, call: Call, function: Global) -> object:
        builder = self._builders.get(canonical(function))
        if builder is None:
            cls = allowlist.resolve(function.module, function.name)
            if not isinstance(cls, type) or not issubclass(cls, spaces.Space):
                raise NotRestorable(f"it holds an object of {call}, of which only the class can be restored")
            builder = functools.partial(_space, cls)
        self.budget.memory(_OBJECT_BYTES)
        try:
            return builder(self, call)
        except (NotRestorable, LoadError):
            raise
        except Exception as error:
            # The builders hand checked values to NumPy's and gymnasium's constructors, which refuse
            # senseless ones with exceptions of many kinds.
            raise NotRestorable(f"{call} got senseless values ({error})") from error

    def mapping(self, pairs: Sequence[tuple[Node, Node]]) -> dict[Any, Any]:
        """A dictionary whose keys are cheap to hash: atoms or short tuples of them."""
        for key, _ in pairs:
            parts = key if isinstance(key, tuple) and len(key) <= 16 else [key]
            if not all(isinstance(part, ATOMS) for part in parts):
                raise NotRestorable("it has a dictionary key that is no plain value")
        return {self.value(key): self.value(item) for key, item in pairs}

    def arguments(self, call: Call, *counts: int) -> list[Any]:
        """The values of the positional arguments, of which there must be one of ``counts``."""
        if not isinstance(call.args, tuple) or len(call.args) not in counts:
            raise NotRestorable(f"{call} got unexpected arguments")
        return [self.value(arg) for arg in call.args]

    def state(self, call: Call) -> object:
        """What the object's state is set to; ``None`` if it is not."""
        if len(call.states) > 1 or call.items or call.pairs:
            raise NotRestorable(f"{call} is changed in an unexpected way")
        return self.value(call.states[0]) if call.states else None

    def attributes(self, call: Call) -> State:
        """The attributes of an object made without arguments, but for random generators."""
        self.arguments(call, 0)
        match call:
            case Call(states=[Pairs(pairs)], items=[], pairs=[]):
                return self.mapping([pair for pair in pairs if pair[0] not in _GENERATORS])
        raise NotRestorable(f"{call} has an unexpected state")


def canonical(name: Global) -> str:
    """A global's name without the accidents of library versions."""
    if name.module in ("cloudpickle.cloudpickle_fast", "cloudpickle.cloudpickle"):
        return f"cloudpickle.{name.name}"
    module = name.module.replace("numpy.core.", "numpy._core.").replace("gym.spaces.", "gymnasium.spaces.")
    return f"{module}.{name.name}"


def setters(tree: Tree) -> dict[int, dict[str, Node]]:
    """By ``id(made)``, what cloudpickle sets on a function: the slots in ``setter(made, (_, slots))``."""
    found = {}
    for call in tree.calls:
        match call.args:
            case (made, (_, Pairs(pairs))) if called(call).startswith("cloudpickle."):
                # It writes ten; many calls may share a long list of them.
                found[id(made)] = {key: item for key, item in pairs[:20] if isinstance(key, str)}
    return found


def called(call: Call) -> str:
    """The name of what is called; cloudpickle looks up the constructor of a function's code by a call."""
    inner = call.function.function if isinstance(call.function, Call) else None
    if isinstance(inner, Global) and canonical(inner) == "cloudpickle._builtin_type":
        return canonical(inner)
    return canonical(call.function) if isinstance(call.function, Global) else ""


@builds("collections.OrderedDict")
def _ordered_dict(rebuilder: Rebuilder, call: Call) -> OrderedDict[object, object]:
    """Without attributes: torch writes layers' versions beside a state_dict, and does not need them."""
    rebuilder.arguments(call, 0)
    return OrderedDict(rebuilder.mapping(call.pairs))


@builds("collections.deque")
def _deque(rebuilder: Rebuilder, call: Call) -> deque[object]:
    first, *length = rebuilder.arguments(call, 0, 1, 2) or [()]
    if first:
        raise NotRestorable("a deque is written in an unexpected way")
    return deque([rebuilder.value(item) for item in call.items], *length)


@builds(*(f"pathlib.{module}{kind}Path" for module in ("", "_local.") for kind in ("Posix", "Windows")))
def _path(rebuilder: Rebuilder, call: Call) -> pathlib.Path:
    parts = rebuilder.arguments(call, *range(64))
    rebuilder.budget.memory(16 * sum(len(part) for part in parts))
    return pathlib.Path(*parts)


@builds("cloudpickle._make_skeleton_class")
def _by_value_class(rebuilder: Rebuilder, call: Call) -> object:
    """A class that cloudpickle wrote with its code: the program's own class of that name, if it has one."""
    match call.args:
        case (_, str(name), _, Pairs(members), *_):
            module = next((item for key, item in members if key == "__module__"), None)
        case _:
            module = None
    if not isinstance(module, str):
        raise NotRestorable("a class is written in an unexpected way")
    try:
        return allowlist.resolve(module, name)
    except NotRestorable as reason:
        raise NotRestorable(f"the code of {module}.{name} is in the file, and is not run; {reason}") from None


@builds("numpy.dtype")
def _dtype(rebuilder: Rebuilder, call: Call) -> np.dtype:
    """A numeric data type: no objects, whose bytes would be pointers, and no structures."""
    code, *_ = rebuilder.arguments(call, 1, 2, 3)
    if not isinstance(code, str) or not _NUMERIC.fullmatch(code):
        raise NotRestorable(f"it holds an array of {brief(code, 40)}, which are no numbers")
    match rebuilder.state(call):
        case None:
            return np.dtype(code)
        case (_, "<" | ">" | "|" | "=" as order, None, None, None, *_):
            return np.dtype(code).newbyteorder(order)
    raise NotRestorable("it holds an array with a structured data type")


def lengths(shape: object) -> tuple[int, ...]:
    """A shape, or strides, of plain numbers."""
    found = shape if isinstance(shape, tuple) and len(shape) <= _MAX_ARRAY_DIMENSIONS else (None,)
    if not all(type(length) is int and 0 <= length < 2**40 for length in found):
        raise NotRestorable("it holds an array or tensor with a malformed shape")
    return found


def _array(rebuilder: Rebuilder, raw: object, dtype: object, shape: object, order: object) -> np.ndarray:
    """A new array with the contents ``raw``, which must be as long as dtype and shape say."""
    if not isinstance(raw, bytes) or not isinstance(dtype, np.dtype) or order not in ("C", "F"):
        raise NotRestorable("it holds a malformed array")
    sizes = lengths(shape)
    if math.prod(sizes) * dtype.itemsize != len(raw):
        raise NotRestorable(f"it holds an array of shape {shape} with {len(raw)} bytes")
    rebuilder.budget.memory(len(raw))
    # Any other byte than 0 and 1 would make a truth value that NumPy does not expect.
    flat = np.frombuffer(raw, np.uint8) != 0 if dtype.kind == "b" else np.frombuffer(raw, dtype)
    return np.array(flat.reshape(sizes, order=order), order=order)


@builds("numpy._core.numeric._frombuffer")
def _from_buffer(rebuilder: Rebuilder, call: Call) -> np.ndarray:
    raw, dtype, shape, order, *axes = rebuilder.arguments(call, 4, 5)
    if order != "K":
        return _array(rebuilder, raw, dtype, shape, order)
    # NumPy 2.3 writes transposed arrays as they lie in memory, with the order of their axes.
    return _array(rebuilder, raw, dtype, shape, "C").transpose(*axes)


@builds("numpy._core.multiarray._reconstruct")
def _reconstruct(rebuilder: Rebuilder, call: Call) -> np.ndarray:
    match call.args, rebuilder.state(call):
        case (Global("numpy", "ndarray"), *_), (_, shape, dtype, fortran, raw):
            return _array(rebuilder, raw, dtype, shape, "F" if fortran else "C")
    raise NotRestorable("it holds an array of an unexpected class")


@builds("numpy._core.multiarray.scalar")
def _scalar(rebuilder: Rebuilder, call: Call) -> object:
    dtype, raw = rebuilder.arguments(call, 2)
    return _array(rebuilder, raw, dtype, (), "C")[()]


def _choices(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or abs(int(value)) > _MAX_CHOICES:
        raise NotRestorable(f"a space has a size that is no integer, or more than {_MAX_CHOICES}")
    return int(value)


def _box(state: State) -> spaces.Box:
    low, high, dtype = state["low"], state["high"], state["dtype"]
    if not low.shape == high.shape == state.get("_shape", state.get("shape")):
        raise NotRestorable("a Box has bounds of another shape than its own")
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)


def _discrete(state: State) -> spaces.Discrete:
    dtype = state.get("dtype")
    kind = dtype.type if isinstance(dtype, np.dtype) and dtype.kind in "iu" else np.int64
    return spaces.Discrete(_choices(state["n"]), start=_choices(state.get("start", 0)), dtype=kind)


def _multi_discrete(state: State) -> spaces.MultiDiscrete:
    nvec = state["nvec"]
    if nvec.dtype.kind not in "iu" or nvec.max(initial=0) > _MAX_CHOICES:
        raise NotRestorable("a MultiDiscrete has malformed sizes")
    return spaces.MultiDiscrete(nvec, dtype=nvec.dtype.type, start=state.get("start"))


def _multi_binary(state: State) -> spaces.MultiBinary:
    several = isinstance(state["n"], (tuple, list, np.ndarray))
    sizes = [_choices(size) for size in (state["n"] if several else [state["n"]])]
    _choices(math.prod(sizes))
    return spaces.MultiBinary(sizes if several else sizes[0])


def _dict(state: State) -> spaces.Dict:
    # An OrderedDict keeps the order of the file.
    return spaces.Dict(OrderedDict(state["spaces"]))


_BY_STATE: dict[type[spaces.Space], Callable[[State], spaces.Space]] = {
    spaces.Box: _box,
    spaces.Discrete: _discrete,
    spaces.MultiDiscrete: _multi_discrete,
    spaces.MultiBinary: _multi_binary,
    spaces.Dict: _dict,
}


def _space(cls: type[spaces.Space], rebuilder: Rebuilder, call: Call) -> spaces.Space:
    """A space of one of gymnasium's classes (``gym``'s become these), or one that the user derived from it.

    What gymnasium's class knows is rebuilt by its constructor; attributes of the user's own are set, and
    no method of the user's is called. Only what Stable-Baselines3's policies take: no tuples, texts, graphs.
    """
    base = next((ancestor for ancestor in cls.__mro__ if ancestor in _BY_STATE), None)
    if base is None:
        raise NotRestorable(f"{cls.__module__}.{cls.__qualname__} derives from no space that can be restored")
    state = rebuilder.attributes(call)
    for array in (value for value in state.values() if isinstance(value, np.ndarray)):
        if array.ndim > _MAX_SPACE_DIMENSIONS:
            raise NotRestorable(f"a space has more than {_MAX_SPACE_DIMENSIONS} dimensions")
        rebuilder.budget.memory(_BYTES_PER_ELEMENT * array.size)
        rebuilder.budget.work(50 + min(array.size, 8000) // 20)
    known = _BY_STATE[base](state)
    if cls is base:
        return known
    made = object.__new__(cls)
    own = {name: value for name, value in state.items() if name != "_shape" and not hasattr(cls, name)}
    made.__dict__.update(own | known.__dict__)
    return made


BUILDERS |= {f"{cls.__module__}.{cls.__qualname__}": functools.partial(_space, cls) for cls in _BY_STATE}
