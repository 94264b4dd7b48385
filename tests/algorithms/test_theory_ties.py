"""The network algorithms are the tabular ones where both can be run: softmax policies of one-hot states."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sppo import SPPO, exact

STATES, ACTIONS, SAMPLES = 4, 3, 900
UNIFORM = np.full((STATES, ACTIONS), 1 / ACTIONS)


class OneHot(gym.Env):
    """Only spaces: the rollout is written down, not played."""

    observation_space = spaces.Discrete(STATES)
    action_space = spaces.Discrete(ACTIONS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        return 0, 0.0, False, False, {}


def model_of(mdp: exact.TabularMDP, **settings: Any) -> SPPO:
    """A uniform tabular policy, and a rollout that visits states and actions as often as it does."""
    evaluation = mdp.evaluate(UNIFORM)
    counts = np.rint(SAMPLES * evaluation.occupancy / ACTIONS).astype(int)
    states = np.repeat(np.arange(STATES), counts * ACTIONS)
    actions = np.concatenate([np.tile(np.arange(ACTIONS), count) for count in counts])
    model = SPPO(
        "MlpPolicy", OneHot(), n_steps=len(states), batch_size=len(states), policy_kwargs={"net_arch": []},
        normalize_advantage=False, max_grad_norm=1e6, seed=0, device="cpu", **settings,
    )  # fmt: skip
    with th.no_grad():
        model.policy.action_net.weight.zero_()
        model.policy.action_net.bias.zero_()
    model._setup_learn(len(states))
    buffer = model.rollout_buffer
    buffer.reset()
    buffer.observations[:, 0, 0] = states
    buffer.actions[:, 0, 0] = actions
    buffer.log_probs[:, 0] = np.log(1 / ACTIONS)
    buffer.advantages[:, 0] = evaluation.advantage[states, actions]
    buffer.full = True
    return model


def policy_of(model: SPPO) -> np.ndarray:
    with th.no_grad():
        return model.policy.get_distribution(th.arange(STATES)).distribution.probs.double().numpy()  # type: ignore[attr-defined]


def divergence(mdp: exact.TabularMDP, policy: np.ndarray) -> float:
    occupancy = mdp.evaluate(UNIFORM).occupancy
    return float((occupancy[:, None] * UNIFORM * np.log(UNIFORM / policy)).sum())


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_smdpo_reaches_the_closed_form(engine: str) -> None:
    """With an exact divergence and many passes: p_t (1 + eta A)."""
    mdp, eta = exact.random_mdp(STATES, ACTIONS, seed=0), 0.5
    model = model_of(
        mdp, clip_range=None, eta=eta, n_epochs=400, n_critic_epochs=1, learning_rate=0.05, engine=engine
    )
    model.train()
    expected = exact.solve(mdp, "smdpo", "closed_form", iterations=1, eta=eta).policy
    assert np.abs(expected - UNIFORM).max() > 0.05
    np.testing.assert_allclose(policy_of(model), expected, atol=2e-3)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_mdpo_reaches_the_closed_form(engine: str) -> None:
    """p_t exp(eta A), normalised."""
    mdp, eta = exact.random_mdp(STATES, ACTIONS, seed=1), 0.5
    model = model_of(
        mdp, clip_range=None, eta=eta, use_softmax=False, n_epochs=400, n_critic_epochs=1, learning_rate=0.05,
        engine=engine,
    )  # fmt: skip
    model.train()
    expected = exact.solve(mdp, "mdpo", "closed_form", iterations=1, eta=eta).policy
    assert np.abs(expected - UNIFORM).max() > 0.05
    np.testing.assert_allclose(policy_of(model), expected, atol=2e-3)


@pytest.mark.parametrize("engine", ["fast", pytest.param("reference", marks=pytest.mark.slow)])
def test_the_steered_smdpo_is_the_constrained_one(engine: str) -> None:
    """Once eta has been found, the update is the exact trust-region step's, to a tenth of its length.

    The exact solver follows the natural gradient to the border, the network maximises within it: both are the
    first-order step for small regions, and differ in the second order.
    """
    mdp, delta = exact.random_mdp(STATES, ACTIONS, seed=0), 2e-3
    model = model_of(
        mdp, clip_range=None, eta="auto", kl_budget=delta, n_epochs=300, n_critic_epochs=1, engine=engine,
        learning_rate=2e-3,
    )  # fmt: skip
    weights = copy.deepcopy(model.policy.state_dict())
    optimizer = copy.deepcopy(model.policy.optimizer.state_dict())
    for _ in range(10):
        model.policy.load_state_dict(weights)
        model.policy.optimizer.load_state_dict(optimizer)
        model.train()
    found = policy_of(model)
    expected = exact.solve(mdp, "smdpo", "constrained", iterations=1, inner_steps=1, delta=delta).policy
    assert 0.9 * delta <= divergence(mdp, found) <= 1.01 * delta
    assert divergence(mdp, expected) == pytest.approx(delta, rel=0.2)
    length = np.abs(expected - UNIFORM).max()
    assert length > 0.02
    assert np.abs(found - expected).max() < 0.1 * length
    # The objective, too, is what the constraint allows.
    objective = mdp.evaluate(UNIFORM).occupancy[:, None] * UNIFORM * mdp.evaluate(UNIFORM).advantage
    assert (objective * np.log(found)).sum() > 0.95 * (objective * np.log(expected)).sum()
