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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

from sppo.loading import allowlist
from sppo.loading.errors import NotRestorable
from sppo.loading.pickletree import Call, Global
from sppo.loading.rebuild import Rebuilder, builds

NUMBERS = (int, float, np.integer, np.floating)
SCHEDULE_KEYS = ("learning_rate", "clip_range", "clip_range_vf", "eta", "kl_budget", "critic_learning_rate")


class LeftOut:
    """Stands in for a schedule that could not be restored; ``learn`` refuses to start with one."""

    def __call__(self, _: float) -> float:
        # While a model is being built, its optimizer needs some learning rate; the file's is set after.
        return 0.0


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
_PURE = {"abs", "float", "int", "max", "min", "pow", "round"}
_EFFECTS = ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR", "STORE_SUBSCR", "DELETE_", "IMPORT_", "YIELD")


def stored(schedule: object) -> dict[str, object] | None:
    """A function that is constant or linear, as data; ``None`` for anything else.

    Nothing is called whose code does more than arithmetic.
    """
    function = schedule.value_schedule if isinstance(schedule, FloatSchedule) else schedule
    try:
        if not isinstance(function, types.FunctionType) or not _is_pure(function):
            return None
        values = [float(function(progress)) for progress in _POINTS]
    except Exception:
        # Whatever the user's function raises between its own calls: it cannot be stored.
        return None
    if not all(math.isfinite(value) for value in values):
        return None
    start, end = values[1000], values[0]
    slope = start - end
    for form in FORMS:
        for nearby in (slope, math.nextafter(slope, math.inf), math.nextafter(slope, -math.inf)):
            found = StoredSchedule(form, start, end, nearby)
            if all(found(progress) == value for progress, value in zip(_POINTS, values, strict=True)):
                return asdict(found)
    return None


def _is_pure(function: types.FunctionType) -> bool:
    code = function.__code__
    read = [function.__globals__[name] for name in set(code.co_names) - _PURE]
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    plain = all(isinstance(value, (int, float, str, type(None))) for value in [*read, *cells, *given])
    return plain and not any(step.opname.startswith(_EFFECTS) for step in dis.get_instructions(function))


SCHEDULES = (FloatSchedule, ConstantSchedule, LinearSchedule, LeftOut, StoredSchedule, types.FunctionType)


def number(value: object) -> float:
    """``value`` as a float, if it is a number."""
    if isinstance(value, bool) or not isinstance(value, NUMBERS) or math.isnan(value):
        raise NotRestorable("a schedule has a parameter that is no number")
    return float(value)


_SB3 = "stable_baselines3.common.utils"
#: What upstream's functions returned up to 2.6, in place of the classes of today.
_CLOSURES = ("constant_fn.<locals>.func", "get_linear_fn.<locals>.func", "get_schedule_fn.<locals>.<lambda>")


def _upstream(parts: Mapping[str, object]) -> Schedule:
    """A schedule of Stable-Baselines3, from the attributes of an object or the variables of a closure."""
    match parts:
        case {"value_schedule": inner}:
            return FloatSchedule(inner if isinstance(inner, SCHEDULES) else number(inner))
        case {"val": value}:
            return ConstantSchedule(number(value))
        case {"start": start, "end": end, "end_fraction": fraction}:
            return LinearSchedule(number(start), number(end), number(fraction))
    raise NotRestorable("a schedule is written in an unexpected way")


@builds(*(f"{_SB3}.{kind}Schedule" for kind in ("Float", "Constant", "Linear")))
def _schedule(rebuilder: Rebuilder, call: Call) -> Schedule:
    return _upstream(rebuilder.attributes(call))


@builds(f"{__name__}.StoredSchedule")
def _stored(rebuilder: Rebuilder, call: Call) -> StoredSchedule:
    return StoredSchedule(**rebuilder.attributes(call))


@builds("cloudpickle._make_function")
def _function(rebuilder: Rebuilder, call: Call) -> Schedule:
    """A function that cloudpickle wrote with its code: one of :data:`_CLOSURES`, or of the program itself."""
    slots = rebuilder.setters.get(id(call), {})
    match slots, call.args:
        # The code is made by a call whose last arguments are the names of variables.
        case {"__module__": str(module), "__qualname__": str(name)}, (Call(args=(*_, tuple(names), _)), *_):
            cells = slots.get("__closure__") or ()
        case _:
            raise NotRestorable("a function comes with its code, which is not run")
    values = {}
    for variable, cell in zip(names, cells, strict=True):  # type: ignore[call-overload]
        match variable, cell:
            case str(), Call(Global(name="_make_cell"), (content,)):
                values[variable] = rebuilder.value(content)
            case _:
                raise NotRestorable(f"the function {module}.{name} is written in an unexpected way")
    if module == _SB3 and name in _CLOSURES:
        return _upstream(values)
    try:
        return allowlist.closure(module, name, values) if values else allowlist.resolve(module, name)
    except NotRestorable:
        raise NotRestorable(f"the function {module}.{name} comes with its code, which is not run") from None
