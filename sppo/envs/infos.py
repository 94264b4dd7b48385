"""Infos as rows of numbers: the dictionaries of most environments hold the same few floats every step."""

from __future__ import annotations

from typing import Any

import numpy as np

#: types that survive the way through a float64 (integers of the size that counters have)
_SCALARS: tuple[type, ...] = (float, np.float64, np.float32, bool, np.bool_, int)
_EXACT_INTEGERS = 2**53

#: keys with the type of their scalar, or the shape of their float64 array
Form = tuple[tuple[str, Any], ...]


class InfoCodec:
    """Writes infos into rows of float64 and reads them back, types included.

    The two ends agree on *forms*: the keys and types of an info, in order. The writing end numbers
    forms as it meets them and hands out each new one once, for the other end to :meth:`learn`.
    """

    CAPACITY = 64

    def __init__(self) -> None:
        self._numbers: dict[Form, int] = {}
        self._forms: list[Form] = []

    def learn(self, form: Form) -> None:
        """Take note of the next form the other end has met."""
        self._numbers[form] = len(self._forms)
        self._forms.append(form)

    def encode(self, info: dict[str, Any], row: np.ndarray) -> tuple[int, Form | None]:
        """Write ``info`` to ``row``; returns its form's number (-1: does not fit) and the form if new."""
        form: list[tuple[str, Any]] = []
        values: list[float] = []
        for key, value in info.items():
            kind = type(value)
            if kind in _SCALARS:
                if kind is int and abs(value) > _EXACT_INTEGERS:
                    return -1, None
                form.append((key, kind))
                values.append(value)
            elif kind is np.ndarray and value.dtype == np.float64 and value.size <= self.CAPACITY:
                form.append((key, value.shape))
                values.extend(value.ravel().tolist())
            else:
                return -1, None
        if len(values) > self.CAPACITY:
            return -1, None
        row[: len(values)] = values
        signature = tuple(form)
        number = self._numbers.get(signature)
        if number is not None:
            return number, None
        self.learn(signature)
        return len(self._forms) - 1, signature

    def decode(self, number: int, row: np.ndarray) -> dict[str, Any]:
        """The info that was written to ``row``."""
        info: dict[str, Any] = {}
        values = row.tolist()
        place = 0
        for key, kind in self._forms[number]:
            if isinstance(kind, tuple):
                size = int(np.prod(kind))
                info[key] = np.array(values[place : place + size]).reshape(kind)
                place += size
            else:
                info[key] = kind(values[place])
                place += 1
        return info
