"""Environments in which something goes wrong; by name: ``tests.study.study_environments:Raises-v0``."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import register


class Walk(gym.Env):
    """Ten steps, random observations, a reward for the right action."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.age = 0
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        self.age += 1
        return self._observe(), float(action), self.steps >= 10, False, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)


class Raises(Walk):
    """Fails after a while."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if self.age == 250:
            raise RuntimeError("the simulator exploded")
        return super().step(action)


class NotANumber(Walk):
    """Gives a reward that is not a number, after a while."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, np.nan if self.age > 250 else reward, terminated, truncated, info


class Crashes(Walk):
    """Takes its process down, as a broken C library would."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if self.age == 250:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(action)


class AsksToStop(Walk):
    """Makes the file ``STOP_FILE`` at its 150th step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if self.age == 149:
            Path(os.environ["STOP_FILE"]).touch()
        return super().step(action)


class Fussy(Walk):
    """Cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.simulator = threading.Lock()


class Slow(Walk):
    """Takes its time, so that a test can interfere."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        time.sleep(0.003)
        return super().step(action)


class Waits(Walk):
    """Waits at its 100th step for the file ``GO_FILE``: a test has all the time it takes to interfere."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        deadline = time.monotonic() + 120.0
        while self.age == 99 and not Path(os.environ["GO_FILE"]).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return super().step(action)


for kind in (Walk, Raises, NotANumber, Crashes, AsksToStop, Fussy, Slow, Waits):
    register(f"{kind.__name__}-v0", entry_point=kind)
