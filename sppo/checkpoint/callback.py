"""Checkpoints during ``learn``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from sppo.checkpoint import files, model
from sppo.checkpoint.files import CheckpointError


class ExactCheckpointCallback(BaseCallback):
    """Writes a checkpoint every few iterations, from which ``resume`` goes on exactly.

    For :class:`sppo.SPPO` and its relatives, and for every on-policy algorithm of Stable-Baselines3 and
    sb3-contrib (these are resumed with :func:`sppo.checkpoint.restore`). Put it last in a list of
    callbacks: what the others record at the same moment then belongs to the checkpoint.

    A directory belongs to one training: another one is refused there. If numbers that are not finite end a
    training (``NonFiniteError``), the weights as they were before are kept in ``*_steps.last_good``, from
    which ``resume`` goes on with new episodes.

    :param directory: where the checkpoints go; made if need be
    :param every: iterations (collection and update) between two checkpoints
    :param keep: how many checkpoints are kept; two, so that a damaged one costs little
    :param tables: further files that grow during training, cut to their length at the checkpoint by
        whoever resumes (see :func:`sppo.checkpoint.records.cut_table`)
    :param identity: written into the checkpoints, such as a configuration's hash; whoever passes the same
        to ``resume`` gets no other run's checkpoint
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        every: int = 10,
        keep: int = 2,
        tables: Sequence[str | os.PathLike[str]] = (),
        verbose: int = 0,
        identity: str | None = None,
    ) -> None:
        super().__init__(verbose)
        if every < 1 or keep < 1:
            raise ValueError(f"every and keep must be at least 1, got every={every}, keep={keep}")
        self.directory = Path(directory)
        self.every = every
        self.keep = keep
        self.tables = tuple(tables)
        self.identity = identity
        self._told_inexact = False

    def _init_callback(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    def _on_training_start(self) -> None:
        self._refuse_other_runs()
        now = self.model.num_timesteps
        for path in files.checkpoints(self.directory):
            try:
                later = files.read(path)[0]["timesteps"]
            except CheckpointError:
                continue
            if later > now:
                raise CheckpointError(
                    f"{self.directory} holds later checkpoints of this training, which is at {now} steps "
                    f"({path.name}): resume the directory, or give this training another one"
                )

    def _refuse_other_runs(self) -> None:
        others = files.of_other_runs(self.directory, model.run_of(self.model))
        if others:
            raise CheckpointError(
                f"{self.directory} holds checkpoints of another training (such as {others[0].name}): "
                f"go on with that one, resume({str(self.directory)!r}), or give this one another directory"
            )

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
        self._refuse_other_runs()
        path = self.directory / files.file_name(self.num_timesteps)
        inexact = model.save(self.model, path, self.tables, self.identity)  # type: ignore[arg-type]
        files.prune(self.directory, self.keep)
        if inexact is not None and not self._told_inexact:
            self._told_inexact = True
            warnings.warn(f"the checkpoints in {self.directory} are not exact: {inexact}", stacklevel=2)
        if self.verbose >= 1:
            print(f"Wrote {path}")
        return path

    def keep_last_good(self, error: FloatingPointError, timesteps: int | None) -> None:
        """Write the state at the beginning of an iteration that an error ended, and say so in the error.

        :param timesteps: how many steps there were then; ``None`` if no iteration was begun
        """
        newest = next(iter(files.checkpoints(self.directory)), None)
        if newest is not None:
            error.add_note(f"The newest checkpoint from before is {newest}.")
        weights = self.model.policy.parameters()
        if timesteps is None or not all(bool(th.isfinite(tensor).all()) for tensor in weights):
            return
        path = self.directory / f"{timesteps}_steps.last_good"
        now, self.model.num_timesteps = self.model.num_timesteps, timesteps
        try:
            model.save(self.model, path, self.tables, self.identity, broken_by=error)  # type: ignore[arg-type]
        except (OSError, CheckpointError) as problem:
            error.add_note(f"The last good weights could not be written: {problem}")
        else:
            error.add_note(f"The last good weights are in {path}: resume it, with new episodes.")
        finally:
            self.model.num_timesteps = now

    def _on_step(self) -> bool:
        return True


def checkpoint_callbacks(callback: object) -> Iterator[ExactCheckpointCallback]:
    """Those among a callback of ``learn``, the members of a list, and what they call in turn."""
    if isinstance(callback, ExactCheckpointCallback):
        yield callback
    members = callback if isinstance(callback, list) else getattr(callback, "callbacks", [])
    for member in [*members, getattr(callback, "callback", None)]:
        if member is not None:
            yield from checkpoint_callbacks(member)
