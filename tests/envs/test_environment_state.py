"""The state of an environment: complete, put back bit for bit, and its absence noticed."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from sppo.checkpoint import UncapturableError, capture_environment, restore_environment, why_inexact

MUJOCO = ["Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5"]
OTHERS = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0", "FrozenLake-v1"]


@pytest.mark.parametrize("env_id", MUJOCO + OTHERS)
def test_a_captured_environment_goes_on_bit_for_bit(env_id: str) -> None:
    assert why_inexact(lambda: gym.make(env_id), steps=120) is None


def test_mujoco_state_alone_would_not_be_enough() -> None:
    """Why MjData is copied whole: Ant's reward reads contact forces, which mj_setState does not carry."""
    import mujoco

    def forces(copy: bool) -> np.ndarray:
        first, second = gym.make("Ant-v5"), gym.make("Ant-v5")
        first.reset(seed=0)
        for _ in range(30):
            first.step(first.action_space.low)
        second.reset(seed=1)
        source, target = first.unwrapped, second.unwrapped
        if copy:
            restore_environment(second, capture_environment(first))
        else:
            size = mujoco.mj_stateSize(source.model, mujoco.mjtState.mjSTATE_INTEGRATION)
            state = np.empty(size)
            mujoco.mj_getState(source.model, source.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
            mujoco.mj_setState(target.model, target.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        return source.data.cfrc_ext - target.data.cfrc_ext

    assert np.all(forces(copy=True) == 0)
    assert np.any(forces(copy=False) != 0)


def test_a_changed_simulator_model_is_part_of_the_state() -> None:
    """An environment that randomises its physics keeps them."""
    first, second = gym.make("Hopper-v5"), gym.make("Hopper-v5")
    first.reset(seed=0)
    first.unwrapped.model.body_mass[1] *= 2.0
    second.reset(seed=0)
    restore_environment(second, capture_environment(first))
    assert second.unwrapped.model.body_mass[1] == first.unwrapped.model.body_mass[1]
    ours, theirs = first.step(np.ones(3)), second.step(np.ones(3))
    assert ours[0].tobytes() == theirs[0].tobytes()


def test_spaces_keep_their_identity_and_get_their_generator_back() -> None:
    first, second = gym.make("Pendulum-v1"), gym.make("Pendulum-v1")
    first.reset(seed=0)
    first.action_space.seed(5)
    first.action_space.sample()
    space = second.action_space
    restore_environment(second, capture_environment(first))
    assert second.action_space is space
    assert second.action_space.sample() == first.action_space.sample()


def test_objects_shared_between_attributes_stay_shared() -> None:
    class Shared(gym.Env):
        observation_space = gym.spaces.Discrete(2)
        action_space = gym.spaces.Discrete(2)

        def __init__(self) -> None:
            self.position = np.zeros(2)
            self.agents = [self.position]

    first, second = Shared(), Shared()
    first.position += 1.0
    restore_environment(second, capture_environment(first))
    second.position += 1.0
    assert second.agents[0].tolist() == [2.0, 2.0]


class Unpicklable(gym.Env):
    """Keeps its state where pickle cannot go."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.simulator = threading.Lock()
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        return np.full(1, self.steps / 20, np.float32), 1.0, self.steps >= 20, False, {}


def test_a_name_that_usually_shows_the_environment_may_hold_state() -> None:
    first, second = gym.make("CartPole-v1"), gym.make("CartPole-v1")
    first.unwrapped.clock = 17
    restore_environment(second, capture_environment(first))
    assert second.unwrapped.clock == 17


def test_what_cannot_be_captured_is_named() -> None:
    with pytest.raises(UncapturableError, match=r"Unpicklable\.simulator"):
        capture_environment(Unpicklable())
    assert "Unpicklable.simulator" in str(why_inexact(Unpicklable))


def test_state_that_hides_from_pickle_is_found_by_replay() -> None:
    """Pickling succeeds, but a counter in a closure is not in it."""

    class Hidden(Unpicklable):
        def __init__(self) -> None:
            super().__init__()
            del self.simulator
            counter = [0]

            def count() -> int:
                counter[0] += 1
                return counter[0]

            self.count = count

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            observation, _, terminated, truncated, info = super().step(action)
            return observation, float(self.count()), terminated, truncated, info

    capture_environment(Hidden())
    assert "another way" in str(why_inexact(Hidden))


def test_checking_leaves_the_generators_alone() -> None:
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()[1].tobytes()  # noqa: NPY002
    why_inexact(lambda: gym.make("CartPole-v1"))
    assert np.random.get_state()[1].tobytes() == before  # noqa: NPY002


def test_another_chain_of_wrappers_is_refused() -> None:
    captured = capture_environment(gym.make("CartPole-v1"))
    with pytest.raises(UncapturableError, match="but the environment is"):
        restore_environment(gym.make("CartPole-v1").unwrapped, captured)
