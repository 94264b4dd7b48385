"""``save_checkpoint`` and ``resume``, as methods of the algorithms."""

from __future__ import annotations

import os
import warnings
from typing import Any, Self

from stable_baselines3.common import logger as sb3_logger
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv

from sppo.checkpoint import files, model, records
from sppo.checkpoint.callback import checkpoint_callbacks
from sppo.checkpoint.files import CheckpointError
from sppo.envs.generators import capture_generators


class Checkpointable(OnPolicyAlgorithm):
    """Mix-in: stands before the algorithm in the method resolution order and marks its iterations.

    An iteration begins when ``collect_rollouts`` is called. The generators are remembered there, before
    gSDE or any callback draws from them: a resumed training passes through the same calls again.
    """

    _iteration_start: object = None
    _iteration_timesteps: int | None = None
    _resumption: dict[str, Any] | None = None

    def save_checkpoint(self, path: str | os.PathLike[str], identity: str | None = None) -> None:
        """Write everything that the rest of the training depends on; see :meth:`resume`.

        What cannot be written is named in a warning, and in the file, which then says ``exact: false``.

        :param identity: what :meth:`resume` may be asked to find, such as a configuration's hash

        To be called between iterations: before or after ``learn``, or from a callback's
        ``_on_rollout_start`` (see :class:`sppo.checkpoint.ExactCheckpointCallback`).
        """
        if self._iteration_timesteps not in (None, self.num_timesteps):
            raise CheckpointError(
                "save_checkpoint was called in the middle of an iteration, from where training cannot be "
                "resumed: call it from a callback's _on_rollout_start, or use ExactCheckpointCallback"
            )
        inexact = model.save(self, path, identity=identity)
        if inexact is not None:
            warnings.warn(f"{os.fspath(path)} is not an exact checkpoint: {inexact}", stacklevel=2)

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        env: VecEnv | None = None,
        device: str = "auto",
        identity: str | None = None,
    ) -> Self:
        """The model of a checkpoint; on the same processor it goes on exactly as the saved one would have::

            model = SPPO.resume("run/checkpoints")
            model.learn(model.remaining_timesteps, reset_num_timesteps=False)

        ``learn`` also goes on in the same TensorBoard directory, after cutting off what was written
        there after the checkpoint (unless the model has been given a logger of its own). A warning names
        what differs: another processor or number of threads, or other versions of packages.

        :param path: a checkpoint, or a directory of them: then the newest that can be read
        :param env: a vectorised environment built like the one of the checkpoint; may be left out if that
            was made from the names of registered environments, with or without ``VecNormalize``
        :param identity: refuse a checkpoint that was saved with another one
        """
        if os.path.isdir(path):
            newest = files.newest_readable(path, lambda message: warnings.warn(message, stacklevel=4))
            if newest is None:
                raise CheckpointError(f"there is no checkpoint in {os.fspath(path)}")
            path = newest
        return model.restore(cls, path, env, device, identity)

    @property
    def remaining_timesteps(self) -> int:
        """How many steps of the last ``learn`` are still to be done."""
        return max(0, self._total_timesteps - self.num_timesteps)

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
        self._iteration_start = capture_generators()
        self._iteration_timesteps = self.num_timesteps
        return super().collect_rollouts(*args, **kwargs)

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str | None = None,
        *args: bool,
        **kwargs: bool,
    ) -> Self:
        """Train, as upstream's ``learn`` does."""
        try:
            return super().learn(total_timesteps, callback, log_interval, tb_log_name, *args, **kwargs)  # type: ignore[arg-type]
        except FloatingPointError as error:
            for checkpointing in checkpoint_callbacks(callback):
                checkpointing.keep_last_good(error, self._iteration_timesteps)
            raise
        finally:
            self._iteration_start = self._iteration_timesteps = None

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        resumption, self._resumption = self._resumption, None
        options = (total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        if resumption is None or reset_num_timesteps:
            return super()._setup_learn(*options)
        custom, position = self._custom_logger, resumption["records"]
        if not custom and position["directory"] is not None:
            records.cut_events(position["directory"], position["events"])
            formats = ["stdout", "tensorboard"] if self.verbose >= 1 else ["tensorboard"]
            # Upstream would look for the newest run of that name, which may be another one by now.
            self._logger, self._custom_logger = sb3_logger.configure(position["directory"], formats), True
        try:
            result = super()._setup_learn(*options)
        finally:
            self._custom_logger = custom
        model.put_back_log(self.logger, resumption["log"])
        return result

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_iteration_start", "_iteration_timesteps", "_resumption"]
