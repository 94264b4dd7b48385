"""Exact checkpoints: a training that was killed goes on as if nothing had happened.

A checkpoint is taken between two iterations (never inside one) and holds everything the next iteration
depends on: weights, optimizer, counters, schedules, every random generator, the vectorised environment
with its normalisation and its simulators, and how long the record files were. ``save_checkpoint`` and
``resume`` are methods of the algorithms; :class:`ExactCheckpointCallback` writes them during ``learn``.

Checkpoints contain pickles: resume only from files that you trust.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sppo.checkpoint.algorithm import Checkpointable
    from sppo.checkpoint.callback import ExactCheckpointCallback
    from sppo.checkpoint.environment import (
        StatefulEnv,
        UncapturableError,
        capture_environment,
        restore_environment,
        why_inexact,
    )
    from sppo.checkpoint.files import CheckpointError, checkpoints, newest_readable, write_atomically
    from sppo.checkpoint.model import restore, save

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

#: public name -> module that defines it; imported on first use, because ``files`` needs no torch
_HOMES = {
    "CheckpointError": "files",
    "Checkpointable": "algorithm",
    "ExactCheckpointCallback": "callback",
    "StatefulEnv": "environment",
    "UncapturableError": "environment",
    "capture_environment": "environment",
    "checkpoints": "files",
    "newest_readable": "files",
    "restore": "model",
    "restore_environment": "environment",
    "save": "model",
    "why_inexact": "environment",
    "write_atomically": "files",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sppo.checkpoint' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"sppo.checkpoint.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
