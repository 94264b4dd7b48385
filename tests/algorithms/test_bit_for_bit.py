"""``use_softmax=False`` without ``eta`` is upstream's algorithm, to the last bit of every weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as th
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sppo import SPPO, MaskableSPPO, RecurrentSPPO
from tests.algorithms.environments import SpaceEnv

SMALL: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 3, "seed": 3, "device": "cpu"}
SMALL_NET: dict[str, Any] = {"policy_kwargs": {"net_arch": [16]}}

#: name -> (policy, observation kind, action kind, extra parameters)
PPO_CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "box": ("MlpPolicy", "vector", "box", {}),
    "discrete": ("MlpPolicy", "vector", "discrete", {}),
    "multidiscrete": ("MlpPolicy", "vector", "multidiscrete", {}),
    "multibinary": ("MlpPolicy", "vector", "multibinary", {}),
    "dict-observations": ("MultiInputPolicy", "dict", "box", {}),
    "image-observations": ("CnnPolicy", "image", "discrete", {}),
    "gsde": ("MlpPolicy", "vector", "box", {"use_sde": True, "sde_sample_freq": 4}),
    "target-kl": ("MlpPolicy", "vector", "box", {"target_kl": 1e-4, "learning_rate": 1e-2}),
    "value-clip": ("MlpPolicy", "vector", "box", {"clip_range_vf": 0.1, "vf_coef": 0.7}),
    "raw-advantage": ("MlpPolicy", "vector", "discrete", {"normalize_advantage": False}),
    "schedules": (
        "MlpPolicy",
        "vector",
        "box",
        {"learning_rate": lambda left: 1e-2 * left, "clip_range": lambda left: 0.3 * left},
    ),
    "entropy-bonus": ("MlpPolicy", "vector", "discrete", {"ent_coef": 0.013, "vf_coef": 0.31}),
    "truncated-minibatch": ("MlpPolicy", "vector", "box", {"batch_size": 24}),
    "defaults-of-the-network": ("MlpPolicy", "vector", "box", {"policy_kwargs": None}),
}


def vec_env(observation: str, action: str, n_envs: int = 2) -> Any:
    return make_vec_env(
        SpaceEnv, n_envs=n_envs, seed=5, env_kwargs={"observation": observation, "action": action}
    )


def assert_same_training(
    upstream_class: type[BaseAlgorithm], our_class: type[BaseAlgorithm], policy: str, env: Any, **kwargs: Any
) -> None:
    """Train both from one seed and compare every weight, Adam's state and the logged numbers.

    One after the other, because both draw from the global random generators.
    """
    steps = 2 * kwargs["n_steps"] * env().num_envs
    upstream = upstream_class(policy, env(), **kwargs)
    initial = {name: weights.clone() for name, weights in upstream.policy.state_dict().items()}
    upstream.learn(steps)
    ours = our_class(policy, env(), use_softmax=False, **kwargs).learn(steps)

    theirs, mine = upstream.policy.state_dict(), ours.policy.state_dict()
    assert theirs.keys() == mine.keys()
    for name, weights in theirs.items():
        assert th.equal(weights, mine[name]), name
    assert any(not th.equal(weights, initial[name]) for name, weights in theirs.items()), "nothing trained"
    before = upstream.policy.optimizer.state_dict()["state"]
    after = ours.policy.optimizer.state_dict()["state"]
    assert before.keys() == after.keys()
    for index, state in before.items():
        assert all(th.equal(state[key], after[index][key]) for key in state)
    logged = {key: value for key, value in upstream.logger.name_to_value.items() if key.startswith("train/")}
    assert len(logged) >= 8, "upstream logged less than expected: the comparison below would be empty"
    for key, value in logged.items():
        assert np.isclose(ours.logger.name_to_value[key], value, rtol=1e-5, atol=1e-7), key


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("case", PPO_CASES)
def test_ppo(case: str) -> None:
    policy, observation, action, extra = PPO_CASES[case]
    kwargs = {**SMALL, **SMALL_NET, **extra}
    assert_same_training(PPO, SPPO, policy, lambda: vec_env(observation, action), **kwargs)


def test_target_kl_case_stops_early() -> None:
    """Otherwise the target-kl comparison above would not exercise the early stop."""
    policy, observation, action, extra = PPO_CASES["target-kl"]
    model = SPPO(policy, vec_env(observation, action), use_softmax=False, **{**SMALL, **SMALL_NET, **extra})
    model.learn(2 * 32 * 2)
    assert model._n_updates < 2 * model.n_epochs


@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "multibinary"])
@pytest.mark.parametrize("extra", [{}, {"target_kl": 1e-3, "clip_range_vf": 0.2, "ent_coef": 0.01}])
def test_maskable(action: str, extra: dict[str, Any]) -> None:
    kwargs = {**SMALL, **SMALL_NET, **extra}
    assert_same_training(MaskablePPO, MaskableSPPO, "MlpPolicy", lambda: vec_env("vector", action), **kwargs)


def test_maskable_dict_observations() -> None:
    kwargs = {**SMALL, **SMALL_NET}
    env = lambda: vec_env("dict", "discrete")  # noqa: E731
    assert_same_training(MaskablePPO, MaskableSPPO, "MultiInputPolicy", env, **kwargs)


@pytest.mark.parametrize("action", ["box", "discrete"])
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"clip_range_vf": 0.2, "ent_coef": 0.01, "vf_coef": 0.7, "target_kl": 1e-2},
        {"normalize_advantage": False},
    ],
)
def test_recurrent(action: str, extra: dict[str, Any]) -> None:
    kwargs = {**SMALL, "policy_kwargs": {"net_arch": [16], "lstm_hidden_size": 8}, **extra}
    env = lambda: vec_env("vector", action)  # noqa: E731
    assert_same_training(RecurrentPPO, RecurrentSPPO, "MlpLstmPolicy", env, **kwargs)


@pytest.mark.parametrize("n_envs", [1, 5])
def test_vec_normalize_and_several_environments(n_envs: int) -> None:
    env = lambda: VecNormalize(vec_env("vector", "box", n_envs))  # noqa: E731
    assert_same_training(PPO, SPPO, "MlpPolicy", env, **SMALL, **SMALL_NET)


def test_softmax_differs() -> None:
    """The flag does something: from the same seed sPPO's weights leave PPO's."""
    kwargs = {**SMALL, **SMALL_NET, "learning_rate": 1e-2}
    ppo = SPPO("MlpPolicy", vec_env("vector", "box"), use_softmax=False, **kwargs).learn(64)
    sppo = SPPO("MlpPolicy", vec_env("vector", "box"), use_softmax=True, **kwargs).learn(64)
    assert not th.equal(ppo.policy.action_net.weight, sppo.policy.action_net.weight)


def test_the_promise_holds_by_default_and_speed_is_one_word_away() -> None:
    """PPO keeps the reference loop unless ``engine="fast"``; the softmax family is fast by default."""
    env = vec_env("vector", "box")
    assert SPPO("MlpPolicy", env, use_softmax=False, **SMALL)._fast_engine(None) is None
    assert SPPO("MlpPolicy", env, use_softmax=False, engine="fast", **SMALL)._fast_engine(None) is not None
    assert SPPO("MlpPolicy", env, **SMALL)._fast_engine(None) is not None
