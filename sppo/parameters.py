"""A parameter as plain data: its type, its range, a line of help, and what to say about wrong values.

The surrogates describe theirs with it (:mod:`sppo.surrogates`), the study those of the algorithms. The
algorithms' errors, the command line's flags and the checks of study files all follow from here. Nothing
heavy is imported, so that a study can be planned without torch.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, TypeGuard

#: The word for "no value" where there is no null, in TOML and on the command line: ``clip_range = "none"``.
NONE = "none"
#: What a schedule that decays linearly to zero begins with: ``"lin_3e-4"``.
LINEAR = "lin_"


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    :param kind: ``int``, ``float``, ``schedule`` (a number, or ``"lin_3e-4"``: linearly to 0), ``bool``,
        ``choice``, ``name`` (any text), ``numbers`` (a list of positive integers) or ``table``
    :param default: its value if nothing is said
    :param low: smallest value
    :param above: whether ``low`` itself is impossible
    :param words: what a number may be besides, e.g. ``"auto"``
    :param advice: what to write instead of an impossible value
    :param table: the parameters in a ``table``
    """

    kind: str
    help: str
    default: object = None
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    nullable: bool = False
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    advice: str = ""
    table: Mapping[str, Parameter] | None = None


class Ranges(TypedDict, total=False):
    """What a :class:`Parameter` may say beyond its kind, its help and its default."""

    low: float
    high: float
    above: bool
    nullable: bool
    choices: tuple[str, ...]
    words: tuple[str, ...]
    advice: str
    table: Mapping[str, Parameter]


def checked(name: str, value: object, parameter: Parameter) -> Any:
    """The value in its canonical form (so that equal configurations have equal hashes).

    :raises ValueError: if it is impossible; the message begins with what was found
    """
    if parameter.nullable and value in (None, NONE):
        return None
    if isinstance(value, str) and value in parameter.words:
        return value
    kind = parameter.kind
    if kind == "bool" and not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    if kind == "choice" and value not in parameter.choices:
        raise ValueError(
            f"{value!r} is none of {', '.join(parameter.choices)}{_close(value, parameter.choices)}"
        )
    if kind == "name" and not isinstance(value, str):
        raise ValueError(f"{value!r} is not a name")
    if kind in ("bool", "choice", "name"):
        return value
    if kind == "numbers":
        if not isinstance(value, (list, tuple)) or not all(_is_int(width) and width > 0 for width in value):
            raise ValueError(f"{value!r} is not a list of positive whole numbers")
        return list(value)
    return _checked_table(name, value, parameter) if kind == "table" else _checked_number(value, parameter)


def _checked_table(name: str, value: object, parameter: Parameter) -> dict[str, object]:
    allowed = parameter.table or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a table")
    for key in value:
        if key not in allowed:
            raise ValueError(f"unknown key {key!r}{_close(key, allowed)}")
    try:
        return {key: checked(key, item, allowed[key]) for key, item in value.items()}
    except ValueError as error:
        raise ValueError(f"in {name}: {error}") from error


def unknown(key: str, allowed: Iterable[str]) -> str:
    """The message for a key that does not exist."""
    return f"unknown key{_close(key, allowed)}"


def reader(parameter: Parameter) -> Callable[[str], object]:
    """From the text after a flag to the value, checked; ``1e6`` is a whole number."""

    def read(text: str) -> object:
        value: object = text
        if parameter.kind != "name" and text != NONE and not text.startswith(LINEAR):
            with contextlib.suppress(ValueError):
                value = float(text)
                if parameter.kind == "int":
                    value = (int(text) if text.isdigit() else int(value)) if value.is_integer() else text
        try:
            return checked("", value, parameter)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


#: Of a flag that is a number of something.
COUNT = reader(Parameter("int", "", low=1))


def _checked_number(value: object, parameter: Parameter) -> float | str:
    number, text = value, None
    if parameter.kind == "schedule" and isinstance(value, str):
        if not value.startswith(LINEAR):
            raise ValueError(f'{value!r} is neither a number nor of the form "lin_3e-4"')
        try:
            number = float(value[len(LINEAR) :])
        except ValueError:
            raise ValueError(f"{value!r}: no number after {LINEAR}") from None
        text = f"{LINEAR}{number!r}"
    if parameter.kind == "int":
        if not _is_int(number):
            raise ValueError(f"{value!r} is not a whole number")
    elif isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        raise ValueError(
            f"{value!r} is not a number" + (f' (write "{NONE}" for none)' if parameter.nullable else "")
        )
    if number < parameter.low or (parameter.above and number == parameter.low):
        raise ValueError(
            f"{value!r} is too small: must be {'above' if parameter.above else 'at least'} {parameter.low:g}"
        )
    if number > parameter.high:
        raise ValueError(f"{value!r} is too large: must be at most {parameter.high:g}")
    if text is not None:
        return text
    return number if parameter.kind == "int" else float(number)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _close(word: object, options: Iterable[str]) -> str:
    found = difflib.get_close_matches(str(word), list(options), n=1)
    return f" (did you mean {found[0]}?)" if found else ""
