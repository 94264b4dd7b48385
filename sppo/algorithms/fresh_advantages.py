"""Advantages estimated anew from the current critic while the data stays the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.utils import obs_as_tensor

if TYPE_CHECKING:
    from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm

Finish = Callable[[RolloutBuffer, th.Tensor, np.ndarray], None]


class Timeout(NamedTuple):
    """An episode that a time limit ended: at which step of the rollout, where, and what was seen last."""

    step: int
    env: int
    observation: np.ndarray | dict[str, np.ndarray]


def compute_returns_and_advantage(buffer: RolloutBuffer, last_values: th.Tensor, dones: np.ndarray) -> None:
    """Upstream's own estimate."""
    buffer.compute_returns_and_advantage(last_values, dones)


class FreshAdvantages:
    """Generalised advantage estimation of a rollout, again and again, from the critic as it is by then.

    Made before the first pass, while the critic is the one that valued the rollout: what it added to the
    rewards of episodes that a time limit ended can then be taken off again.

    :param finish: fills the buffer's advantages and returns
    """

    def __init__(self, model: SurrogateAlgorithm, finish: Finish = compute_returns_and_advantage) -> None:
        self._model, self._finish = model, finish
        self._timeouts = list(model._timeouts)
        self._rewards = model.rollout_buffer.rewards.copy()
        for timeout, value in zip(self._timeouts, self._timeout_values(), strict=True):
            self._rewards[timeout.step, timeout.env] -= model.gamma * value

    def __call__(self) -> None:
        """Replace the buffer's values, advantages and returns."""
        model, buffer = self._model, self._model.rollout_buffer
        shape = buffer.buffer_size, buffer.n_envs
        names = ("values", "advantages", "returns", "episode_starts")
        flattened = [name for name in names if getattr(buffer, name).shape != shape]
        for name in flattened:
            # Minibatches are drawn from arrays with all steps of one environment after another.
            setattr(buffer, name, np.ascontiguousarray(getattr(buffer, name).reshape(shape[::-1]).T))
        steps, envs = np.tile(np.arange(shape[0]), shape[1]), np.repeat(np.arange(shape[1]), shape[0])
        seen = obs_as_tensor(buffer.observations, model.device)
        values = self._values(seen, steps, envs, buffer.episode_starts[steps, envs])
        buffer.values = np.ascontiguousarray(values.reshape(shape[::-1]).T)
        buffer.rewards = self._rewards.copy()
        for timeout, value in zip(self._timeouts, self._timeout_values(), strict=True):
            buffer.rewards[timeout.step, timeout.env] += model.gamma * value
        assert model._last_obs is not None
        seen, starts = obs_as_tensor(model._last_obs, model.device), np.asarray(model._last_episode_starts)
        last = self._values(seen, np.full(shape[1], shape[0]), np.arange(shape[1]), starts)
        self._finish(buffer, th.as_tensor(last), starts)
        for name in flattened:
            setattr(buffer, name, buffer.swap_and_flatten(getattr(buffer, name)))

    def _timeout_values(self) -> list[float]:
        return [
            float(self._values(self._model.policy.obs_to_tensor(seen)[0], [step + 1], [env], np.zeros(1))[0])
            for step, env, seen in self._timeouts
        ]

    def _values(
        self, observations: PyTorchObs, steps: npt.ArrayLike, envs: npt.ArrayLike, starts: np.ndarray
    ) -> np.ndarray:
        with th.no_grad():
            values = self._model._values_at(observations, np.asarray(steps), np.asarray(envs), starts)
        return values.flatten().cpu().numpy()
