"""Schedules: how they are restored, stored by value, and stood in for where they were left out.

A schedule is often a function, and cloudpickle writes a function with its code, which is not run. Three
kinds come back nevertheless: functions whose code the running program has itself, the closures that
Stable-Baselines3 made up to 2.6 (recognised by name; the numbers in them are all that is used), and those
that were constant or linear when the model was saved: :func:`stored` writes these by value.
"""

from __future__ import annotations

import dis
import math
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

from sppo.loading import allowlist
from sppo.loading.errors import NotRestorable
from sppo.loading.pickletree import Call, Global, Node, Pairs

if TYPE_CHECKING:
    from sppo.loading.rebuild import Rebuilder

SCHEDULE_KEYS = ("learning_rate", "clip_range", "clip_range_vf", "eta")


@dataclass(frozen=True)
class LeftOut:
    """Stands in for a schedule that could not be restored; ``learn`` refuses to start with one.

    :param name: the parameter
    :param reason: why it could not be restored
    """

    name: str
    reason: str

    def __call__(self, _: float) -> float:
        # While a model is being built, its optimizer needs some learning rate; the file's is set after.
        return 0.0


def missing(left_out: dict[str, str]) -> str:
    """What to tell somebody who trains a model without the parts named."""
    parts = "; ".join(f"{name} ({reason})" for name, reason in left_out.items())
    names = ", ".join(f'"{name}": ...' for name in dict.fromkeys(name.partition(".")[0] for name in left_out))
    return (
        f"training needs what was left out when the model was loaded: {parts}. Give it by name, "
        f"load(path, custom_objects={{{names}}}), or, for a file that you trust, load(path, trust=True)"
    )


#: Ways to write a constant or a line, which round differently; ``slope`` is ``start - end`` to rounding.
FORMS: dict[str, Callable[[float, float, float, float], float]] = {
    "constant": lambda progress, start, end, slope: start,
    "linear": lambda progress, start, end, slope: end + progress * slope,
    "falling": lambda progress, start, end, slope: start - (1 - progress) * slope,
    "mixed": lambda progress, start, end, slope: progress * start + (1 - progress) * end,
}


@dataclass(frozen=True)
class StoredSchedule:
    """A constant or linear schedule that was a function when it was saved.

    :param form: which of :data:`FORMS`
    :param start: the value at the beginning, when all progress remains
    :param end: the value at the end
    :param slope: their difference, as the function computed it
    """

    form: str
    start: float
    end: float
    slope: float

    def __post_init__(self) -> None:
        if not isinstance(self.form, str) or self.form not in FORMS:
            raise NotRestorable("a stored schedule has an unknown form")
        if not all(math.isfinite(number(part)) for part in (self.start, self.end, self.slope)):
            raise NotRestorable("a stored schedule has a number that is not finite")

    def __call__(self, progress_remaining: float) -> float:
        return FORMS[self.form](progress_remaining, self.start, self.end, self.slope)


#: Where a stored schedule must give the function's value, bit for bit.
_POINTS = (
    [k / 1000 for k in range(1001)] + [1 - k * 2048 / 1e6 for k in range(489)] + [2.0**-k for k in range(60)]
)
#: All that a function may call or look up to be sampled: calling it must have no effect.
_PURE = frozenset(
    {"abs", "float", "int", "max", "min", "pow", "round", "math", "np", "numpy", "clip", "maximum", "minimum"}
    | {"exp", "log", "sqrt", "cos", "sin", "pi", "float32", "float64"}
)
_EFFECTS = ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR", "STORE_SUBSCR", "DELETE_", "IMPORT_", "YIELD")


def stored(schedule: Any) -> dict[str, Any] | None:
    """A function that is constant or linear, as data; ``None`` for anything else.

    Nothing is called whose code does more than arithmetic.
    """
    if isinstance(schedule, FloatSchedule):
        schedule = schedule.value_schedule
    try:
        if not isinstance(schedule, types.FunctionType) or not _is_pure(schedule):
            return None
        values = [float(schedule(progress)) for progress in _POINTS]
    except Exception:
        # Whatever the user's function raises between its own calls: it cannot be stored.
        return None
    start, end = values[1000], values[0]
    if not all(math.isfinite(value) for value in values):
        return None
    slope = start - end
    for form in FORMS:
        for nearby in (slope, math.nextafter(slope, math.inf), math.nextafter(slope, -math.inf)):
            found = StoredSchedule(form, start, end, nearby)
            if all(found(progress) == value for progress, value in zip(_POINTS, values, strict=True)):
                return asdict(found)
    return None


def _is_pure(function: types.FunctionType) -> bool:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    plain = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    reads = set(function.__code__.co_names) & set(function.__globals__)
    plain += [function.__globals__[name] for name in reads - _PURE]
    return (
        all(isinstance(value, (int, float, str, type(None))) for value in plain)
        and set(function.__code__.co_names) <= _PURE | reads
        and not any(step.opname.startswith(_EFFECTS) for step in dis.get_instructions(function))
    )


SCHEDULES = (FloatSchedule, ConstantSchedule, LinearSchedule, LeftOut, StoredSchedule, types.FunctionType)


def number(value: Any) -> float:
    """``value`` as a float, if it is a number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise NotRestorable("a schedule has a parameter that is no number")
    return float(value)


def _wrapped(inner: Any) -> FloatSchedule:
    return FloatSchedule(inner if isinstance(inner, SCHEDULES) else number(inner))


def _from(*names: str, make: Callable[..., Any], check: Callable[[Any], Any] = number) -> Any:
    """A builder that makes a schedule of those attributes of an object in a file."""

    def build(rebuilder: Rebuilder, call: Call) -> Any:
        nodes = rebuilder.attributes(call)
        return make(*(check(rebuilder.value(nodes[name])) for name in names))

    return build


_SB3 = "stable_baselines3.common.utils"
#: (module, name, variables of the closure) -> the schedule that such a function computes
_CLOSURES: dict[tuple[Any, Any, Any], Callable[..., Any]] = {
    (_SB3, "constant_fn.<locals>.func", ("val",)): lambda val: ConstantSchedule(number(val)),
    (_SB3, "get_linear_fn.<locals>.func", ("end", "end_fraction", "start")): lambda end, fraction, start: (
        LinearSchedule(number(start), number(end), number(fraction))
    ),
    (_SB3, "get_schedule_fn.<locals>.<lambda>", ("value_schedule",)): _wrapped,
}


def _function(rebuilder: Rebuilder, call: Call) -> Any:
    """A function that cloudpickle wrote with its code: one of :data:`_CLOSURES`, or of the program itself."""
    match rebuilder.setters.get(id(call)):
        # What cloudpickle sets on a function after making it.
        case (_, Pairs(pairs)):
            slots = {key: item for key, item in pairs if isinstance(key, str)}
        case _:
            slots = {}
    match slots.get("__module__"), slots.get("__qualname__"), slots.get("__closure__") or (), call.args:
        # The code is made by a call whose last arguments are the names of variables.
        case str(module), str(name), tuple(cells), (Call(args=(*_, tuple(variables), _)), *_):
            values = [_cell(rebuilder, cell) for cell in cells]
        case _:
            raise NotRestorable("a function comes with its code, which is not run")
    if len(values) != len(variables) or not all(isinstance(variable, str) for variable in variables):
        raise NotRestorable(f"the function {module}.{name} is written in an unexpected way")
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        raise NotRestorable(f"the function {module}.{name} has a parameter that is no number")
    if (module, name, variables) in _CLOSURES:
        return _CLOSURES[module, name, variables](*values)
    try:
        if variables:
            return allowlist.closure(module, name, variables, values)
        return allowlist.resolve(module, name)
    except NotRestorable:
        raise NotRestorable(f"the function {module}.{name} comes with its code, which is not run") from None


def _cell(rebuilder: Rebuilder, cell: Node) -> Any:
    match cell:
        case Call(Global(name="_make_cell")):
            return rebuilder.arguments(cell, 1)[0]
    raise NotRestorable("a function is written in an unexpected way")


BUILDERS = {
    f"{_SB3}.FloatSchedule": _from("value_schedule", make=_wrapped, check=lambda value: value),
    f"{_SB3}.ConstantSchedule": _from("val", make=ConstantSchedule),
    f"{_SB3}.LinearSchedule": _from("start", "end", "end_fraction", make=LinearSchedule),
    f"{__name__}.StoredSchedule": _from(
        "form", "start", "end", "slope", make=StoredSchedule, check=lambda value: value
    ),
    "cloudpickle._make_function": _function,
}
