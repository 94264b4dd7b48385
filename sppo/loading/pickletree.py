"""Reads a pickle as data: the byte stream becomes an inert tree and nothing in it is imported or called.

Unpickling *is* running a program: the stream names functions and the unpickler calls them. Filtering the
names leaves the question of what an allowed function does with hostile arguments. So Python's own unpickler
works here on inert material: where it would look up a name it gets a :class:`Global`, and where it would
call something, hash a key or copy shared arguments, the methods below only record that.
:mod:`sppo.loading.rebuild` then makes objects of those calls that it knows, each with a constructor of its
own that checks its arguments.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from sppo.loading.budget import Budget
from sppo.loading.errors import LoadError

#: An atom, a ``list`` or ``tuple`` of nodes, or one of the classes below.
Node = object
ATOMS = (type(None), bool, int, float, str, bytes)

#: What refers to things outside of the file, what only picklers of Python 2 wrote, and calls with keywords.
_REFUSED = {"EXT1", "EXT2", "EXT4", "PERSID", "NEXT_BUFFER", "READONLY_BUFFER", "INST", "OBJ", "DICT"}
_REFUSED |= {"NEWOBJ_EX"}
_NEWEST_PROTOCOL = 5
_MAX_NAME = 1000


@dataclass(eq=False, slots=True)
class Global:
    """A name that an unpickler would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module[:200]}.{self.name[:200]}"


@dataclass(eq=False, slots=True)
class Pairs:
    """A dictionary; its keys are not hashed, because hashing a nested key may take for ever."""

    pairs: list[tuple[Node, Node]] = field(default_factory=list)

    def __setitem__(self, key: Node, value: Node) -> None:
        self.pairs.append((key, value))


@dataclass(eq=False, slots=True)
class Call:
    """A call that an unpickler would make, and what it would then do to the result."""

    function: Node
    args: Node
    states: list[Node] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    pairs: list[tuple[Node, Node]] = field(default_factory=list)

    def __setitem__(self, key: Node, value: Node) -> None:
        self.pairs.append((key, value))

    def __setstate__(self, state: Node) -> None:
        self.states.append(state)

    def append(self, item: Node) -> None:
        self.items.append(item)

    add = append

    def __str__(self) -> str:
        # Calls of calls of calls may be nested deeper than Python's stack.
        function = self.function.function if isinstance(self.function, Call) else self.function
        return str(function) if isinstance(function, Global) else f"<{type(function).__name__}>"


@dataclass(frozen=True)
class Tree:
    """A parsed pickle: its value, and every call and name in the order of execution, used or not."""

    root: Node
    calls: list[Call]
    globals: list[Global]
    budget: Budget


def parse(data: bytes, budget: Budget) -> Tree:
    """The tree behind one pickle; :class:`ValueError` if ``data`` is no well-formed one."""
    budget.memory(3 * len(data))
    try:
        with warnings.catch_warnings():
            # Texts with unknown escapes are no concern of the user's.
            warnings.simplefilter("ignore", DeprecationWarning)
            _check(data, budget)
            recorder = _Recorder(io.BytesIO(data))
            return Tree(recorder.load(), recorder.calls, recorder.globals, budget)
    except LoadError:
        raise
    except Exception as error:
        # Of bytes that are no pickle, the unpickler makes exceptions of every kind.
        raise ValueError(f"malformed pickle ({error or type(error).__name__})") from error


def _check(data: bytes, budget: Budget) -> None:
    """Account for every instruction; ``pickletools`` refuses lengths beyond the end."""
    end = 0
    for opcode, _, position in pickletools.genops(data):
        budget.step()
        if opcode.name in _REFUSED or opcode.proto > _NEWEST_PROTOCOL:
            raise ValueError(f"it uses {opcode.name}, which no file of a model needs")
        end = (position or 0) + 1
    if end != len(data):
        raise ValueError("bytes follow its end")


class _Recorder(pickle._Unpickler):
    """Python's unpickler with imports and calls recorded instead of made, and nothing hashed."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = dict(pickle._Unpickler.dispatch)
    stack: list[Node]

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.calls: list[Call] = []
        self.globals: list[Global] = []

    def find_class(self, module: str, name: str) -> Global:
        if len(module) + len(name) > _MAX_NAME:
            raise ValueError("it names something in more than 1000 characters")
        self.globals.append(Global(module, name))
        return self.globals[-1]

    def persistent_load(self, pid: Node) -> Call:
        """A reference to something outside the stream (torch: a tensor's storage), as a call."""
        return Call(Global("", "persistent"), (pid,))

    def _record(self, function: Node, args: Node) -> None:
        self.calls.append(Call(function, args))
        self.stack.append(self.calls[-1])

    def _load_call(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        self._record(function, args)

    def _load_frozenset(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        self._record(Global("builtins", "frozenset"), (items,))

    def _load_bytearray(self) -> None:
        pickle._Unpickler.dispatch[pickle.BYTEARRAY8[0]](self)  # type: ignore[arg-type]
        self.stack[-1] = bytes(self.stack[-1])  # type: ignore[call-overload]

    dispatch |= {
        pickle.REDUCE[0]: _load_call,
        pickle.NEWOBJ[0]: _load_call,
        pickle.FROZENSET[0]: _load_frozenset,
        pickle.BYTEARRAY8[0]: _load_bytearray,
        # Frames only help buffering, and need not be right.
        pickle.FRAME[0]: lambda self: self.read(8),
        pickle.EMPTY_DICT[0]: lambda self: self.stack.append(Pairs()),
        pickle.EMPTY_SET[0]: lambda self: self._record(Global("builtins", "set"), ()),
    }
