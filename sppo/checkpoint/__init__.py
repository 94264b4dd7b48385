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
    from sppo.checkpoint.files import CheckpointError, checkpoints, newest_readable, write_atomically
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

#: public name -> module that defines it; imported on first use, because ``files`` needs no torch
_HOMES = {
    "CheckpointError": "sppo.checkpoint.files",
    "Checkpointable": "sppo.checkpoint.algorithm",
    "ExactCheckpointCallback": "sppo.checkpoint.callback",
    "StatefulEnv": "sppo.envs.state",
    "UncapturableError": "sppo.envs.state",
    "capture_environment": "sppo.envs.state",
    "checkpoints": "sppo.checkpoint.files",
    "newest_readable": "sppo.checkpoint.files",
    "restore": "sppo.checkpoint.model",
    "restore_environment": "sppo.envs.state",
    "save": "sppo.checkpoint.model",
    "why_inexact": "sppo.envs.state",
    "write_atomically": "sppo.checkpoint.files",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sppo.checkpoint' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
