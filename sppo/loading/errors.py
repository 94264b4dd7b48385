"""What can go wrong when a file is read, as exceptions; and words for what it holds, which stay short."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from gymnasium import spaces


def printable(text: str, limit: int = 1000) -> str:
    """``text`` on one line, without what could rewrite a terminal, and cut to ``limit`` characters.

    Names and messages come from the files themselves.
    """
    clean = "".join(c if c.isprintable() else " " for c in " ".join(text[: 4 * limit].split()))
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


class _Brief(reprlib.Repr):
    """Cuts while it writes: the full ``repr`` of a few shared texts can take all memory."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxstring = self.maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 256 else f"<an integer of {x.bit_length()} bits>"

    def repr_instance(self, x: object, level: int) -> str:
        if isinstance(x, np.ndarray):
            return f"array of {x.dtype} {x.shape}" if x.size > 8 else repr(x)
        if isinstance(x, spaces.Dict):
            return "Dict" + self.repr_dict(x.spaces, level)
        if isinstance(x, dict):
            return self.repr_dict(x, level)
        # A space of the user's own is printed by the user's method; what that raises, reprlib catches.
        return super().repr_instance(x, level)


def brief(value: object, limit: int = 100) -> str:
    """A value in at most ``limit`` characters, made without writing it out in full."""
    return printable(_Brief().repr(value), limit)


class LoadError(ValueError):
    """A file is damaged, hostile or not what it should be; the message names the file and the reason."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class NotRestorable(Exception):
    """One value of a file cannot be rebuilt without running the file's code; the message says why."""


@contextmanager
def refused(label: str, advice: str = "") -> Iterator[None]:
    """Whatever senseless contents raise inside becomes a :class:`LoadError` that names the file."""
    try:
        yield
    except LoadError as reason:
        raise LoadError(f"{label}: {reason}") from reason
    except Exception as reason:
        # The libraries refuse senseless values with exceptions of every kind, MemoryError included.
        what = str(reason) or type(reason).__name__
        raise LoadError(f"{label}: {printable(what, 500)}{advice}") from reason
