"""Observations and rewards that are not finite: refused where they enter, and what is said."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper, VecMonitor, VecNormalize

import sppo
from sppo import SPPO, MaskableSPPO, RecurrentSPPO
from sppo.algorithms.finite import NonFiniteError
from tests.algorithms.small import LSTM, NET, SMALL, WORST, all_finite

pytestmark = pytest.mark.usefixtures("either_engine")


class BrokenEnv(gym.Env):
    """Breaks what it is told to break, at the steps it is told, counted over its whole life."""

    def __init__(
        self,
        observation: dict[int, float] | None = None,
        reward: dict[int, float] | None = None,
        episode: int = 10,
        action_space: spaces.Space | None = None,
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = action_space or spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._observation, self._reward, self._episode = observation or {}, reward or {}, episode
        self._life = self._steps = 0
        self.actions: list[Any] = []

    def _observe(self) -> np.ndarray:
        observation = np.array([1.0, self._steps, self._life], np.float32) / 10
        if self._life in self._observation:
            observation[1] = self._observation[self._life]
        return observation

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.actions.append(action)
        self._life += 1
        self._steps += 1
        reward = self._reward.get(self._life, float(np.sum(action)))
        return self._observe(), reward, False, self._steps >= self._episode, {}

    def mend(self) -> None:
        self._observation, self._reward = {}, {}

    def action_masks(self) -> np.ndarray:
        assert isinstance(self.action_space, spaces.Discrete)
        return np.ones(self.action_space.n, bool)


def environments(broken: BrokenEnv) -> DummyVecEnv:
    """The broken one is the last of three."""
    return DummyVecEnv([*[lambda: BrokenEnv(action_space=broken.action_space)] * 2, lambda: broken])


NORMALIZE: dict[str, Callable[[VecEnv], VecEnv]] = {
    "plain": lambda env: env,
    "normalized": VecNormalize,
    "twice": lambda env: VecNormalize(VecNormalize(env, norm_reward=False), norm_obs=False),
    "below another": lambda env: VecMonitor(VecNormalize(env)),
}


def statistics(env: VecEnv) -> list[np.ndarray]:
    """Every running number of every ``VecNormalize``."""
    found: list[np.ndarray] = []
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, VecNormalize):
            moments = [env.ret_rms, *([env.obs_rms] if env.norm_obs else [])]
            found += [np.array(part) for rms in moments for part in (rms.mean, rms.var, rms.count)]
            found.append(np.array(env.returns))
        env = env.venv
    return found


@pytest.mark.parametrize(
    ("cls", "wrapped"),
    [
        *((SPPO, wrapped) for wrapped in NORMALIZE),
        (MaskableSPPO, "normalized"),
        (RecurrentSPPO, "normalized"),
    ],
)
@pytest.mark.parametrize("value", WORST)
@pytest.mark.parametrize(
    ("what", "named"), [("observation", r"observation\[1\]"), ("reward", "reward")], ids=["obs", "reward"]
)
def test_a_broken_number_ends_training(cls: Any, what: str, named: str, value: float, wrapped: str) -> None:
    """In the second iteration: the error says which number, weights and statistics are the last good ones."""
    broken = BrokenEnv(**{what: {39: value}}, action_space=spaces.Discrete(3))
    env = NORMALIZE[wrapped](environments(broken))
    policy, net = ("MlpLstmPolicy", LSTM) if cls is RecurrentSPPO else ("MlpPolicy", NET)
    model = cls(policy, env, **SMALL, **net)
    before: list[Any] = []

    class Remember(BaseCallback):
        def _on_step(self) -> bool:
            before[:] = statistics(env), [weights.clone() for weights in self.model.policy.parameters()]
            return True

    with pytest.raises(NonFiniteError, match=rf"the {named} of environment 2 is {value} at step 117\."):
        model.learn(960, Remember())
    assert len(broken.actions) == 39
    assert model.num_timesteps == 114
    for kept, number in zip(before[0], statistics(env), strict=True):
        np.testing.assert_array_equal(kept, number)
    assert all(th.equal(a, b) for a, b in zip(before[1], model.policy.parameters(), strict=True))
    # Mended, new episodes start and training goes on.
    broken.mend()
    model.learn(96, reset_num_timesteps=False)
    assert model.num_timesteps == 114 + 96
    assert all_finite(model)
    assert "step_wait" not in vars(env)


def test_a_checkpoint_of_the_last_good_state_is_written(tmp_path: Path) -> None:
    """Where checkpoints are on, the iteration that an environment broke can be begun anew."""
    env = VecNormalize(environments(BrokenEnv(reward={39: math.nan})))
    model = SPPO("MlpPolicy", env, **SMALL, **NET)
    with pytest.raises(NonFiniteError, match="the reward of environment 2 is nan"):
        model.learn(960, sppo.ExactCheckpointCallback(tmp_path / "checkpoints", every=100))
    (path,) = (tmp_path / "checkpoints").glob("*.last_good")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = SPPO.resume(path, env=VecNormalize(environments(BrokenEnv())))
    assert all(
        th.equal(a, b) for a, b in zip(model.policy.parameters(), again.policy.parameters(), strict=True)
    )
    again.learn(96, reset_num_timesteps=False)
    assert all_finite(again)


@pytest.mark.parametrize("wrapped", NORMALIZE)
@pytest.mark.parametrize("value", WORST)
def test_a_broken_first_observation_poisons_nothing(value: float, wrapped: str) -> None:
    """Of all the first one: refused before the statistics are updated, which would keep a NaN for ever."""
    env = NORMALIZE[wrapped](environments(BrokenEnv(observation={0: value})))
    before = statistics(env)
    model = SPPO("MlpPolicy", env, **SMALL, **NET)
    with pytest.raises(NonFiniteError, match=rf"observation\[1\] of environment 2 is {value} at step 0"):
        model.learn(96)
    for kept, number in zip(before, statistics(env), strict=True):
        np.testing.assert_array_equal(kept, number)


@pytest.mark.parametrize("wrapped", NORMALIZE)
@pytest.mark.parametrize("value", WORST)
def test_a_broken_last_observation_counts(value: float, wrapped: str) -> None:
    """The last observation of an episode is not the next one's first, and its value is bootstrapped."""

    class BrokenAtTheEnd(BrokenEnv):
        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
            observation, reward, terminated, truncated, info = super().step(action)
            if truncated:
                observation[2] = value
            return observation, reward, terminated, truncated, info

    model = SPPO("MlpPolicy", NORMALIZE[wrapped](environments(BrokenAtTheEnd())), **SMALL, **NET)
    with pytest.raises(
        NonFiniteError, match=rf"last observation\[2\] of environment 2 is {value} at step 30"
    ):
        model.learn(96)


class MixedEnv(gym.Env):
    """A dictionary of everything that Stable-Baselines3 allows in one, as plain Python values."""

    observation_space = spaces.Dict(
        {
            "room": spaces.Discrete(5),
            "switches": spaces.MultiBinary(2),
            "place": spaces.Box(-1.0, 1.0, (2,), np.float32),
        }
    )
    action_space = spaces.Discrete(2)
    action_masks = staticmethod(lambda: np.ones(2, bool))

    def __init__(self, broken_at: int | None = None) -> None:
        self._life, self._broken_at = 0, broken_at

    def _observe(self) -> dict[str, Any]:
        place = (0.5, math.nan if self._life == self._broken_at else 0.25)
        return {"room": self._life % 5, "switches": [0, 1], "place": place}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict]:
        self._life += 1
        return self._observe(), 1.0, False, self._life % 7 == 0, {}


@pytest.mark.parametrize("cls", [SPPO, MaskableSPPO, RecurrentSPPO])
def test_dictionaries_of_plain_python_values(cls: Any) -> None:
    """Ints, lists and tuples arrive in ``infos`` as they are when an episode ends."""
    policy, net = ("MultiInputLstmPolicy", LSTM) if cls is RecurrentSPPO else ("MultiInputPolicy", NET)
    model = cls(policy, DummyVecEnv([MixedEnv] * 2), **SMALL, **net).learn(128)
    assert all_finite(model)
    broken = DummyVecEnv([MixedEnv, lambda: MixedEnv(broken_at=9)])
    with pytest.raises(NonFiniteError, match=r"observation 'place'\[1\] of environment 1 is nan at step 18"):
        cls(policy, broken, **SMALL, **net).learn(128)


def test_what_a_wrapper_has_mended_is_accepted() -> None:
    """Whoever says what a broken number means is believed, below a normalisation and without one."""

    class Mended(VecEnvWrapper):
        def reset(self) -> Any:
            return np.nan_to_num(self.venv.reset(), posinf=0.0)

        def step_wait(self) -> Any:
            observations, rewards, dones, infos = self.venv.step_wait()
            return np.nan_to_num(observations, posinf=0.0), rewards, dones, infos

    for wrap in NORMALIZE.values():
        env = wrap(Mended(environments(BrokenEnv(observation={0: math.nan, 7: math.inf}))))
        assert all_finite(SPPO("MlpPolicy", env, **SMALL, **NET).learn(96))


@pytest.mark.parametrize("backend", ["gymnasium", "subproc"])
def test_every_way_to_step_environments(backend: Any) -> None:
    env = sppo.make_vec_env(
        BrokenEnv, 2, env_kwargs={"reward": {7: math.nan}}, backend=backend, monitor_dir=None
    )
    try:
        with pytest.raises(NonFiniteError, match="the reward of environment 0 is nan at step 14"):
            SPPO("MlpPolicy", env, **SMALL, **NET).learn(96)
    finally:
        env.close()


def test_callbacks_are_the_users_own() -> None:
    """Callbacks see the environment as it is, and what they do to it is kept."""
    seen: list[Any] = []

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            seen.append(self.locals["new_obs"])
            return len(seen) < 20

    env = VecNormalize(environments(BrokenEnv()))
    SPPO("MlpPolicy", env, **SMALL, **NET).learn(960, Look())
    assert len(seen) == 20
    pickle.loads(pickle.dumps(env))
