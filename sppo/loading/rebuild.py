"""Makes objects of a parsed pickle: plain containers, and the calls for which there is a builder here.

A builder is a function of ours that reads the arguments of one known call and makes the object from
checked values. No function, constructor or ``__setstate__`` that the file names is called with what the
file says; a call without a builder is not restored.
"""

from __future__ import annotations

import pathlib
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import spaces

from sppo.loading import allowlist, arrays, schedules
from sppo.loading import spaces as space_builders
from sppo.loading.errors import LoadError, NotRestorable
from sppo.loading.pickletree import (
    ATOMS,
    Call,
    Global,
    Node,
    Pairs,
    Persistent,
    Tree,
    charge_expanded,
)

Builder = Callable[["Rebuilder", Call], Any]
MAX_DEPTH = 60
#: Longer ones cannot even be printed.
MAX_BITS = 4096
#: What an object of a known class takes, apart from its arrays.
OBJECT_BYTES = 1024


class Rebuilder:
    """Turns the nodes of one tree into objects; a node that occurs twice becomes one object.

    :param tree: a parsed pickle
    :param builders: more builders, by the name of the function or class that the file would call
    :param persistent: what to make of a reference to data outside the pickle
    """

    def __init__(
        self,
        tree: Tree,
        builders: Mapping[str, Builder] | None = None,
        persistent: Callable[[Node], Any] | None = None,
    ) -> None:
        charge_expanded(tree.root, tree.budget)
        self.tree = tree
        self.budget = tree.budget
        self.setters = setters(tree)
        self._builders = {**BUILDERS, **(builders or {})}
        self._persistent = persistent
        self._memo: dict[int, Any] = {}
        self._depth = 0

    def root(self) -> Any:
        """The tree's value.

        :raises NotRestorable: if any part of it would need the file's code
        """
        value = self.value(self.tree.root)
        # cloudpickle completes its functions and classes by calls whose results nobody uses.
        stray = self.tree.stray_calls(
            [call for call in self.tree.calls if called(call).startswith("cloudpickle.")]
        )
        if stray:
            raise NotRestorable(f"it calls {stray[0]} for its side effects")
        return value

    def value(self, node: Node) -> Any:
        """The object that ``node`` stands for."""
        if isinstance(node, ATOMS):
            if isinstance(node, int) and node.bit_length() > MAX_BITS:
                raise NotRestorable(f"it holds an integer of more than {MAX_BITS} bits")
            return node
        if id(node) in self._memo:
            return self._memo[id(node)]
        if self._depth >= MAX_DEPTH:
            raise NotRestorable(f"it is nested more than {MAX_DEPTH} deep")
        self._depth += 1
        try:
            made = self._make(node)
        finally:
            self._depth -= 1
        self._memo[id(node)] = made
        return made

    def _make(self, node: Node) -> Any:
        if isinstance(node, (list, tuple)):
            return type(node)(self.value(item) for item in node)
        if isinstance(node, Pairs):
            return self.mapping(node.pairs)
        if isinstance(node, Global):
            return allowlist.resolve(node.module, node.name)
        if isinstance(node, Persistent) and self._persistent is not None:
            return self._persistent(node.payload)
        if isinstance(node, Call):
            return self._made_by(node)
        raise NotRestorable(f"it holds an unexpected {type(node).__name__}")

    def _made_by(self, call: Call) -> Any:
        if not isinstance(call.function, Global):
            raise NotRestorable(f"it calls the result of {call}")
        name = canonical(call.function)
        builder = self._builders.get(name)
        if builder is None:
            cls = allowlist.resolve(call.function.module, call.function.name)
            if not isinstance(cls, type) or not issubclass(cls, spaces.Space):
                raise NotRestorable(f"it holds an object of {call}, of which only the class can be restored")
            builder = space_builders.of_class(cls)
        self.budget.memory(OBJECT_BYTES)
        try:
            return builder(self, call)
        except (NotRestorable, LoadError):
            raise
        except Exception as error:
            # The builders hand checked values to NumPy's and gymnasium's constructors, which refuse
            # senseless ones with exceptions of many kinds.
            raise NotRestorable(f"{call} got senseless values ({error})") from error

    def mapping(self, pairs: list[tuple[Node, Node]]) -> dict[Any, Any]:
        """A dictionary whose keys are atoms or short tuples of them."""
        return {self.key(key): self.value(item) for key, item in pairs}

    def key(self, node: Node) -> Any:
        """A dictionary's key, which must be cheap to hash."""
        flat = isinstance(node, tuple) and len(node) <= 16 and all(isinstance(part, ATOMS) for part in node)
        if not isinstance(node, ATOMS) and not flat:
            raise NotRestorable("it has a dictionary key that is no plain value")
        return node

    def arguments(self, call: Call, *counts: int) -> list[Any]:
        """The values of the positional arguments, of which there must be one of ``counts``."""
        if not isinstance(call.args, tuple) or call.kwargs is not None or len(call.args) not in counts:
            raise NotRestorable(f"{call} got unexpected arguments")
        return [self.value(arg) for arg in call.args]

    def state_node(self, call: Call) -> Node:
        """What the object's state is set to; ``None`` if it is not."""
        if len(call.states) > 1 or call.items or call.pairs:
            raise NotRestorable(f"{call} is changed in an unexpected way")
        return call.states[0] if call.states else None

    def attributes(self, call: Call) -> dict[str, Node]:
        """The attributes of an object made without arguments, as nodes by name."""
        self.arguments(call, 0)
        state = self.state_node(call)
        if not isinstance(state, Pairs) or not all(isinstance(key, str) for key, _ in state.pairs):
            raise NotRestorable(f"{call} has an unexpected state")
        return dict(state.pairs)


def canonical(name: Global) -> str:
    """A global's name without the accidents of library versions."""
    module = name.module
    for old, new in (("numpy.core.", "numpy._core."), ("gym.spaces.", "gymnasium.spaces.")):
        if module.startswith(old):
            module = new + module[len(old) :]
    if module in ("cloudpickle.cloudpickle_fast", "cloudpickle.cloudpickle"):
        module = "cloudpickle"
    return f"{module}.{name.name}"


def setters(tree: Tree) -> dict[int, Node]:
    """cloudpickle completes what it made by calls ``setter(made, state)``: these states, by ``id(made)``."""
    return {
        id(call.args[0]): call.args[1]
        for call in tree.calls
        if isinstance(call.args, tuple) and len(call.args) == 2 and called(call).startswith("cloudpickle.")
    }


def called(call: Call) -> str:
    """The name of what is called; cloudpickle looks up the constructor of a function's code by a call."""
    inner = call.function.function if isinstance(call.function, Call) else None
    if isinstance(inner, Global) and canonical(inner) == "cloudpickle._builtin_type":
        return canonical(inner)
    return canonical(call.function) if isinstance(call.function, Global) else ""


def _ordered_dict(rebuilder: Rebuilder, call: Call) -> OrderedDict[Any, Any]:
    rebuilder.arguments(call, 0)
    made = OrderedDict(rebuilder.mapping(call.pairs))
    if call.items or len(call.states) > 1:
        raise NotRestorable("an OrderedDict is changed in an unexpected way")
    if call.states:
        # torch writes the version of each layer beside a state_dict.
        state = rebuilder.value(call.states[0])
        if set(state) != {"_metadata"} or not isinstance(state["_metadata"], dict):
            raise NotRestorable("an OrderedDict has unexpected attributes")
        made._metadata = state["_metadata"]  # type: ignore[attr-defined]
    return made


def _deque(rebuilder: Rebuilder, call: Call) -> deque[Any]:
    arguments = rebuilder.arguments(call, 0, 1, 2)
    if call.pairs or any(state is not None for state in call.states):
        raise NotRestorable("a deque is changed in an unexpected way")
    made: deque[Any] = deque(*arguments)
    made.extend(rebuilder.value(item) for item in call.items)
    return made


def _path(rebuilder: Rebuilder, call: Call) -> pathlib.Path:
    parts = rebuilder.arguments(call, *range(64))
    if not all(isinstance(part, str) for part in parts):
        raise NotRestorable("a path with parts that are no text")
    rebuilder.budget.memory(4 * sum(len(part) for part in parts))
    return pathlib.Path(*parts)


def _by_value_class(rebuilder: Rebuilder, call: Call) -> type:
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


BUILDERS: dict[str, Builder] = {
    **arrays.BUILDERS,
    **space_builders.BUILDERS,
    **schedules.BUILDERS,
    "collections.OrderedDict": _ordered_dict,
    "collections.deque": _deque,
    "pathlib.PosixPath": _path,
    "pathlib.WindowsPath": _path,
    "pathlib._local.PosixPath": _path,
    "pathlib._local.WindowsPath": _path,
    "cloudpickle._make_skeleton_class": _by_value_class,
}
