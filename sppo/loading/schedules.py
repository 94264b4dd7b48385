"""Builders for schedules, and the placeholder for one that was left out.

Up to release 2.6, Stable-Baselines3 wrote even a constant as a function with its code. The functions of
that release and of RL Zoo are recognised by name, and the numbers in their closures are all that is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

from sppo.loading.errors import NotRestorable
from sppo.loading.pickletree import Call, Global, Node, Pairs

if TYPE_CHECKING:
    from sppo.loading.rebuild import Rebuilder


class LeftOut:
    """Stands in for a schedule that could not be restored; raises when training asks for its value.

    :param name: the parameter
    :param reason: why it could not be restored
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        #: While a model is being built, its optimizer needs some learning rate; the file's is set after.
        self.building = False

    def __call__(self, _: float) -> float:
        if self.building:
            return 0.0
        raise ValueError(missing({self.name: self.reason}))

    def __repr__(self) -> str:
        return f"LeftOut({self.name!r}, {self.reason!r})"


def missing(left_out: dict[str, str]) -> str:
    """What to tell somebody who trains a model without the parts named."""
    parts = "; ".join(f"{name} ({reason})" for name, reason in left_out.items())
    names = ", ".join(f'"{name}": ...' for name in dict.fromkeys(name.partition(".")[0] for name in left_out))
    return (
        f"training needs what was left out when the model was loaded: {parts}. Give it by name, "
        f"load(path, custom_objects={{{names}}}), or, for a file that you trust, load(path, trust=True)"
    )


SCHEDULES = (FloatSchedule, ConstantSchedule, LinearSchedule, LeftOut)


def number(value: Any) -> float:
    """``value`` as a float, if it is a number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise NotRestorable("a schedule has a parameter that is no number")
    return float(value)


def _float_schedule(rebuilder: Rebuilder, call: Call) -> FloatSchedule:
    inner = rebuilder.value(rebuilder.attributes(call)["value_schedule"])
    return FloatSchedule(inner if isinstance(inner, SCHEDULES) else number(inner))


def _constant(rebuilder: Rebuilder, call: Call) -> ConstantSchedule:
    return ConstantSchedule(number(rebuilder.value(rebuilder.attributes(call)["val"])))


def _linear(rebuilder: Rebuilder, call: Call) -> LinearSchedule:
    nodes = rebuilder.attributes(call)
    return LinearSchedule(*(number(rebuilder.value(nodes[key])) for key in ("start", "end", "end_fraction")))


def _left_out(rebuilder: Rebuilder, call: Call) -> LeftOut:
    nodes = rebuilder.attributes(call)
    return LeftOut(str(rebuilder.value(nodes["name"])), str(rebuilder.value(nodes["reason"])))


def _wrapped(cells: dict[str, Any]) -> FloatSchedule:
    inner = cells["value_schedule"]
    return FloatSchedule(inner if isinstance(inner, SCHEDULES) else number(inner))


_SB3 = "stable_baselines3.common.utils"
#: (module, name, variables of the closure) -> the schedule that such a function computes
_CLOSURES: dict[tuple[str, str, tuple[str, ...]], Callable[[dict[str, Any]], Any]] = {
    (_SB3, "constant_fn.<locals>.func", ("val",)): lambda cells: ConstantSchedule(number(cells["val"])),
    (_SB3, "get_linear_fn.<locals>.func", ("end", "end_fraction", "start")): lambda cells: LinearSchedule(
        number(cells["start"]), number(cells["end"]), number(cells["end_fraction"])
    ),
    (_SB3, "get_schedule_fn.<locals>.<lambda>", ("value_schedule",)): _wrapped,
}
for _module in ("rl_zoo3.utils", "utils.utils"):
    for _variable in ("initial_value", "initial_value_"):
        _CLOSURES[_module, "linear_schedule.<locals>.func", (_variable,)] = lambda cells: LinearSchedule(
            number(next(iter(cells.values()))), 0.0, 1.0
        )


def _function(rebuilder: Rebuilder, call: Call) -> Any:
    """A function that cloudpickle wrote with its code: restored if it is one of :data:`_CLOSURES`."""
    slots = _slots(rebuilder, call)
    module, name = slots.get("__module__"), slots.get("__qualname__")
    described = f"the function {module}.{name}" if module and name else "a function"
    code = call.args[0] if isinstance(call.args, tuple) and call.args else None
    variables = code.args[-2] if isinstance(code, Call) and isinstance(code.args, tuple) and code.args else ()
    key = (module, name, variables)
    if not isinstance(variables, tuple) or not all(isinstance(part, str) for part in (module, name)):
        raise NotRestorable(f"{described} comes with its code, which is not run")
    if not all(isinstance(variable, str) for variable in variables) or key not in _CLOSURES:
        raise NotRestorable(f"{described} comes with its code, which is not run")
    cells = slots.get("__closure__")
    if not isinstance(cells, tuple) or len(cells) != len(variables):
        raise NotRestorable(f"{described} is written in an unexpected way")
    values = [_cell(rebuilder, cell) for cell in cells]
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        raise NotRestorable(f"{described} has a parameter that is no number")
    return _CLOSURES[key](dict(zip(variables, values, strict=True)))


def _cell(rebuilder: Rebuilder, cell: Node) -> Any:
    named = cell.function if isinstance(cell, Call) else None
    if not isinstance(named, Global) or named.name != "_make_cell":
        raise NotRestorable("a function is written in an unexpected way")
    return rebuilder.arguments(cell, 1)[0]


def _slots(rebuilder: Rebuilder, call: Call) -> dict[str, Node]:
    """What cloudpickle sets on a function after making it."""
    state = rebuilder.setters.get(id(call))
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], Pairs):
        return {key: item for key, item in state[1].pairs if isinstance(key, str)}
    return {}


BUILDERS = {
    f"{_SB3}.FloatSchedule": _float_schedule,
    f"{_SB3}.ConstantSchedule": _constant,
    f"{_SB3}.LinearSchedule": _linear,
    f"{LeftOut.__module__}.LeftOut": _left_out,
    "cloudpickle._make_function": _function,
}
