"""What can go wrong when a file is read, as exceptions."""

from __future__ import annotations


def printable(text: str, limit: int = 1000) -> str:
    """``text`` on one line, without what could rewrite a terminal, and cut to ``limit`` characters.

    Names and messages come from the files themselves.
    """
    clean = "".join(c if c.isprintable() else " " for c in " ".join(text[: 4 * limit].split()))
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


class LoadError(ValueError):
    """A file is damaged, hostile or not what it should be; the message names the file and the reason."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class NotRestorable(Exception):
    """One value of a file cannot be rebuilt without running the file's code; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, 300))
