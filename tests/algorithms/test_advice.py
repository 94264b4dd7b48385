"""``check`` finds each of the usual mistakes, and nothing in a sound model."""

from __future__ import annotations

import math
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import sppo
from sppo import SPPO, MaskableSPPO, RecurrentSPPO
from tests.algorithms.environments import SpaceEnv

SMALL: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}


class RangeEnv(gym.Env):
    """Observations and actions of given ranges."""

    def __init__(self, bound: float = 1.0, seen: float = 1.0, action: float = 1.0) -> None:
        self.observation_space = spaces.Box(-bound, bound, (2,), np.float32)
        self.action_space = spaces.Box(-action, action, (1,), np.float32)
        self._seen = seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.full(2, self._seen, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.full(2, self._seen, np.float32), 0.0, False, False, {}


def venv(**options: Any) -> DummyVecEnv:
    return DummyVecEnv([lambda: RangeEnv(**options)])


def found(model: Any) -> str:
    """The only finding, which is also a warning."""
    with pytest.warns(UserWarning, match="write|wrap|scale|load|let") as caught:
        findings = sppo.check(model)
    assert len(findings) == 1
    assert [str(warning.message) for warning in caught] == findings
    return findings[0]


@pytest.mark.parametrize("cls", [SPPO, MaskableSPPO, RecurrentSPPO])
def test_nothing_to_find(cls: Any) -> None:
    action = "discrete" if cls is MaskableSPPO else "box"
    policy = "MlpLstmPolicy" if cls is RecurrentSPPO else "MlpPolicy"
    env = make_vec_env(SpaceEnv, n_envs=2, env_kwargs={"action": action})
    model = cls(policy, env, **SMALL)
    assert sppo.check(model) == []
    assert sppo.check(model.learn(64)) == []


def test_images_and_unbounded_spaces_are_no_mistake() -> None:
    assert (
        sppo.check(SPPO("CnnPolicy", make_vec_env(SpaceEnv, env_kwargs={"observation": "image"}), **SMALL))
        == []
    )
    assert sppo.check(SPPO("MlpPolicy", make_vec_env("CartPole-v1"), **SMALL)) == []


def test_huge_observations() -> None:
    assert "reach 1e+03" in found(SPPO("MlpPolicy", venv(bound=1000.0), **SMALL))
    model = SPPO("MlpPolicy", venv(bound=np.inf, seen=5000.0), **SMALL)
    assert sppo.check(model) == []
    assert "VecNormalize" in found(model.learn(32))
    assert sppo.check(SPPO("MlpPolicy", VecNormalize(venv(bound=1000.0)), **SMALL)) == []


def test_actions_out_of_scale() -> None:
    assert "RescaleAction" in found(SPPO("MlpPolicy", venv(action=200.0), **SMALL))


@pytest.mark.parametrize(
    ("options", "finding"),
    [
        ({"clip_mode": "two-sided"}, 'clip_mode="one-sided"'),
        ({"clip_mode": "two-sided", "clip_range": lambda left: 1.2 - left}, "nothing else does"),
        ({"clip_mode": "two-sided", "eta": 1.0}, None),
        ({"clip_range": 0.8}, None),
        ({"eta": lambda left: left}, "let its schedule end above zero"),
        ({"clip_range": 0.8, "use_softmax": False}, None),
        ({"clip_range": 1.0, "use_softmax": False}, "lower bound"),
        ({"clip_range": 1.0, "use_softmax": False, "clip_mode": "symmetric"}, None),
        ({"clip_range": None, "eta": 1.0}, None),
        ({"clip_range": lambda left: 1.2 - left, "use_softmax": False}, "clip_range=1.2"),
        ({"clip_range": 0.2}, None),
    ],
)
def test_clip(options: dict[str, Any], finding: str | None) -> None:
    model = SPPO("MlpPolicy", venv(), **(SMALL | options))
    if finding is None:
        assert sppo.check(model) == []
    else:
        assert finding in found(model)


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_stub() -> None:
    finding = found(SPPO("MlpPolicy", venv(), **{**SMALL, "batch_size": 20}))
    assert "minibatch of 12" in finding
    assert finding.endswith("such as 16")
    findings = sppo.check(SPPO("MlpPolicy", venv(), **{**SMALL, "n_steps": 33}), warn=False)
    assert [("minibatch of 1 " in text, "cannot normalise" in text) for text in findings] == [
        (True, False),
        (False, True),
    ]


def test_broken_weights() -> None:
    model = SPPO("MlpPolicy", venv(), **SMALL)
    with th.no_grad():
        model.policy.action_net.bias[0] = math.nan
    assert "action_net.bias" in found(model)


def test_silent_when_asked() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(sppo.check(SPPO("MlpPolicy", venv(action=200.0), **SMALL), warn=False)) == 1


def test_many_passes_without_a_budget() -> None:
    settings = {**SMALL, "n_epochs": 100}
    model = SPPO("MlpPolicy", make_vec_env("CartPole-v1"), **settings)
    assert "write kl_budget=0.03" in found(model)
    for kept in ({"kl_budget": 0.03}, {"target_kl": 0.02}, {"kl_budget": 0.03, "clip_mode": "two-sided"}):
        assert sppo.check(SPPO("MlpPolicy", make_vec_env("CartPole-v1"), **settings, **kept)) == []
