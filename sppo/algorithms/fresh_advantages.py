"""Advantages estimated anew from the current critic while the data stays the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.utils import obs_as_tensor

if TYPE_CHECKING:
    from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm

#: An episode that a time limit ended: at which step of the rollout, where, and what was seen last.
Timeout = tuple[int, int, np.ndarray | dict[str, np.ndarray]]
#: Fills a buffer's advantages and returns.
Finish = Callable[[RolloutBuffer, th.Tensor, np.ndarray], None]


class FreshAdvantages:
    """Generalised advantage estimation of a rollout, again and again, from the critic as it is by then.

    Made before the first pass, while the critic is the one that valued the rollout: what it added to the
    rewards of episodes that a time limit ended can then be taken off again.
    """

    def __init__(self, model: SurrogateAlgorithm, finish: Finish | None = None) -> None:
        self._model, self._finish = model, finish
        self._rewards = self._bootstrapped(model.rollout_buffer.rewards, -model.gamma)

    def __call__(self) -> None:
        """Replace the values, advantages and returns, from which minibatches have been drawn."""
        model, buffer = self._model, self._model.rollout_buffer
        n_steps, n_envs = buffer.buffer_size, buffer.n_envs
        # The buffer's arrays have all steps of one environment after another by now.
        steps, envs = np.tile(np.arange(n_steps), n_envs), np.repeat(np.arange(n_envs), n_steps)
        starts = buffer.episode_starts
        starts = starts[steps, envs] if starts.shape == (n_steps, n_envs) else starts.flatten()
        values = self._values(obs_as_tensor(buffer.observations, model.device), steps, envs, starts)
        rollout = copy.copy(buffer)
        columns = (values, starts, np.zeros_like(values), np.zeros_like(values))
        rollout.values, rollout.episode_starts, rollout.advantages, rollout.returns = (
            np.ascontiguousarray(column.reshape(n_envs, n_steps).T) for column in columns
        )
        rollout.rewards = self._bootstrapped(self._rewards, model.gamma)
        assert model._last_obs is not None
        seen, dones = obs_as_tensor(model._last_obs, model.device), np.asarray(model._last_episode_starts)
        last = th.as_tensor(self._values(seen, np.full(n_envs, n_steps), np.arange(n_envs), dones))
        if self._finish is None:
            rollout.compute_returns_and_advantage(last, dones)
        else:
            self._finish(rollout, last, dones)
        for name in ("values", "advantages", "returns"):
            setattr(buffer, name, buffer.swap_and_flatten(getattr(rollout, name)))

    def _bootstrapped(self, rewards: np.ndarray, weight: float) -> np.ndarray:
        """Rewards, and the weighted values of what was seen last before a time limit."""
        rewards = rewards.copy()
        for step, env, seen in self._model._timeouts:
            observation, _ = self._model.policy.obs_to_tensor(seen)
            value = self._values(observation, np.array([step + 1]), np.array([env]), np.zeros(1))
            rewards[step, env] += weight * float(value[0])
        return rewards

    @th.no_grad()
    def _values(
        self, observations: PyTorchObs, steps: np.ndarray, envs: np.ndarray, starts: np.ndarray
    ) -> np.ndarray:
        return self._model._values_at(observations, steps, envs, starts).flatten().cpu().numpy()
