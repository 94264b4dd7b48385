"""Reads a pickle as data: the byte stream becomes an inert tree and nothing in it is imported or called.

Unpickling *is* running a program: the stream names functions and the unpickler calls them. Filtering the
names leaves the question of what an allowed function does with hostile arguments. So this reader keeps
the program's stack and memo, but where an unpickler would look up a name it pushes a :class:`Global`, and
where it would call something it pushes a :class:`Call`. :mod:`sppo.loading.rebuild` then makes objects of
those calls that it knows, each with a constructor of its own that checks its arguments.

The reader's memory is bounded by the length of the stream: lengths that the stream declares are checked
against what it holds before anything is allocated, and the memo is a dictionary.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sppo.loading.errors import NotRestorable

#: An atom (``None``, ``bool``, ``int``, ``float``, ``str``, ``bytes``), a ``list`` or ``tuple`` of nodes,
#: or one of the classes below.
Node = Any

ATOMS = (type(None), bool, int, float, str, bytes)
#: An instruction of one byte can make an object of a few hundred: this bounds the objects of one file.
MAX_OPCODES = 200_000
#: Nodes of the tree when every shared part is counted as often as it occurs: a few bytes of pickle can
#: otherwise stand for a structure that no memory holds.
MAX_EXPANDED = 1_000_000


@dataclass(eq=False, slots=True)
class Global:
    """A name that an unpickler would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Pairs:
    """A dictionary; its keys are not hashed, because hashing a nested key may take for ever."""

    pairs: list[tuple[Node, Node]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Members:
    """A set or frozenset."""

    items: list[Node] = field(default_factory=list)
    frozen: bool = False


@dataclass(eq=False, slots=True)
class Persistent:
    """A reference to something outside the stream (torch: a tensor's storage)."""

    payload: Node


@dataclass(eq=False, slots=True)
class Call:
    """A call that an unpickler would make, and what it would then do to the result."""

    function: Node
    args: Node
    kwargs: Node = None
    states: list[Node] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    pairs: list[tuple[Node, Node]] = field(default_factory=list)

    def __str__(self) -> str:
        return str(self.function) if isinstance(self.function, (Global, Call)) else repr(self.function)[:60]


@dataclass(frozen=True)
class Tree:
    """A parsed pickle: its value, and every call in the order of execution, used for the value or not."""

    root: Node
    calls: tuple[Call, ...]
    globals: tuple[Global, ...]
    length: int
    opcodes: int

    def stray_calls(self, also_used: list[Call]) -> list[Call]:
        """The calls whose results are thrown away: an unpickler would make them for their effects.

        :param also_used: calls that are to count as used, with all that they use
        """
        used = {id(node) for node in walk([self.root, *also_used])}
        return [call for call in self.calls if id(call) not in used]


def children(node: Node) -> list[Node]:
    """The nodes directly below ``node``."""
    if isinstance(node, (list, tuple)):
        return list(node)
    if isinstance(node, Pairs):
        return [part for pair in node.pairs for part in pair]
    if isinstance(node, Members):
        return node.items
    if isinstance(node, Persistent):
        return [node.payload]
    if isinstance(node, Call):
        parts = [node.function, node.args, node.kwargs, *node.states, *node.items]
        return parts + [part for pair in node.pairs for part in pair]
    return []


def walk(root: Node) -> Iterator[Node]:
    """Every node once, parents first; cycles do no harm."""
    seen = {id(root)}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        for child in children(node):
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)


def check_expanded(root: Node) -> None:
    """Refuse trees with cycles and trees that only sharing keeps small."""
    size: dict[int, int] = {}
    open_nodes: set[int] = set()
    waiting: list[tuple[Node, bool]] = [(root, False)]
    while waiting:
        node, finished = waiting.pop()
        key = id(node)
        if finished:
            open_nodes.discard(key)
            size[key] = 1 + sum(size[id(child)] for child in children(node))
            if size[key] > MAX_EXPANDED:
                raise NotRestorable(f"it expands to more than {MAX_EXPANDED} values")
        elif key in open_nodes:
            raise NotRestorable("it contains itself")
        elif key not in size:
            open_nodes.add(key)
            waiting.append((node, True))
            for child in children(node):
                if id(child) in open_nodes:
                    raise NotRestorable("it contains itself")
                if id(child) not in size:
                    waiting.append((child, False))


def parse(data: bytes, persistent_ids: bool = False, max_opcodes: int = MAX_OPCODES) -> Tree:
    """The tree behind one pickle.

    :param data: the pickle
    :param persistent_ids: whether references to data outside the stream are expected
    :param max_opcodes: how many instructions it may have
    :raises ValueError: if ``data`` is no well-formed pickle
    """
    with warnings.catch_warnings():
        # Texts with unknown escapes are no concern of the user's.
        warnings.simplefilter("ignore", DeprecationWarning)
        return _Machine(data, persistent_ids).run(max_opcodes)


#: opcodes that push their argument
_CONSTANTS = frozenset(
    {"INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
    | {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
)


class _Machine:
    """Pickle's stack machine with calls and imports recorded instead of made."""

    def __init__(self, data: bytes, persistent_ids: bool) -> None:
        self._data = data
        self._persistent_ids = persistent_ids
        self._stack: list[Node] = []
        self._marked: list[list[Node]] = []
        self._memo: dict[int, Node] = {}
        self._calls: list[Call] = []
        self._globals: list[Global] = []

    def run(self, max_opcodes: int) -> Tree:
        for count, (opcode, argument, position) in enumerate(pickletools.genops(self._data)):
            if count >= max_opcodes:
                raise ValueError("the pickle has too many instructions")
            name = opcode.name
            try:
                if name in _CONSTANTS:
                    self._stack.append(argument)
                elif name == "STOP":
                    if position is None or position + 1 != len(self._data):
                        raise ValueError("bytes follow its end")
                    root = self._stack.pop()
                    return Tree(root, tuple(self._calls), tuple(self._globals), len(self._data), count)
                else:
                    self._step(name, argument)
            except (IndexError, KeyError, TypeError) as error:
                raise ValueError(f"malformed pickle: {name} at byte {position}") from error
        raise ValueError("the pickle has no end")

    def _step(self, name: str, argument: Any) -> None:
        handler: Callable[[Any], None] | None = getattr(self, f"_op_{name.lower()}", None)
        if handler is None:
            raise ValueError(f"the pickle uses {name}, which refers to something outside the file")
        handler(argument)

    def _push(self, node: Node) -> None:
        self._stack.append(node)

    def _pop_mark(self) -> list[Node]:
        items = self._stack
        self._stack = self._marked.pop()
        return items

    def _call(self, function: Node, args: Node, kwargs: Node = None) -> None:
        call = Call(function, args, kwargs)
        self._calls.append(call)
        self._push(call)

    def _name(self, module: Node, name: Node) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("malformed pickle: a global's name is no string")
        found = Global(module, name)
        self._globals.append(found)
        return found

    # Framing. Frames only help buffering, so they carry no meaning here.
    def _op_proto(self, version: int) -> None:
        if version > 5:
            raise ValueError(f"unknown pickle protocol {version}")

    def _op_frame(self, _: Any) -> None:
        pass

    # The stack and the memo.
    def _op_mark(self, _: Any) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def _op_pop(self, _: Any) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._pop_mark()

    def _op_pop_mark(self, _: Any) -> None:
        self._pop_mark()

    def _op_dup(self, _: Any) -> None:
        self._push(self._stack[-1])

    def _op_memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _op_put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    _op_binput = _op_long_binput = _op_put

    def _op_get(self, index: int) -> None:
        self._push(self._memo[index])

    _op_binget = _op_long_binget = _op_get

    # Constants and containers.
    def _op_none(self, _: Any) -> None:
        self._push(None)

    def _op_newtrue(self, _: Any) -> None:
        self._push(True)

    def _op_newfalse(self, _: Any) -> None:
        self._push(False)

    def _op_bytearray8(self, value: bytearray) -> None:
        self._push(bytes(value))

    def _op_empty_tuple(self, _: Any) -> None:
        self._push(())

    def _op_tuple(self, _: Any) -> None:
        items = self._pop_mark()
        self._push(tuple(items))

    def _tuple_of(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._push(items)

    def _op_tuple1(self, _: Any) -> None:
        self._tuple_of(1)

    def _op_tuple2(self, _: Any) -> None:
        self._tuple_of(2)

    def _op_tuple3(self, _: Any) -> None:
        self._tuple_of(3)

    def _op_empty_list(self, _: Any) -> None:
        self._push([])

    def _op_list(self, _: Any) -> None:
        items = self._pop_mark()
        self._push(list(items))

    def _op_empty_dict(self, _: Any) -> None:
        self._push(Pairs())

    def _op_dict(self, _: Any) -> None:
        items = self._pop_mark()
        self._push(Pairs(_in_pairs(items)))

    def _op_empty_set(self, _: Any) -> None:
        self._push(Members())

    def _op_frozenset(self, _: Any) -> None:
        items = self._pop_mark()
        self._push(Members(list(items), frozen=True))

    # What fills a container, or an object that behaves like one.
    def _extend(self, items: list[Node]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, Call):
            target.items.extend(items)
        else:
            raise TypeError

    def _op_append(self, _: Any) -> None:
        item = self._stack.pop()
        self._extend([item])

    def _op_appends(self, _: Any) -> None:
        items = self._pop_mark()
        self._extend(items)

    def _update(self, items: list[Node]) -> None:
        target = self._stack[-1]
        if not isinstance(target, (Pairs, Call)):
            raise TypeError
        target.pairs.extend(_in_pairs(items))

    def _op_setitem(self, _: Any) -> None:
        value = self._stack.pop()
        key = self._stack.pop()
        self._update([key, value])

    def _op_setitems(self, _: Any) -> None:
        items = self._pop_mark()
        self._update(items)

    def _op_additems(self, _: Any) -> None:
        items = self._pop_mark()
        target = self._stack[-1]
        if not isinstance(target, Members) or target.frozen:
            raise TypeError
        target.items.extend(items)

    # What an unpickler would import or run.
    def _op_global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._push(self._name(module, name))

    def _op_stack_global(self, _: Any) -> None:
        name = self._stack.pop()
        module = self._stack.pop()
        self._push(self._name(module, name))

    def _op_reduce(self, _: Any) -> None:
        args = self._stack.pop()
        function = self._stack.pop()
        self._call(function, args)

    _op_newobj = _op_reduce

    def _op_newobj_ex(self, _: Any) -> None:
        kwargs = self._stack.pop()
        args = self._stack.pop()
        function = self._stack.pop()
        self._call(function, args, kwargs)

    def _op_obj(self, _: Any) -> None:
        items = self._pop_mark()
        self._call(items[0], tuple(items[1:]))

    def _op_inst(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        items = self._pop_mark()
        self._call(self._name(module, name), tuple(items))

    def _op_build(self, _: Any) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if not isinstance(target, Call):
            # Setting attributes of something imported would change the program itself.
            raise ValueError("malformed pickle: it sets the state of something that it did not make")
        target.states.append(state)

    def _op_binpersid(self, _: Any) -> None:
        if not self._persistent_ids:
            raise ValueError("the pickle refers to data outside the file")
        self._push(Persistent(self._stack.pop()))


def _in_pairs(items: list[Node]) -> list[tuple[Node, Node]]:
    if len(items) % 2:
        raise IndexError
    return list(zip(items[::2], items[1::2], strict=True))
