"""Advantages estimated anew from the current critic."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from sppo import SPPO, MaskableSPPO, RecurrentSPPO
from sppo.algorithms.fresh_advantages import FreshAdvantages
from tests.engine.engine_models import Chain, filled, make_model


def own_gae(model: Any, rewards: np.ndarray, values: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Generalised advantage estimation by its definition: a sum per step, in double precision."""
    buffer = model.rollout_buffer
    n_steps, n_envs = rewards.shape
    starts = np.vstack([buffer.episode_starts.reshape(n_steps, n_envs), model._last_episode_starts])
    values = np.vstack([values, last])
    deltas = rewards + model.gamma * values[1:] * (1 - starts[1:]) - values[:-1]
    advantages = np.zeros_like(rewards)
    for env in range(n_envs):
        for start in range(n_steps):
            weight = 1.0
            for step in range(start, n_steps):
                advantages[start, env] += weight * deltas[step, env]
                weight *= model.gamma * model.gae_lambda * (1 - starts[step + 1, env])
    return advantages


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_fresh_advantages_are_those_of_the_new_critic(engine: str) -> None:
    """Also where a time limit ended an episode: the value of what was seen last is the new critic's."""
    model = make_model(engine=engine, recompute_advantages=True, gamma=0.9)
    bare: list[tuple[np.ndarray, list[dict[str, Any]]]] = []
    step_wait = model.env.step_wait

    def watched() -> Any:
        observations, rewards, dones, infos = step_wait()
        bare.append((rewards.copy(), copy.deepcopy(infos)))
        return observations, rewards, dones, infos

    model.env.step_wait = watched
    filled(model)
    fresh = FreshAdvantages(model)
    with th.no_grad():
        for parameter in model.policy.value_net.parameters():
            parameter += 1.0
    fresh()

    def value(seen: np.ndarray) -> np.ndarray:
        with th.no_grad():
            return model.policy.predict_values(th.as_tensor(seen).float()).numpy().ravel()

    rewards = np.array([step[0] for step in bare], np.float64)
    timeouts = 0
    for step, (_, infos) in enumerate(bare):
        for env, info in enumerate(infos):
            if info.get("TimeLimit.truncated"):
                timeouts += 1
                rewards[step, env] += 0.9 * float(value(info["terminal_observation"][None])[0])
    assert timeouts > 3
    values = value(model.rollout_buffer.observations).reshape(3, 48).T.astype(np.float64)
    expected = own_gae(model, rewards, values, value(model._last_obs))
    for name, array in (("advantages", expected), ("returns", expected + values)):
        found = getattr(model.rollout_buffer, name).reshape(3, 48).T
        np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("algorithm", [SPPO, MaskableSPPO, RecurrentSPPO])
def test_with_an_unchanged_critic_fresh_advantages_are_the_old_ones(algorithm: type[SPPO]) -> None:
    policy = "MlpLstmPolicy" if algorithm is RecurrentSPPO else "MlpPolicy"
    env = make_vec_env(Chain, 3, seed=4, env_kwargs={"action": "discrete"})
    model = algorithm(
        policy, env, n_steps=48, batch_size=16, seed=1, recompute_advantages=True, engine="reference"
    )
    filled(model)
    fresh = FreshAdvantages(model)
    before = {
        name: getattr(model.rollout_buffer, name).copy() for name in ("advantages", "returns", "rewards")
    }
    assert model._timeouts
    fresh()
    for name, array in before.items():
        np.testing.assert_allclose(getattr(model.rollout_buffer, name), array, rtol=1e-4, atol=1e-5)
