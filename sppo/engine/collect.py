"""What a rollout is collected with: the compiled policy, and a buffer that is filled without copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy

from sppo.engine.acting import sample_actions
from sppo.engine.distributions import BERNOULLI, CATEGORICAL, GAUSSIAN
from sppo.engine.layout import FlatMemory, features_of
from sppo.engine.networks import Layout, exact

_NOISE = {GAUSSIAN: "normal_", CATEGORICAL: "exponential_", BERNOULLI: "uniform_"}
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class Actor:
    """A compiled policy for a fixed number of environments."""

    def __init__(self, policy: ActorCriticPolicy, layout: Layout, memory: FlatMemory, n_envs: int) -> None:
        workspace = layout.workspace(n_envs)
        self._parameters, self._layout, self._workspace = memory.weights.parameters, layout[:], workspace[:]
        self._features = workspace.hidden[: n_envs * layout.n_features].reshape(n_envs, -1)
        self._no_masks = np.zeros((n_envs, 0), np.float32)
        noise = th.zeros(n_envs * layout.n_outputs)
        self._noise = noise.numpy()
        sizes = [int(size) for size in layout.sizes] or [layout.n_outputs]
        draws = [part.view(n_envs, -1) for part in noise.split([n_envs * size for size in sizes])]
        # As many numbers from PyTorch's generator, and in the order, as its distributions draw them.
        self._draws = [getattr(part, _NOISE[layout.kind]) for part in draws]
        self._kind = layout.kind
        self._size = n_envs, len(layout.sizes) or layout.n_outputs
        space = policy.action_space
        limits = (space.low, space.high) if isinstance(space, spaces.Box) else np.zeros((2, 0))
        self._limits = np.ascontiguousarray(np.reshape(limits, (2, -1)), np.float32)
        self._shape = n_envs, *(space.shape or ())
        self._space: spaces.Space = policy.observation_space
        self._normalize_images: bool = policy.normalize_images

    def __call__(
        self,
        observations: np.ndarray | dict[str, np.ndarray],
        masks: np.ndarray | None,
        values: np.ndarray,
        log_probs: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Actions of all environments, as drawn and within their limits."""
        features_of(observations, self._space, self._normalize_images, out=self._features)
        for draw in self._draws:
            draw()
        actions = np.empty(self._size, np.float32)
        clipped = np.empty_like(actions) if self._kind == GAUSSIAN else actions
        allowed = self._no_masks
        if masks is not None:
            allowed = np.ascontiguousarray(masks.reshape(len(masks), -1), np.float32)
        sample_actions(
            *(self._layout, self._parameters, allowed, self._noise, self._limits, self._workspace),
            *(actions, clipped, log_probs, values),
        )
        if self._kind == CATEGORICAL:
            # Choices are integers; coins and Gaussian actions float32, as from PyTorch's distributions.
            actions = clipped = actions.astype(np.int64)
        return actions.reshape(self._shape), clipped.reshape(self._shape)


def store(
    buffer: RolloutBuffer,
    position: int,
    model: Any,
    actions: np.ndarray,
    rewards: np.ndarray,
    action_masks: np.ndarray | None,
) -> None:
    """``buffer.add`` for what the policy has not put there itself, without intermediate copies."""
    if isinstance(buffer.obs_shape, dict):
        for key, shape in buffer.obs_shape.items():
            buffer.observations[key][position] = model._last_obs[key].reshape(buffer.n_envs, *shape)
    else:
        buffer.observations[position] = model._last_obs.reshape(buffer.n_envs, *buffer.obs_shape)
    buffer.actions[position] = actions.reshape(buffer.n_envs, buffer.action_dim)
    buffer.rewards[position] = rewards
    buffer.episode_starts[position] = model._last_episode_starts
    if action_masks is not None:
        buffer.action_masks[position] = action_masks.reshape(buffer.n_envs, -1)  # type: ignore[attr-defined]
    buffer.pos = position + 1
    buffer.full = buffer.pos == buffer.buffer_size


def finish(buffer: RolloutBuffer, last_values: th.Tensor, dones: np.ndarray) -> None:
    """``buffer.compute_returns_and_advantage`` in compiled code."""
    _estimate_advantages(
        *(buffer.rewards, buffer.values, buffer.episode_starts),
        *(last_values.numpy().reshape(-1), dones.astype(np.float32)),
        *(np.float32(buffer.gamma), np.float32(buffer.gamma * buffer.gae_lambda)),
        *(buffer.advantages, buffer.returns),
    )


@exact
def _estimate_advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    episode_starts: np.ndarray,
    last_values: np.ndarray,
    last_starts: np.ndarray,
    gamma: np.float32,
    decay: np.float32,
    advantages: np.ndarray,
    returns: np.ndarray,
) -> None:
    r"""Generalised advantage estimation, :math:`A_t = \delta_t + \gamma\lambda A_{t+1}`, in place.

    The operations and their order are Stable-Baselines3's, in float32. ``decay`` is ``gamma * lambda``.
    """
    steps, n_envs = rewards.shape
    for e in range(n_envs):
        running = _ZERO
        for t in range(steps - 1, -1, -1):
            last = t == steps - 1
            go_on = _ONE - (last_starts[e] if last else episode_starts[t + 1, e])
            following = last_values[e] if last else values[t + 1, e]
            delta = rewards[t, e] + gamma * following * go_on - values[t, e]
            running = delta + decay * go_on * running
            advantages[t, e] = running
            returns[t, e] = running + values[t, e]
