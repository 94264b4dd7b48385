"""A small environment with observations and actions of several kinds, and endings of both kinds."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Chain(gym.Env):
    """Observations drawn at random, a reward that depends on both, endings of both kinds."""

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
