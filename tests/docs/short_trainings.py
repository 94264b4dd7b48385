"""Trainings of the pages' code blocks, cut to two rollouts each, with a checkpoint after the first."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sppo.checkpoint import ExactCheckpointCallback


def begin() -> None:
    """From here on every ``learn`` is short."""
    whole, checkpointing = OnPolicyAlgorithm.learn, ExactCheckpointCallback.__init__

    def short(self: OnPolicyAlgorithm, total_timesteps: int, *args: Any, **kwargs: Any) -> Any:
        return whole(self, min(total_timesteps, 2 * self.n_steps * self.n_envs), *args, **kwargs)

    def every_rollout(self: ExactCheckpointCallback, *args: Any, **kwargs: Any) -> None:
        checkpointing(self, *args, **{**kwargs, "every": 1})

    OnPolicyAlgorithm.learn = short  # type: ignore[method-assign]
    ExactCheckpointCallback.__init__ = every_rollout  # type: ignore[method-assign]
