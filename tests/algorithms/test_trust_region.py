"""The trust region of an update, the critic's own training, and a steered eta."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from sppo import RecurrentSPPO
from sppo.algorithms.trust_region import ETA_LIMITS, TrustRegion
from tests.engine.engine_models import Chain, filled, make_model

ENGINES = ("reference", "fast")
BUDGET = 0.02


def distributions(model: Any) -> list[th.distributions.Distribution]:
    """Of the policy as it is, in the states of the rollout, as PyTorch's own objects."""
    observations = th.as_tensor(model.rollout_buffer.observations.reshape(-1, 5))
    masks = getattr(model.rollout_buffer, "action_masks", None)
    with th.no_grad():
        if masks is None:
            found = model.policy.get_distribution(observations)
        else:
            found = model.policy.get_distribution(observations, masks.reshape(len(observations), -1))
    own = getattr(found, "distributions", None) or found.distribution
    return copy.deepcopy(own if isinstance(own, list) else [own])


def mean_kl(old: list[th.distributions.Distribution], new: list[th.distributions.Distribution]) -> float:
    """KL(old || new) by PyTorch, which has its own formulas."""
    total = th.zeros(())
    for p, q in zip(old, new, strict=True):
        each = th.distributions.kl_divergence(p, q)
        total = total + (each.sum(-1) if each.ndim > 1 else each).mean()
    return float(total)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("action", "masked"),
    [("box", False), *itertools.product(("discrete", "multidiscrete", "multibinary"), (False, True))],
)
def test_an_update_ends_within_a_tenth_of_its_budget_without_a_clip(
    action: str, masked: bool, engine: str
) -> None:
    model = make_model(
        action=action, masked=masked, engine=engine, clip_range=None, kl_budget=BUDGET, n_epochs=20,
        learning_rate=3e-3,
    )  # fmt: skip
    filled(model)
    old = distributions(model)
    model.train()
    kl = mean_kl(old, distributions(model))
    assert 0.9 * BUDGET <= kl <= BUDGET * (1 + 1e-4)
    assert model.logger.name_to_value["train/kl"] == pytest.approx(kl, rel=1e-3)
    assert 0 < model.logger.name_to_value["train/actor_epochs"] < 20


@pytest.mark.parametrize("engine", ENGINES)
def test_a_budget_that_is_not_reached_changes_nothing_but_the_norms(engine: str) -> None:
    """With gradients too small to be clipped, a wide budget is no budget."""
    weights = []
    for budget in (None, 1e6):
        model = make_model(engine=engine, kl_budget=budget, n_epochs=3, max_grad_norm=1e6).learn(300)
        weights.append(np.concatenate([p.detach().numpy().ravel() for p in model.policy.parameters()]))
    np.testing.assert_allclose(weights[1], weights[0], rtol=0, atol=1e-6)


def steps(model: Any) -> dict[str, int]:
    """How many steps of Adam each tensor has taken."""
    state = model.policy.optimizer.state
    return {
        name: int(state[one]["step"]) if state.get(one) else 0
        for name, one in model.policy.named_parameters()
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_the_actor_rests_and_the_critic_goes_on(engine: str) -> None:
    model = make_model(
        engine=engine, clip_range=None, kl_budget=1e-3, n_epochs=20, n_critic_epochs=7, learning_rate=3e-3
    )
    filled(model).train()
    taken = steps(model)
    minibatches = model.n_steps * model.n_envs // model.batch_size
    assert {taken[name] for name in taken if "value_net" in name} == {7 * minibatches}
    (actors,) = {taken[name] for name in taken if "value_net" not in name}
    assert 0 < actors < 7 * minibatches
    assert model.logger.name_to_value["train/actor_epochs"] == pytest.approx(actors / minibatches)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("n_epochs", "n_critic_epochs"), [(3, 1), (1, 3)])
def test_passes_of_actor_and_critic(n_epochs: int, n_critic_epochs: int, engine: str) -> None:
    model = make_model(engine=engine, n_epochs=n_epochs, n_critic_epochs=n_critic_epochs)
    filled(model).train()
    minibatches = model.n_steps * model.n_envs // model.batch_size
    taken = steps(model)
    assert taken["log_std"] == n_epochs * minibatches
    assert taken["value_net.weight"] == n_critic_epochs * minibatches


@pytest.mark.parametrize("engine", ENGINES)
def test_the_critics_learning_rate_is_the_critics_alone(engine: str) -> None:
    """With a rate of its own, zero here, the critic stays and the actor moves as before."""
    weights = {}
    for rate in (None, 0.0):
        # Norms are clipped apart in both, so that only the rate differs.
        model = make_model(engine=engine, critic_learning_rate=rate, n_critic_epochs=1)
        start = copy.deepcopy(model.policy.state_dict())
        filled(model).train()
        weights[rate] = model.policy.state_dict()
        assert model.policy.optimizer.param_groups[0]["lr"] == 1e-3
    for name in start:
        if "value_net" in name:
            assert th.equal(weights[0.0][name], start[name])
            assert not th.equal(weights[None][name], start[name])
        else:
            assert th.equal(weights[0.0][name], weights[None][name])


@pytest.mark.parametrize("engine", ENGINES)
def test_norms_are_clipped_apart(engine: str) -> None:
    """A critic with huge errors does not shrink what the actor's steps are made of, Adam's first moment."""
    moments = {}
    for scale in (1.0, 1e6):
        model = make_model(engine=engine, n_critic_epochs=1, batch_size=144, max_grad_norm=1e-3)
        filled(model)
        model.rollout_buffer.returns *= scale
        model.train()
        moments[scale] = model.policy.optimizer.state[model.policy.action_net.weight]["exp_avg"].clone()
    assert th.allclose(moments[1.0], moments[1e6], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_skipped_minibatches_are_no_part_of_the_actors_passes(engine: str) -> None:
    """Also those that PyTorch's distributions refuse before there is a loss."""
    model = make_model(engine=engine, n_epochs=2, n_critic_epochs=2, normalize_advantage=False)
    filled(model).rollout_buffer.observations[7] = math.nan
    model.train()
    assert model.logger.name_to_value["train/skipped_updates"] == 2
    assert steps(model)["log_std"] == 2 * 8
    assert model.logger.name_to_value["train/actor_epochs"] == pytest.approx(2 * 8 / 9)


def test_a_look_evaluates_the_new_policy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one was evaluated once, when the update began."""
    model = filled(make_model(engine="reference", kl_budget=1e6, n_epochs=4))
    looks: list[TrustRegion] = []
    evaluations: list[Any] = []
    look, evaluate = TrustRegion.look, model._evaluate_actions

    def counted_look(region: TrustRegion) -> None:
        looks.append(region)
        look(region)

    def counted_evaluate(*args: Any) -> Any:
        evaluations.append(args)
        return evaluate(*args)

    monkeypatch.setattr(TrustRegion, "look", counted_look)
    model._evaluate_actions = counted_evaluate
    model.train()
    assert len(looks) > 1
    assert len(evaluations) == 9 * (4 + 1 + len(looks))


class Shared(BaseFeaturesExtractor):
    """A layer that actor and critic share."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 6)
        self.layer = th.nn.Linear(5, 6)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.layer(observations)


def test_shared_layers_rest_with_the_actor() -> None:
    model = make_model(
        policy_kwargs={"features_extractor_class": Shared}, kl_budget=1e-3, clip_range=None, n_epochs=15,
        learning_rate=3e-3, engine="reference",
    )  # fmt: skip
    filled(model)
    old = distributions(model)
    model.train()
    kl = mean_kl(old, distributions(model))
    assert 0.9e-3 <= kl <= 1.0001e-3, "the critic's passes moved the policy"
    taken = steps(model)
    assert taken["features_extractor.layer.weight"] == taken["action_net.weight"] < taken["value_net.weight"]


def test_shared_layers_have_one_learning_rate() -> None:
    shape: dict[str, Any] = {"features_extractor_class": Shared}
    with pytest.raises(ValueError, match="share_features_extractor=False"):
        make_model(policy_kwargs=shape, critic_learning_rate=1e-3)
    make_model(policy_kwargs={**shape, "share_features_extractor": False}, critic_learning_rate=1e-3)


def test_a_way_out_that_is_not_finite_is_taken_back_whole() -> None:
    parameter = th.nn.Parameter(th.zeros(3))
    region = TrustRegion(0.5, [parameter], lambda: float(parameter.detach().square().sum()))
    with th.no_grad():
        parameter.fill_(math.nan)
    region.look()
    assert region.reached
    assert th.equal(parameter, th.zeros(3))
    with th.no_grad():
        parameter.fill_(10.0)
    region.look()
    assert 0.475 <= float(parameter.detach().square().sum()) <= 0.5


def region_at(kl: float, reached: bool) -> TrustRegion:
    region = TrustRegion(0.02, [], lambda: 0.0)
    region.kl, region.reached = kl, reached
    return region


def test_eta_is_steered_within_bounds() -> None:
    low, high = ETA_LIMITS
    assert region_at(0.02, True).steered(1.0) == pytest.approx(1 / 1.5)
    assert region_at(0.95 * 0.0128, False).steered(1.0) == pytest.approx(1.25)
    assert region_at(0.95 * 0.02, False).steered(1.0) == pytest.approx(1.0)
    assert region_at(1e-9, False).steered(1.0) == pytest.approx(1.5)
    assert region_at(0.0, False).steered(1.0) == pytest.approx(1.5)
    assert region_at(0.0, False).steered(high) == high
    assert region_at(0.02, True).steered(low) == low


@pytest.mark.parametrize("use_softmax", [True, False])
def test_steered_eta_brings_updates_to_their_budget(use_softmax: bool) -> None:
    model = make_model(
        clip_range=None, eta="auto", kl_budget=BUDGET, n_epochs=8, learning_rate=3e-3, engine="fast",
        use_softmax=use_softmax,
    )  # fmt: skip
    found = []
    for _ in range(12):
        model.learn(144, reset_num_timesteps=False)
        logged = model.logger.name_to_value
        found.append((logged["train/kl"], logged["train/actor_epochs"], logged["train/eta"]))
    assert all(kl <= BUDGET * (1 + 1e-6) for kl, _, _ in found)
    assert np.mean([kl for kl, _, _ in found[4:]]) > 0.5 * BUDGET
    assert len({eta for _, _, eta in found}) > 6


@pytest.mark.parametrize("engine", ENGINES)
def test_with_a_budget_of_zero_nothing_moves(engine: str) -> None:
    """Where a schedule ends."""
    model = make_model(kl_budget=lambda left: 0.0, engine=engine)
    filled(model)
    old = distributions(model)
    model.train()
    assert mean_kl(old, distributions(model)) == 0.0


def recurrent(**settings: Any) -> RecurrentSPPO:
    env = make_vec_env(Chain, 2, seed=4, env_kwargs={"action": "box"})
    small = {"n_steps": 48, "batch_size": 24, "seed": 1, "learning_rate": 3e-3, "device": "cpu"}
    shape = {"lstm_hidden_size": 8, "net_arch": [8]}
    return RecurrentSPPO("MlpLstmPolicy", env, policy_kwargs=shape, **{**small, **settings})


def test_lstm_updates_keep_to_their_budget() -> None:
    model = recurrent(clip_range=None, kl_budget=BUDGET, n_epochs=20, n_critic_epochs=5)
    filled(model)
    old = copy.deepcopy(model.policy)
    model.train()
    buffer, total, count = model.rollout_buffer, 0.0, 0
    for data in buffer.get(24):
        real = data.mask > 1e-8
        with th.no_grad():
            parts = []
            for policy in (old, model.policy):
                policy.evaluate_actions(
                    data.observations, data.actions, data.lstm_states, data.episode_starts
                )
                parts.append(policy.action_dist.distribution)
            each = th.distributions.kl_divergence(*parts).sum(-1)[real]
        total, count = total + float(each.sum()), count + len(each)
    # Sequences begin at other samples in every drawing, hence from other stored states.
    assert total / count == pytest.approx(BUDGET, rel=0.2)
    assert 0.9 * BUDGET <= model.logger.name_to_value["train/kl"] <= BUDGET
    taken = steps(model)
    assert taken["lstm_critic.weight_ih_l0"] == 5 * 4
    assert 0 < taken["lstm_actor.weight_ih_l0"] < 20 * 4


@pytest.mark.parametrize(
    "settings",
    [
        {"recompute_advantages": True, "n_epochs": 3},
        {"clip_range": None, "eta": 0.3, "n_epochs": 2},
        {"clip_range": None, "eta": 0.3, "n_epochs": 2, "use_softmax": False},
        {"clip_range": None, "eta": "auto", "kl_budget": 0.01, "critic_learning_rate": 1e-3, "n_epochs": 3},
    ],
    ids=str,
)
def test_lstm_policies_train_with_all_of_it(settings: dict[str, Any]) -> None:
    model = recurrent(**settings)
    before = copy.deepcopy(model.policy.state_dict())
    model.learn(2 * 96)
    for name, weights in model.policy.state_dict().items():
        assert th.isfinite(weights).all()
        assert not th.equal(weights, before[name]), name


def test_defaults_are_upstreams_lstm() -> None:
    env = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "seed": 3, "device": "cpu"}
    a = RecurrentSPPO("MlpLstmPolicy", "CartPole-v1", use_softmax=False, **env).learn(64)
    b = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", **env).learn(64)
    for name, weights in b.policy.state_dict().items():
        assert th.equal(a.policy.state_dict()[name], weights)
