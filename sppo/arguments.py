"""Arguments of the exact solvers and of the bandits: checked, or an error that says what to change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Value = TypeVar("Value")


def one_of(name: str, value: object, options: Collection[str]) -> None:
    """A word out of several."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(options)}, not {value!r}")


def integer(name: str, value: object, least: int = 1) -> int:
    """A whole number, of Python's or NumPy's type."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return int(value)


def positive(name: str, value: float | str) -> float:
    """A positive number that is not infinite."""
    if isinstance(value, str) or not 0.0 < value < np.inf:
        raise ValueError(f"{name} must be positive and finite, not {value!r}")
    return float(value)


def finite_array(name: str, value: npt.ArrayLike, *shape: int | str) -> npt.NDArray[np.float64]:
    """A copy as floats; a letter in ``shape`` stands for any size, the same one wherever it occurs."""
    array = np.array(value, dtype=np.float64, order="C")
    sizes = dict(zip(shape, array.shape, strict=False))
    if array.size == 0 or array.shape != tuple(sizes.get(n) if isinstance(n, str) else n for n in shape):
        expected = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        raise ValueError(f"{name} must have shape ({expected}), not {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has entries that are not finite")
    return array


def given(
    where: str, values: Mapping[str, Value | None], required: Collection[str], optional: Collection[str] = ()
) -> dict[str, Value]:
    """The arguments that are not None, all of them known, none of the required ones missing."""
    found = {name: value for name, value in values.items() if value is not None}
    if unknown := [name for name in found if name not in required and name not in optional]:
        allowed = ", ".join([*required, *optional])
        raise TypeError(f"{where} takes no {', '.join(unknown)}; it takes {allowed}")
    if missing := [name for name in required if name not in found]:
        raise TypeError(f"{where} needs {', '.join(missing)}")
    return found
