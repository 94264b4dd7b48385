"""Small, fast environments with every kind of space, shared by the algorithm tests."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register

ACTION_SPACES: dict[str, spaces.Space] = {
    "box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "discrete": spaces.Discrete(4),
    "multidiscrete": spaces.MultiDiscrete([3, 2]),
    "multibinary": spaces.MultiBinary(3),
}

OBSERVATION_SPACES: dict[str, spaces.Space] = {
    "vector": spaces.Box(-1.0, 1.0, (5,), np.float32),
    "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
    "dict": spaces.Dict(
        {
            "position": spaces.Box(-1.0, 1.0, (3,), np.float32),
            "camera": spaces.Box(0, 255, (36, 36, 1), np.uint8),
        }
    ),
}


class SpaceEnv(gym.Env):
    """Random observations, a reward that depends on the action, episodes that end or run out of time.

    Actions are masked pseudo-randomly, never all of them: :meth:`action_masks` is what MaskablePPO asks.
    """

    def __init__(self, observation: str = "vector", action: str = "box", seed: int = 0) -> None:
        self.observation_space = OBSERVATION_SPACES[observation]
        self.action_space = ACTION_SPACES[action]
        self._rng = np.random.default_rng(seed)
        self._steps = 0

    def _observe(self) -> Any:
        def sample(space: spaces.Space) -> Any:
            if isinstance(space, spaces.Dict):
                return {key: sample(part) for key, part in space.spaces.items()}
            assert isinstance(space, spaces.Box)
            draw = self._rng.uniform(space.low, space.high, space.shape)
            return draw.astype(space.dtype)

        return sample(self.observation_space)

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
        return self._observe(), reward, terminated, self._steps >= 15, {}

    def action_masks(self) -> np.ndarray:
        if isinstance(self.action_space, spaces.MultiDiscrete):
            sizes = [int(n) for n in self.action_space.nvec]
        elif isinstance(self.action_space, spaces.MultiBinary):
            sizes = [2] * self.action_space.n
        else:
            assert isinstance(self.action_space, spaces.Discrete)
            sizes = [int(self.action_space.n)]
        masks = [self._rng.random(size) < 0.7 for size in sizes]
        for mask in masks:
            mask[self._rng.integers(len(mask))] = True
        return np.concatenate(masks)


class ForbiddingEnv(gym.Env):
    """One action of four is allowed, another one each step; any other raises."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def action_masks(self) -> np.ndarray:
        return np.arange(4) == self._steps % 4

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if not self.action_masks()[action]:
            raise RuntimeError(f"forbidden action {action} at step {self._steps}")
        self._steps += 1
        return np.zeros(2, np.float32), 1.0, self._steps >= 10, False, {}


for _name, _environment in {"SppoForbidding-v0": ForbiddingEnv}.items():
    if _name not in gym.registry:
        register(_name, entry_point=_environment)
