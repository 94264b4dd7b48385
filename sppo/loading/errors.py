"""What can go wrong when a file is read, as exceptions."""

from __future__ import annotations


class LoadError(ValueError):
    """A file is damaged, hostile or not what it should be; the message names the file and the reason."""


class NotRestorable(Exception):
    """One value of a file cannot be rebuilt without running the file's code; the message says why."""
