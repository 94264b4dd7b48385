"""Exact checkpoints: a training that was killed goes on as if nothing had happened.

A checkpoint is taken between two iterations (never inside one) and holds everything the next iteration
depends on: weights, optimizer, counters, schedules, every random generator, the vectorised environment
with its normalisation and its simulators, and how long the record files were. ``save_checkpoint`` and
``resume`` are methods of the algorithms; :class:`ExactCheckpointCallback` writes them during ``learn``.

Checkpoints contain pickles: resume only from files that you trust.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sppo.checkpoint.files import CheckpointError, checkpoints, newest_readable, write_atomically

if TYPE_CHECKING:
    from sppo.checkpoint.algorithm import Checkpointable
    from sppo.checkpoint.callback import ExactCheckpointCallback
    from sppo.checkpoint.model import restore, save
    from sppo.envs.state import (
        StatefulEnv,
        UncapturableError,
        capture_environment,
        restore_environment,
        why_inexact,
    )

__all__ = [
    "CheckpointError",
    "Checkpointable",
    "ExactCheckpointCallback",
    "StatefulEnv",
    "UncapturableError",
    "capture_environment",
    "checkpoints",
    "newest_readable",
    "restore",
    "restore_environment",
    "save",
    "why_inexact",
    "write_atomically",
]


def __getattr__(name: str) -> object:
    """On first use, because looking at files needs no torch."""
    if name in __all__:
        from sppo.checkpoint import algorithm, callback, model
        from sppo.envs import state

        for home in (algorithm, callback, model, state):
            if name in vars(home):
                return vars(home)[name]
    raise AttributeError(f"module 'sppo.checkpoint' has no attribute {name!r}")
