"""Collecting a rollout: Stable-Baselines3's loop with a compiled policy and no needless copies.

What a user can observe is the same: the order of random draws from PyTorch's generator, the steps of
the environment, the callbacks and the local variables they are shown, the bootstrapping of timeouts,
and the contents of the buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from sppo.engine import bookkeeping
from sppo.engine.acting import sample_actions
from sppo.engine.distributions import BERNOULLI, CATEGORICAL, GAUSSIAN
from sppo.engine.layout import features_of
from sppo.engine.memory import FlatMemory
from sppo.engine.networks import Layout
from sppo.engine.normalize import stepper
from sppo.envs.group import timed_out

_NOISE = {GAUSSIAN: "normal_", CATEGORICAL: "exponential_", BERNOULLI: "uniform_"}


class Actor:
    """A compiled policy for a fixed number of environments."""

    def __init__(self, policy: ActorCriticPolicy, layout: Layout, n_envs: int) -> None:
        workspace = layout.workspace(n_envs)
        self._layout, self._workspace = layout[:], workspace[:]
        self._features = workspace.features.reshape(n_envs, -1)
        self._no_masks = np.zeros((n_envs, 0), np.float32)
        noise = th.zeros(n_envs * layout.n_outputs)
        self._noise = noise.numpy()
        sizes = [int(size) for size in layout.sizes] or [layout.n_outputs]
        draws = [part.view(n_envs, -1) for part in noise.split([n_envs * size for size in sizes])]
        # As many numbers from PyTorch's generator, and in the order, as its distributions draw them.
        self._draws = [getattr(part, _NOISE[layout.kind]) for part in draws]
        self._n_actions = len(layout.sizes) or layout.n_outputs
        space = policy.action_space
        limits = (space.low, space.high) if isinstance(space, spaces.Box) else np.zeros((2, 0))
        self._limits = np.ascontiguousarray(np.reshape(limits, (2, -1)), np.float32)
        self._space: spaces.Space = policy.observation_space
        self._normalize_images: bool = policy.normalize_images
        self._n_envs, self._gaussian = n_envs, layout.kind == GAUSSIAN

    def __call__(
        self,
        parameters: np.ndarray,
        observations: np.ndarray | dict[str, np.ndarray],
        masks: np.ndarray | None,
        values: np.ndarray,
        log_probs: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Actions of all environments (float32 rows), as drawn and within their limits."""
        features_of(observations, self._space, self._normalize_images, out=self._features)
        for draw in self._draws:
            draw()
        actions = np.empty((self._n_envs, self._n_actions), np.float32)
        clipped = np.empty_like(actions) if self._gaussian else actions
        masks = self._no_masks if masks is None else masks
        sample_actions(
            *(self._layout, parameters, masks, self._noise, self._limits, self._workspace),
            *(actions, clipped, log_probs, values),
        )
        return actions, clipped


def collect_rollout(
    model: Any,
    prepare: Callable[[], tuple[Layout, FlatMemory]],
    env: VecEnv,
    callback: BaseCallback,
    rollout_buffer: RolloutBuffer,
    n_rollout_steps: int,
    masks_of: Callable[[VecEnv], np.ndarray] | None = None,
) -> bool:
    """Fill ``rollout_buffer``; ``False`` if a callback ended the training.

    :param prepare: gives the policy's layout and memory; asked again whenever the policy's parameters
        turn out to be others than before (a callback may have replaced them)
    :param masks_of: the allowed actions of all environments, if the algorithm masks actions
    """
    model.policy.set_training_mode(False)
    layout, memory = prepare()
    act = Actor(model.policy, layout, env.num_envs)
    rollout_buffer.reset()
    # Views of the buffer's rows, which the policy fills, as the tensors callbacks expect.
    all_values = th.from_numpy(rollout_buffer.values).unsqueeze(-1).unbind()
    all_log_probs = th.from_numpy(rollout_buffer.log_probs).unbind()
    callback.on_rollout_start()
    shape = (env.num_envs, *model.action_space.shape)
    step = stepper(env)
    n_steps = 0
    action_masks, float_masks = None, None
    while n_steps < n_rollout_steps:
        if not memory.is_current(model.policy):
            layout, memory = prepare()
            act = Actor(model.policy, layout, env.num_envs)
        if masks_of is not None:
            action_masks = masks_of(env)
            float_masks = np.ascontiguousarray(action_masks.reshape(env.num_envs, -1), np.float32)
        rows = rollout_buffer.values[n_steps], rollout_buffer.log_probs[n_steps]
        actions, clipped_actions = act(memory.weights.parameters, model._last_obs, float_masks, *rows)
        if layout.kind == CATEGORICAL:
            # Choices are integers; coins and Gaussian actions float32, as from PyTorch's distributions.
            actions = clipped_actions = actions.astype(np.int64)
        actions, clipped_actions = actions.reshape(shape), clipped_actions.reshape(shape)

        new_obs, rewards, dones, infos = step(clipped_actions)
        model.num_timesteps += env.num_envs

        # Under the names they have in Stable-Baselines3, for callbacks that read them.
        values, log_probs = all_values[n_steps], all_log_probs[n_steps]
        obs_tensor = obs_as_tensor(model._last_obs, model.device)
        callback.update_locals({**locals(), "self": model})
        if not callback.on_step():
            return False

        model._update_info_buffer(infos, dones)
        for idx, terminal_obs in timed_out(dones, infos):
            # The value of the state in which a time limit ended an episode belongs to its last reward.
            with th.no_grad():
                terminal_value = model.policy.predict_values(model.policy.obs_to_tensor(terminal_obs)[0])[0]
            rewards[idx] += (model.gamma * terminal_value).item()
        _store(rollout_buffer, n_steps, model, actions, rewards, action_masks)
        n_steps += 1
        model._last_obs = new_obs
        model._last_episode_starts = dones

    with th.no_grad():
        values = model.policy.predict_values(obs_as_tensor(model._last_obs, model.device))
    finish(rollout_buffer, values, dones)
    callback.update_locals({**locals(), "self": model})
    callback.on_rollout_end()
    return True


def _store(
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
    bookkeeping.advantages_and_returns(
        *(buffer.rewards, buffer.values, buffer.episode_starts),
        *(last_values.numpy().reshape(-1), dones.astype(np.float32)),
        *(np.float32(buffer.gamma), np.float32(buffer.gamma * buffer.gae_lambda)),
        *(buffer.advantages, buffer.returns),
    )
