"""Checkpoints during ``learn``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from sppo.checkpoint import files, model


class ExactCheckpointCallback(BaseCallback):
    """Writes a checkpoint every few iterations, from which ``resume`` goes on exactly.

    For :class:`sppo.SPPO` and its relatives, and for every on-policy algorithm of Stable-Baselines3 and
    sb3-contrib (these are resumed with :func:`sppo.checkpoint.restore`). Put it last in a list of
    callbacks: what the others record at the same moment then belongs to the checkpoint.

    :param directory: where the checkpoints go; made if need be
    :param every: iterations (collection and update) between two checkpoints
    :param keep: how many checkpoints are kept; two, so that a damaged one costs little
    :param tables: further files that grow during training, cut to their length at the checkpoint by
        whoever resumes (see :func:`sppo.checkpoint.records.cut_table`)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        every: int = 10,
        keep: int = 2,
        tables: Sequence[str | os.PathLike[str]] = (),
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        if every < 1 or keep < 1:
            raise ValueError(f"every and keep must be at least 1, got every={every}, keep={keep}")
        self.directory = Path(directory)
        self.every = every
        self.keep = keep
        self.tables = tuple(tables)

    def _init_callback(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    def _on_rollout_start(self) -> None:
        batch = self.model.n_steps * self.training_env.num_envs  # type: ignore[attr-defined]
        here = (self.num_timesteps - self.model._num_timesteps_at_start) // batch
        # Iterations are counted from each call of learn, and so is the log interval: a resumed training
        # logs at the same steps only if the checkpoint falls on one of them.
        aligned = here % (self.locals.get("log_interval") or 1) == 0
        if here > 0 and aligned and (self.num_timesteps // batch) % self.every == 0:
            self.save()

    def save(self) -> Path:
        """Write a checkpoint now; only between iterations."""
        path = self.directory / files.file_name(self.num_timesteps)
        model.save(self.model, path, self.tables)  # type: ignore[arg-type]
        files.prune(self.directory, self.keep)
        if self.verbose >= 1:
            print(f"Wrote {path}")
        return path

    def _on_step(self) -> bool:
        return True
