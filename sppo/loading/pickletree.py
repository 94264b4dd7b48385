"""Reads a pickle as data: the byte stream becomes an inert tree and nothing in it is imported or called.

Unpickling *is* running a program: the stream names functions and the unpickler calls them. Filtering the
names leaves the question of what an allowed function does with hostile arguments. So this reader keeps
the program's stack and memo, but where an unpickler would look up a name it pushes a :class:`Global`, and
where it would call something it pushes a :class:`Call`. :mod:`sppo.loading.rebuild` then makes objects of
those calls that it knows, each with a constructor of its own that checks its arguments.

Python's own ``Unpickler`` with a ``find_class`` that returns inert recorders would run nothing either, but
it builds dictionaries and sets while it reads, and so hashes their keys: 126 bytes of nested tuples keep it
busy for ever, and what is a key can be known only by running the stack. ``pickletools`` takes the stream
apart here (and checks every length that it declares); the machine on top of it is this module.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sppo.loading.budget import Budget
from sppo.loading.errors import NotRestorable, brief

#: An atom (``None``, ``bool``, ``int``, ``float``, ``str``, ``bytes``), a ``list`` or ``tuple`` of nodes,
#: or one of the classes below.
Node = Any

ATOMS = (type(None), bool, int, float, str, bytes)
#: An instruction of one byte can make an object of a few hundred.
_BYTES_PER_OPCODE = 256


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
        # Calls of calls of calls may be nested deeper than Python's stack.
        function = self.function.function if isinstance(self.function, Call) else self.function
        return str(function) if isinstance(function, Global) else f"<{type(function).__name__}>"


@dataclass(frozen=True)
class Tree:
    """A parsed pickle: its value, and every call in the order of execution, used for the value or not."""

    root: Node
    calls: tuple[Call, ...]
    globals: tuple[Global, ...]
    budget: Budget

    def stray_calls(self, also_used: list[Call]) -> list[Call]:
        """The calls whose results are thrown away: an unpickler would make them for their effects.

        :param also_used: calls that are to count as used, with all that they use
        """
        used = {id(node) for node in walk([self.root, *also_used])}
        return [call for call in self.calls if id(call) not in used]


def children(node: Node) -> list[Node]:
    """The nodes directly below ``node``."""
    match node:
        case list() | tuple():
            return list(node)
        case Pairs():
            return [part for pair in node.pairs for part in pair]
        case Persistent():
            return [node.payload]
        case Call():
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


def charge_expanded(root: Node, budget: Budget) -> None:
    """Refuse trees with cycles, and account for shared parts and texts as often as they occur.

    Upstream's messages, for one, write out what a file holds.
    """
    #: nodes and characters below a node, by its id; ``None`` while its children are being counted
    costs: dict[int, tuple[int, int] | None] = {}
    waiting = [root]
    while waiting:
        node = waiting[-1]
        if id(node) not in costs:
            costs[id(node)] = None
            below = children(node)
            if any(costs.get(id(child), (0, 0)) is None for child in below):
                raise NotRestorable("it contains itself")
            waiting.extend(child for child in below if id(child) not in costs)
            continue
        waiting.pop()
        if costs[id(node)] is None:
            counted = [costs[id(child)] or (0, 0) for child in children(node)]
            nodes = 1 + sum(cost[0] for cost in counted)
            characters = len(node) if isinstance(node, (str, bytes)) else sum(cost[1] for cost in counted)
            # What is larger than the whole budget need not be added up any further.
            if nodes > budget.steps:
                budget.work(nodes)
            costs[id(node)] = nodes, characters
    nodes, characters = costs[id(root)] or (0, 0)
    budget.work(nodes)
    budget.memory(characters)


def parse(data: bytes, budget: Budget, persistent_ids: bool = False) -> Tree:
    """The tree behind one pickle.

    :param data: the pickle
    :param budget: the file's
    :param persistent_ids: whether references to data outside the stream are expected
    :raises ValueError: if ``data`` is no well-formed pickle
    """
    budget.memory(2 * len(data))
    with warnings.catch_warnings():
        # Texts with unknown escapes are no concern of the user's.
        warnings.simplefilter("ignore", DeprecationWarning)
        return _Machine(data, budget, persistent_ids).run()


def _in_pairs(items: list[Node]) -> list[tuple[Node, Node]]:
    if len(items) % 2:
        raise IndexError
    return list(zip(items[::2], items[1::2], strict=True))


#: opcodes that push their argument
_CONSTANTS = frozenset(
    {"INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
    | {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
)
#: opcodes that push something new
_NEW: dict[str, Callable[[], Node]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": Pairs,
    "EMPTY_SET": lambda: Call(Global("builtins", "set"), ()),
}
#: opcodes that replace everything above the last mark
_GATHERED: dict[str, Callable[[list[Node]], Node]] = {
    "TUPLE": tuple,
    "LIST": list,
    "DICT": lambda items: Pairs(_in_pairs(items)),
    "FROZENSET": lambda items: Call(Global("builtins", "frozenset"), (items,)),
}
_TUPLE_LENGTHS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """Pickle's stack machine with calls and imports recorded instead of made."""

    def __init__(self, data: bytes, budget: Budget, persistent_ids: bool) -> None:
        self._data = data
        self._budget = budget
        self._persistent_ids = persistent_ids
        self._stack: list[Node] = []
        self._marked: list[list[Node]] = []
        self._memo: dict[int, Node] = {}
        self._calls: list[Call] = []
        self._globals: list[Global] = []

    def run(self) -> Tree:
        for opcode, argument, position in pickletools.genops(self._data):
            self._budget.work(1)
            self._budget.memory(_BYTES_PER_OPCODE)
            try:
                if opcode.name == "STOP":
                    if position is None or position + 1 != len(self._data):
                        raise ValueError("malformed pickle: bytes follow its end")
                    return Tree(self._stack.pop(), tuple(self._calls), tuple(self._globals), self._budget)
                self._step(opcode.name, argument)
            except (IndexError, KeyError, TypeError) as error:
                raise ValueError(f"malformed pickle: {opcode.name} at byte {position}") from error
        raise ValueError("malformed pickle: it has no end")

    def _step(self, name: str, argument: Any) -> None:
        push, pop = self._stack.append, self._stack.pop
        if name in _CONSTANTS:
            push(argument)
        elif name in _NEW:
            push(_NEW[name]())
        elif name in _GATHERED:
            gathered = _GATHERED[name](self._pop_mark())
            self._stack.append(gathered)
        elif name in _TUPLE_LENGTHS:
            push(tuple([pop() for _ in range(_TUPLE_LENGTHS[name])][::-1]))
        elif not self._move(name, argument) and not self._fill(name) and not self._record(name, argument):
            raise ValueError(f"the pickle uses {name}, which refers to something outside the file")

    def _move(self, name: str, argument: Any) -> bool:
        """Framing, the stack and the memo."""
        match name:
            case "PROTO" | "FRAME":
                pass  # Frames only help buffering.
            case "MARK":
                self._marked.append(self._stack)
                self._stack = []
            case "POP" if self._stack:
                self._stack.pop()
            case "POP" | "POP_MARK":
                self._pop_mark()
            case "DUP":
                self._stack.append(self._stack[-1])
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._stack[-1]
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = self._stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                self._stack.append(self._memo[argument])
            case "BYTEARRAY8":
                self._stack.append(bytes(argument))
            case _:
                return False
        return True

    def _fill(self, name: str) -> bool:
        """What fills a container, or an object that behaves like one."""
        match name:
            case "APPEND":
                items = [self._stack.pop()]
            case "SETITEM":
                items = [self._stack.pop(), self._stack.pop()][::-1]
            case "APPENDS" | "SETITEMS" | "ADDITEMS":
                items = self._pop_mark()
            case _:
                return False
        match name, self._stack[-1]:
            case "APPEND" | "APPENDS", list() as target:
                target.extend(items)
            case "APPEND" | "APPENDS" | "ADDITEMS", Call() as target:
                target.items.extend(items)
            case "SETITEM" | "SETITEMS", Pairs() | Call() as target:
                target.pairs.extend(_in_pairs(items))
            case _:
                raise TypeError
        return True

    def _record(self, name: str, argument: Any) -> bool:
        """What an unpickler would import or run."""
        pop = self._stack.pop
        match name:
            case "GLOBAL":
                self._stack.append(self._name(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                attribute, module = pop(), pop()
                self._stack.append(self._name(module, attribute))
            case "REDUCE" | "NEWOBJ":
                args, function = pop(), pop()
                self._call(function, args)
            case "NEWOBJ_EX":
                kwargs, args, function = pop(), pop(), pop()
                self._call(function, args, kwargs)
            case "OBJ":
                function, *arguments = self._pop_mark() or [None]
                self._call(function, tuple(arguments))
            case "INST":
                arguments = self._pop_mark()
                self._call(self._name(*argument.split(" ", 1)), tuple(arguments))
            case "BUILD":
                state = pop()
                if not isinstance(self._stack[-1], Call):
                    # Setting attributes of something imported would change the program itself.
                    raise ValueError("malformed pickle: it sets the state of something that it did not make")
                self._stack[-1].states.append(state)
            case "BINPERSID" if self._persistent_ids:
                self._stack.append(Persistent(pop()))
            case _:
                return False
        return True

    def _pop_mark(self) -> list[Node]:
        items = self._stack
        self._stack = self._marked.pop()
        return items

    def _call(self, function: Node, args: Node, kwargs: Node = None) -> None:
        self._calls.append(Call(function, args, kwargs))
        self._stack.append(self._calls[-1])

    def _name(self, module: Node, name: Node) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError(f"malformed pickle: {brief(name)} is no global's name")
        self._globals.append(Global(module, name))
        return self._globals[-1]
