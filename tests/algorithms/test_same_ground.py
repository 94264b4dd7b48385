"""The ground that Stable-Baselines3's and sb3-contrib's own tests cover, walked with our classes.

Each scenario is a function of a class. Upstream's class and ours with ``use_softmax=False`` must come out
equal, number by number; ours as it is by default must get through and give the same kind of result.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.envs import IdentityEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from sppo import SPPO, MaskableSPPO, RecurrentSPPO
from tests.algorithms.environments import SpaceEnv
from tests.algorithms.small import NET, SMALL
from tests.algorithms.upstreams_ground import (
    SCENARIOS,
    Scenario,
    assert_same,
    env,
    masked,
    recurrent,
    weights,
)


class DirectSPPO(SPPO):
    def __init__(self, *args: Any, use_softmax: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, use_softmax=use_softmax, **kwargs)


class DirectMaskableSPPO(MaskableSPPO):
    def __init__(self, *args: Any, use_softmax: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, use_softmax=use_softmax, **kwargs)


class DirectRecurrentSPPO(RecurrentSPPO):
    def __init__(self, *args: Any, use_softmax: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, use_softmax=use_softmax, **kwargs)


CASES = [
    *[(name, scenario, PPO, DirectSPPO, SPPO) for name, scenario in SCENARIOS.items()],
    *[
        (f"{action} masks", masked(action), MaskablePPO, DirectMaskableSPPO, MaskableSPPO)
        for action in ("discrete", "multidiscrete", "multibinary")
    ],
    *[
        (f"memory {policy}", recurrent(**policy), RecurrentPPO, DirectRecurrentSPPO, RecurrentSPPO)
        for policy in (
            {},
            {"n_lstm_layers": 2},
            {"shared_lstm": True, "enable_critic_lstm": False},
            {"enable_critic_lstm": False},
        )
    ],
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
@pytest.mark.filterwarnings("ignore:You are trying to run", "ignore:The maximum observation value")
def test_upstreams_ground(case: tuple[str, Scenario, Any, Any, Any], tmp_path: Path) -> None:
    _, scenario, upstream, direct, ours = case
    outcomes = []
    for cls in (upstream, direct, ours):
        directory = tmp_path / cls.__name__
        directory.mkdir()
        outcomes.append(scenario(cls, directory))
    assert_same(outcomes[0], outcomes[1])
    assert_same(outcomes[0], outcomes[2], numbers=False)


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_seeds_decide(engine: Any) -> None:
    """Two trainings from one seed are equal; from another seed they are not."""
    first, again, other = (
        weights(SPPO("MlpPolicy", env(), **{**SMALL, **NET, "seed": seed}, engine=engine).learn(128))
        for seed in (3, 3, 4)
    )
    assert_same(first, again)
    assert any((first[name] != other[name]).any() for name in first)


def test_the_identity_is_learned() -> None:
    """Upstream's own yardstick: the action that the observation names."""
    made = DummyVecEnv([lambda: IdentityEnv(4)])
    model = SPPO("MlpPolicy", made, gamma=0.4, learning_rate=2e-3, n_steps=256, n_epochs=4, seed=3)
    mean, _ = evaluate_policy(model.learn(1500), made, n_eval_episodes=20, warn=False)
    assert float(np.mean(mean)) >= 90


def test_a_single_environment_is_wrapped_and_checked() -> None:
    single = SpaceEnv(action="discrete")
    check_env(single, warn=False)
    model = SPPO("MlpPolicy", single, **SMALL, **NET).learn(32)
    assert model.get_env().num_envs == 1
    assert math.isfinite(evaluate_policy(model, model.get_env(), n_eval_episodes=2)[0])
