"""Models with every kind of space, and one update of them by either engine."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from sppo import SPPO, MaskableSPPO

OBSERVATIONS: dict[str, spaces.Space] = {
    "vector": spaces.Box(-2.0, 2.0, (5,), np.float32),
    "double": spaces.Box(-2.0, 2.0, (5,), np.float64),
    "matrix": spaces.Box(-2.0, 2.0, (2, 3), np.float32),
    "integers": spaces.Box(-3, 3, (4,), np.int64),
    "discrete": spaces.Discrete(6),
    "multidiscrete": spaces.MultiDiscrete([3, 4]),
    "multibinary": spaces.MultiBinary(4),
    "image": spaces.Box(0, 255, (6, 6, 1), np.uint8),
    "dict": spaces.Dict(
        # Not in the order of the alphabet, which a plain dictionary would be brought into.
        OrderedDict(
            place=spaces.Box(-2.0, 2.0, (3,), np.float32),
            room=spaces.Discrete(6),
            doors=spaces.MultiBinary(4),
            grid=spaces.Box(-2.0, 2.0, (2, 3), np.float64),
            cards=spaces.MultiDiscrete([3, 4]),
            apples=spaces.Box(-3, 3, (2,), np.int64),
        )
    ),
    "dict-vectors": spaces.Dict(
        {"place": spaces.Box(-2.0, 2.0, (3,), np.float32), "goal": spaces.Box(-2.0, 2.0, (2, 2), np.float64)}
    ),
    "dict-image": spaces.Dict(
        {"seen": spaces.Box(0, 255, (36, 36, 1), np.uint8), "place": spaces.Box(-2.0, 2.0, (3,), np.float32)}
    ),
}
ACTIONS: dict[str, spaces.Space] = {
    "box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "matrix": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    "discrete": spaces.Discrete(4),
    "multidiscrete": spaces.MultiDiscrete([3, 2, 4]),
    "multibinary": spaces.MultiBinary(3),
}


class Chain(gym.Env):
    """Observations drawn at random, a reward that depends on both, endings of both kinds, masks."""

    def __init__(self, observation: str = "vector", action: str = "box", limit: int = 12) -> None:
        self.observation_space = copy.deepcopy(OBSERVATIONS[observation])
        self.action_space = copy.deepcopy(ACTIONS[action])
        self._rng = np.random.default_rng(0)
        self._limit = limit

    def _observe(self) -> Any:
        self.observation_space.seed(int(self._rng.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._steps += 1
        reward = float(np.sum(action)) + float(self._rng.normal())
        terminated = bool(self._rng.random() < 0.05)
        return self._observe(), reward, terminated, self._steps >= self._limit, {"height": reward}

    def action_masks(self) -> np.ndarray:
        sizes = {"Discrete": [4], "MultiDiscrete": [3, 2, 4], "MultiBinary": [2, 2, 2]}
        masks = [self._rng.random(size) < 0.6 for size in sizes[type(self.action_space).__name__]]
        for mask in masks:
            mask[self._rng.integers(len(mask))] = True
        return np.concatenate(masks)


def make_env(observation: str = "vector", action: str = "box", n_envs: int = 3) -> Any:
    kwargs = {"observation": observation, "action": action}
    return make_vec_env(Chain, n_envs, seed=4, env_kwargs=kwargs)


def make_model(
    observation: str = "vector", action: str = "box", masked: bool = False, **kwargs: Any
) -> SPPO | MaskableSPPO:
    settings: dict[str, Any] = {
        "n_steps": 48,
        "batch_size": 16,
        "n_epochs": 1,
        "learning_rate": 1e-3,
        "seed": 1,
        "device": "cpu",
        **kwargs,
    }
    algorithm = MaskableSPPO if masked else SPPO
    policy = "MultiInputPolicy" if observation.startswith("dict") else "MlpPolicy"
    return algorithm(policy, make_env(observation, action), **settings)


def filled(model: Any) -> Any:
    """The model with a rollout that it has not been trained on, in the order of its minibatches."""
    _, callback = model._setup_learn(10_000)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    next(iter(model.rollout_buffer.get(16)))
    return model


def flat(policy: th.nn.Module) -> np.ndarray:
    """All parameters in one vector."""
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in policy.parameters()])


def moments(policy: Any) -> dict[str, np.ndarray]:
    """Adam's state in one vector per name."""
    states = [policy.optimizer.state[parameter] for parameter in policy.parameters()]
    return {
        name: np.concatenate([state[name].numpy().ravel() for state in states])
        for name in ("step", "exp_avg", "exp_avg_sq")
    }


def update_once(model: Any, engine: str) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, float]]:
    """Parameters, Adam's state and what was logged after one update, which is then taken back."""
    policy = copy.deepcopy(model.policy.state_dict())
    optimizer = copy.deepcopy(model.policy.optimizer.state_dict())
    buffer = model.rollout_buffer
    model.rollout_buffer = copy.deepcopy(buffer)
    model.engine = engine
    np.random.seed(7)  # noqa: NPY002  (the generator the buffer draws from)
    model.logger.name_to_value.clear()
    model._n_updates = 0
    auto_eta = model.auto_eta
    model.train()
    model.auto_eta = auto_eta
    logged = {k: v for k, v in model.logger.name_to_value.items() if k.startswith("train/")}
    assert logged.pop("train/engine") == engine
    result = flat(model.policy), moments(model.policy), logged
    model.rollout_buffer = buffer
    model.policy.load_state_dict(policy)
    model.policy.optimizer.load_state_dict(optimizer)
    return result
