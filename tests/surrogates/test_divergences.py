"""Exact divergences: the numbers that brute force gives, never negative, flat at the old policy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch as th
from sb3_contrib.common.maskable.distributions import (
    MaskableCategoricalDistribution,
    MaskableMultiCategoricalDistribution,
)
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
)

from sppo.surrogates import MDPO, PPO, SMDPO, SPPO, Sample, Surrogate, kl_divergence

STATES = 5
MASK = th.tensor([[1, 0, 1, 1], [1, 1, 1, 1], [0, 0, 1, 0], [1, 1, 0, 0], [0, 1, 1, 1]], dtype=th.bool)


def gaussian(numbers: th.Tensor) -> Distribution:
    return DiagGaussianDistribution(2).proba_distribution(numbers[:, :2], 0.5 * numbers[:, 2:])


def categorical(numbers: th.Tensor) -> Distribution:
    return CategoricalDistribution(4).proba_distribution(numbers)


def multi_categorical(numbers: th.Tensor) -> Distribution:
    return MultiCategoricalDistribution([2, 2]).proba_distribution(numbers)


def bernoulli(numbers: th.Tensor) -> Distribution:
    return BernoulliDistribution(4).proba_distribution(numbers)


def masked(numbers: th.Tensor) -> Distribution:
    distribution = MaskableCategoricalDistribution(4).proba_distribution(numbers)
    distribution.apply_masking(MASK.numpy())
    return distribution


def masked_multi(numbers: th.Tensor) -> Distribution:
    distribution = MaskableMultiCategoricalDistribution([2, 2]).proba_distribution(numbers)
    distribution.apply_masking(th.tensor([[1, 0, 1, 1]] * STATES, dtype=th.bool).numpy())
    return distribution


Maker = Callable[[th.Tensor], Distribution]
MAKERS: dict[str, Maker] = {
    one.__name__: one for one in (gaussian, categorical, multi_categorical, bernoulli, masked, masked_multi)
}
#: every action of the discrete spaces
ACTIONS: dict[str, list[Any]] = {
    "categorical": list(range(4)),
    "masked": list(range(4)),
    "multi_categorical": list(itertools.product(range(2), repeat=2)),
    "masked_multi": list(itertools.product(range(2), repeat=2)),
    "bernoulli": list(itertools.product(range(2), repeat=4)),
}


def numbers(seed: int) -> th.Tensor:
    return th.randn(STATES, 4, generator=th.Generator().manual_seed(seed), dtype=th.float64)


def brute_force(name: str, p: Distribution, q: Distribution) -> th.Tensor:
    """The sum over all actions, or the integral over a fine grid of them."""
    if name != "gaussian":
        actions = th.tensor(ACTIONS[name], dtype=th.float64)
        total = th.zeros(STATES, dtype=th.float64)
        for action in actions:
            log_p = p.log_prob(action.expand(STATES, *action.shape))
            log_q = q.log_prob(action.expand(STATES, *action.shape))
            total += th.where(log_p > -1e7, log_p.exp() * (log_p - log_q), th.zeros_like(log_p))
        return total
    axis = th.linspace(-25, 25, 501, dtype=th.float64)
    grid = th.cartesian_prod(axis, axis)
    cell = float(axis[1] - axis[0]) ** 2
    totals = []
    for state in range(STATES):
        log_p, log_q = (
            th.distributions.Normal(d.distribution.loc[state], d.distribution.scale[state])  # type: ignore[attr-defined]
            .log_prob(grid)
            .sum(-1)
            for d in (p, q)
        )
        totals.append((log_p.exp() * (log_p - log_q)).sum() * cell)
    return th.stack(totals)


@pytest.mark.parametrize("name", MAKERS)
def test_against_brute_force(name: str) -> None:
    p, q = MAKERS[name](numbers(0)), MAKERS[name](numbers(1))
    for one, other in ((p, q), (q, p)):
        expected = brute_force(name, one, other)
        assert expected.max() > 0.01
        assert th.allclose(kl_divergence(one, other), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("scale", [0.0, 1e-7, 1e-4, 1.0, 30.0])
@pytest.mark.parametrize("name", MAKERS)
def test_never_negative_and_finite(name: str, scale: float) -> None:
    """In float32, for policies that hardly differ and for some whose probabilities underflow."""
    first = numbers(0).float()
    # Logits apart by hundreds; standard deviations by less, whose squares would overflow.
    second = first + scale * numbers(1).float().clamp(-2, 2)
    for one, other in ((first, second), (second, first)):
        found = kl_divergence(MAKERS[name](one), MAKERS[name](other))
        assert (found >= 0).all()
        assert th.isfinite(found).all() or (name == "gaussian" and scale == 30)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("surrogate", [SMDPO(eta=0.5), MDPO(eta=0.5)], ids=["smdpo", "mdpo"])
def test_no_pull_at_the_old_policy_in_any_sample(name: str, surrogate: Surrogate) -> None:
    """Where the advantage is zero, nothing moves; the sampled estimate of sMDPO pushes every sample."""
    old, new = numbers(0), numbers(0).requires_grad_()
    zero = th.zeros(STATES, dtype=th.float64)
    sample = Sample(zero.clone(), zero, zero, MAKERS[name](new), MAKERS[name](old))
    value = surrogate.objective(sample)
    assert th.allclose(value, zero)
    (gradient,) = th.autograd.grad(value.sum(), new)
    assert gradient.abs().max() < 1e-12


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("surrogate", [SMDPO(eta=0.5), MDPO(eta=2.0), SPPO(eta=1.0), PPO(eta=1.0)], ids=str)
def test_gradients_against_finite_differences(name: str, surrogate: Surrogate) -> None:
    old = MAKERS[name](numbers(0))
    actions = old.mode().detach()
    advantage = numbers(2)[:, 0]

    def objective(new: th.Tensor) -> th.Tensor:
        distribution = MAKERS[name](new)
        log_prob = distribution.log_prob(actions)
        return surrogate.objective(Sample(log_prob, old.log_prob(actions), advantage, distribution, old))

    assert th.autograd.gradcheck(objective, numbers(1).mul(0.3).requires_grad_(), atol=1e-6)


@pytest.mark.parametrize(("eta", "bounded"), [(0.2, True), (0.4, True), (0.6, False), (10.0, False)])
def test_smdpo_has_a_maximum_where_eta_times_the_advantage_is_above_minus_one(
    eta: float, bounded: bool
) -> None:
    """One state, two actions equally likely, with advantages -2 and 2: the line is at eta = 0.5."""
    old = CategoricalDistribution(2).proba_distribution(th.zeros(2, 2))
    advantage, taken = th.tensor([-2.0, 2.0]), th.tensor([0, 1])
    objectives = []
    for push in (10.0, 100.0, 1000.0):
        new = CategoricalDistribution(2).proba_distribution(th.tensor([[-push, 0.0]] * 2))
        sample = Sample(new.log_prob(taken), old.log_prob(taken), advantage, new, old)
        objectives.append(SMDPO(eta=eta).objective(sample).mean().item())
    assert objectives == sorted(objectives, reverse=bounded)


def test_an_unknown_distribution_is_refused() -> None:
    odd = DiagGaussianDistribution(1)
    odd.distribution = th.distributions.Laplace(th.zeros(1), th.ones(1))  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r'Laplace.*divergence="sampled"'):
        kl_divergence(odd, odd)


def test_without_distributions_it_says_what_to_write() -> None:
    with pytest.raises(ValueError, match='divergence="sampled"'):
        SMDPO(eta=1.0).objective(Sample(th.zeros(1), th.zeros(1), th.zeros(1)))
