"""Exact checkpoints: a training that was killed goes on as if nothing had happened.

A checkpoint is taken between two iterations (never inside one) and holds everything the next iteration
depends on: weights, optimizer, counters, schedules, every random generator, the vectorised environment
with its normalisation and its simulators, and how long the record files were. ``save_checkpoint`` and
``resume`` are methods of the algorithms; :class:`ExactCheckpointCallback` writes them during ``learn``.

Checkpoints contain pickles: resume only from files that you trust.
"""

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
