"""Environments for the tests of vectorised ones. Light to import: worker processes do it."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Chain(gym.Env):
    """Observations drawn at random, a reward that depends on them, endings of both kinds."""

    def __init__(self, observation: str = "vector", limit: int = 12) -> None:
        vector = spaces.Box(-2.0, 2.0, (5,), np.float32)
        self.observation_space = spaces.Dict({"a": vector}) if observation == "dict" else vector
        self.action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
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


class Counter(gym.Env):
    """Observes how often it was stepped; does on request, by its action, what environments do wrong."""

    FAIL, SLEEP, DIE = 2.0, 3.0, 4.0

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if action[0] == self.FAIL:
            raise KeyError("broken joint")
        if action[0] == self.SLEEP:
            time.sleep(0.3)
        if action[0] == self.DIE:
            os._exit(7)
        self.steps += 1
        return np.full(1, self.steps, np.float32), float(self.steps), False, False, {"pid": os.getpid()}

    def echo(self, value: Any) -> Any:
        return value


class Verbose(Counter):
    """Tells more than usual about every third step, and remembers its action as it came."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {"action": action, "map": np.arange(60_000) + self.steps if self.steps % 3 == 0 else None}
        return observation, reward, terminated, truncated, info


class Dice(Counter):
    """Draws from NumPy's process-wide generator."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(np.random.random()), terminated, truncated, info  # noqa: NPY002


class Torch(Chain):
    """Uses PyTorch for its observations, with as many threads as it likes."""

    def _observe(self) -> Any:
        import torch as th

        weights = th.ones((400, 400), requires_grad=True)
        product = (weights @ weights).sum()
        product.backward()
        return np.full(5, float(product.detach()) / 400**3, np.float32)
