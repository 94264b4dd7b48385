"""Without its clock MuJoCo does the same, and no longer times itself."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
import pytest

from sppo.study.mujoco_timers import stop_mujoco_timers


@pytest.fixture
def clock() -> Iterator[ctypes.c_void_p]:
    """A clock of the test's own: a study's run in this process may have taken MuJoCo's away before."""
    (library,) = Path(mujoco.__file__).parent.glob("libmujoco.*")
    clock = ctypes.c_void_p.in_dll(ctypes.CDLL(str(library)), "mjcb_time")
    before = clock.value
    seconds = ctypes.CFUNCTYPE(ctypes.c_double)(time.perf_counter)
    clock.value = ctypes.cast(seconds, ctypes.c_void_p).value
    yield clock
    clock.value = before


def timed(steps: int = 50) -> tuple[np.ndarray, float]:
    """Observations, and the seconds that MuJoCo says they took."""
    env = gym.make("Hopper-v5")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    seen = [env.step(rng.uniform(-1, 1, 3).astype(np.float32))[0] for _ in range(steps)]
    return np.stack(seen), sum(timer.duration for timer in env.unwrapped.data.timer)  # type: ignore[attr-defined]


def test_the_physics_stay_and_the_timers_stand_still(clock: ctypes.c_void_p) -> None:
    expected, seconds = timed()
    assert clock.value
    assert seconds > 0
    stop_mujoco_timers()
    seen, seconds = timed()
    np.testing.assert_array_equal(seen, expected)
    assert not clock.value
    assert seconds == 0


def test_without_mujoco_nothing_happens(monkeypatch: pytest.MonkeyPatch, clock: ctypes.c_void_p) -> None:
    monkeypatch.delitem(sys.modules, "mujoco")
    stop_mujoco_timers()
    assert clock.value
