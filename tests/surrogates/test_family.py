"""The surrogate family: hand-computed values, closed-form gradients, and what they have in common."""

from __future__ import annotations

import math

import pytest
import torch as th

from sppo.surrogates import MDPO, PPO, SMDPO, SPPO, Sample, Surrogate, forward_kl, reverse_kl

EPSILON, ETA = 0.5, 2.0
LOG_BOUND = math.log(1.5)

#: Every cell of the table, and the combinations of clip and divergence.
CELLS: dict[str, Surrogate] = {
    "ppo": PPO(clip_range=EPSILON),
    "ppo-symmetric": PPO(clip_range=EPSILON, clip_mode="symmetric"),
    "sppo-two-sided": SPPO(clip_range=EPSILON, clip_mode="two-sided"),
    "sppo": SPPO(clip_range=EPSILON),
    "mdpo": MDPO(eta=ETA, divergence="sampled"),
    "smdpo": SMDPO(eta=ETA, divergence="sampled"),
    "ppo+eta": PPO(clip_range=EPSILON, eta=ETA, divergence="sampled"),
    "sppo-two-sided+eta": SPPO(clip_range=EPSILON, eta=ETA, divergence="sampled", clip_mode="two-sided"),
    "sppo+eta": SPPO(clip_range=EPSILON, eta=ETA, divergence="sampled"),
}


def sample(log_prob: th.Tensor, advantage: th.Tensor, old: th.Tensor | None = None) -> Sample:
    return Sample(log_prob, th.zeros_like(log_prob) if old is None else old, advantage)


def objective_and_gradient(
    cell: str, log_ratio: list[float], advantage: list[float]
) -> tuple[list[float], list[float]]:
    """Per-sample objective and its derivative in the log-probability, in double precision."""
    log_prob = th.tensor(log_ratio, dtype=th.float64, requires_grad=True)
    value = CELLS[cell].objective(sample(log_prob, th.tensor(advantage, dtype=th.float64)))
    (gradient,) = th.autograd.grad(value.sum(), log_prob)
    return value.tolist(), gradient.tolist()


# Outside above, inside twice, outside below: for PPO's [0.5, 1.5] and for sPPO's [2/3, 3/2].
RATIOS = [2.0, 1.25, 0.8, 0.4]
LOG_RATIOS = [math.log(ratio) for ratio in RATIOS]
UP, DOWN = [3.0] * 4, [-3.0] * 4


@pytest.mark.parametrize(
    ("cell", "advantage", "values", "gradients"),
    [
        # PPO cuts a ratio only where the objective would grow.
        ("ppo", UP, [4.5, 3.75, 2.4, 1.2], [0.0, 3.75, 2.4, 1.2]),
        ("ppo", DOWN, [-6.0, -3.75, -2.4, -1.5], [-6.0, -3.75, -2.4, 0.0]),
        # With symmetric bounds the lowest ratio is 2/3 instead of 1/2.
        ("ppo-symmetric", UP, [4.5, 3.75, 2.4, 1.2], [0.0, 3.75, 2.4, 1.2]),
        ("ppo-symmetric", DOWN, [-6.0, -3.75, -2.4, -2.0], [-6.0, -3.75, -2.4, 0.0]),
        # Two-sided sPPO: nothing moves a sample that is outside.
        (
            "sppo-two-sided",
            UP,
            [3 * LOG_BOUND, 3 * math.log(1.25), 3 * math.log(0.8), -3 * LOG_BOUND],
            [0.0, 3.0, 3.0, 0.0],
        ),
        (
            "sppo-two-sided",
            DOWN,
            [-3 * LOG_BOUND, -3 * math.log(1.25), -3 * math.log(0.8), 3 * LOG_BOUND],
            [0.0, -3.0, -3.0, 0.0],
        ),
        # One-sided sPPO: a sample outside is cut only where it would move further out.
        (
            "sppo",
            UP,
            [3 * LOG_BOUND, 3 * math.log(1.25), 3 * math.log(0.8), 3 * math.log(0.4)],
            [0.0, 3.0, 3.0, 3.0],
        ),
        (
            "sppo",
            DOWN,
            [-3 * math.log(2), -3 * math.log(1.25), -3 * math.log(0.8), 3 * LOG_BOUND],
            [-3.0, -3.0, -3.0, 0.0],
        ),
    ],
)
def test_clipped_surrogates_by_hand(
    cell: str, advantage: list[float], values: list[float], gradients: list[float]
) -> None:
    value, gradient = objective_and_gradient(cell, LOG_RATIOS, advantage)
    assert value == pytest.approx(values)
    assert gradient == pytest.approx(gradients)


def test_smdpo_by_hand() -> None:
    """(A + 1/eta) r, whose derivative is A + 1/eta everywhere."""
    value, gradient = objective_and_gradient("smdpo", LOG_RATIOS, UP)
    assert value == pytest.approx([3.5 * r for r in LOG_RATIOS])
    assert gradient == pytest.approx([3.5] * 4)


def test_mdpo_by_hand() -> None:
    """A x - (x log x - x + 1)/eta with x = exp(r); derivative in r: x (A - r/eta)."""
    value, gradient = objective_and_gradient("mdpo", LOG_RATIOS, UP)
    assert value == pytest.approx([3 * x - (x * math.log(x) - x + 1) / ETA for x in RATIOS])
    assert gradient == pytest.approx([x * (3 - math.log(x) / ETA) for x in RATIOS])


def test_clip_and_divergence_add_up() -> None:
    value, _ = objective_and_gradient("sppo-two-sided+eta", LOG_RATIOS, UP)
    clipped, _ = objective_and_gradient("sppo-two-sided", LOG_RATIOS, UP)
    assert value == pytest.approx([c + r / ETA for c, r in zip(clipped, LOG_RATIOS, strict=True)])
    value, _ = objective_and_gradient("ppo+eta", LOG_RATIOS, UP)
    clipped, _ = objective_and_gradient("ppo", LOG_RATIOS, UP)
    expected = [c - (x * math.log(x) - x + 1) / ETA for c, x in zip(clipped, RATIOS, strict=True)]
    assert value == pytest.approx(expected)


@pytest.fixture
def categorical() -> tuple[th.Tensor, th.Tensor, th.Tensor]:
    """Old and new logits of a categorical policy in 7 states with 5 actions, and its advantages."""
    generator = th.Generator().manual_seed(0)
    old, new = th.randn(2, 7, 5, generator=generator, dtype=th.float64)
    quality = th.randn(7, 5, generator=generator, dtype=th.float64)
    advantage = quality - (old.softmax(-1) * quality).sum(-1, keepdim=True)
    return old, new, advantage


@pytest.mark.parametrize("cell", CELLS)
def test_one_gradient_at_the_old_policy(
    cell: str, categorical: tuple[th.Tensor, th.Tensor, th.Tensor]
) -> None:
    """At the old policy the expected gradient is the policy gradient p_t A, for the whole family."""
    old, _, advantage = categorical
    logits = old.clone().requires_grad_()
    probability = old.softmax(-1)
    value = CELLS[cell].objective(sample(logits.log_softmax(-1), advantage, old.log_softmax(-1)))
    (gradient,) = th.autograd.grad((probability * value).sum(), logits)
    assert th.allclose(gradient, probability * advantage, atol=1e-12)


def test_divergence_estimates_are_unbiased(categorical: tuple[th.Tensor, th.Tensor, th.Tensor]) -> None:
    """Averaged over the old policy, the estimates are the two KL divergences."""
    old, new, _ = categorical
    p, q = old.log_softmax(-1), new.log_softmax(-1)
    assert th.allclose((p.exp() * forward_kl(q - p)).sum(-1), (p.exp() * (p - q)).sum(-1))
    assert th.allclose((p.exp() * reverse_kl(q - p)).sum(-1), (q.exp() * (q - p)).sum(-1))
    assert (reverse_kl(q - p) >= 0).all()


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_against_finite_differences(cell: str) -> None:
    generator = th.Generator().manual_seed(1)
    log_prob = (0.6 * th.randn(64, generator=generator, dtype=th.float64)).requires_grad_()
    advantage = th.randn(64, generator=generator, dtype=th.float64)
    assert th.autograd.gradcheck(lambda x: CELLS[cell].objective(sample(x, advantage)), log_prob)


@pytest.mark.parametrize("cell", [name for name in CELLS if not name.startswith(("ppo", "mdpo"))])
@pytest.mark.parametrize("log_ratio", [-1e4, -200.0, 200.0, 1e4])
def test_softmax_family_is_finite_where_the_ratio_overflows(cell: str, log_ratio: float) -> None:
    log_prob = th.tensor([log_ratio], requires_grad=True)
    value = CELLS[cell].objective(sample(log_prob, th.tensor([2.0])))
    (gradient,) = th.autograd.grad(value.sum(), log_prob)
    assert th.isfinite(value).all()
    assert th.isfinite(gradient).all()
    # float32's exp overflows at 89: the direct representation cannot do this.
    direct = CELLS["mdpo"].objective(sample(log_prob, th.tensor([2.0])))
    assert log_ratio < 0 or not th.isfinite(direct).all()


def test_outside_counts_both_sides() -> None:
    log_ratio = th.tensor([0.41, 0.40, 0.0, -0.40, -0.41, -0.70])
    seen = sample(log_ratio, th.zeros(6))
    above, below = CELLS["sppo"].outside(seen)
    assert above.tolist() == [True, False, False, False, False, False]
    assert below.tolist() == [False, False, False, False, True, True]
    above, below = CELLS["ppo"].outside(seen)
    assert above.tolist() == [True, False, False, False, False, False]
    assert below.tolist() == [False, False, False, False, False, True]
    symmetric = CELLS["ppo-symmetric"].outside(seen)
    assert symmetric[0].tolist() == above.tolist()
    assert symmetric[1].tolist() == [False, False, False, False, True, True]
    assert not any(side.any() for side in CELLS["smdpo"].outside(seen))


def test_two_sided_is_the_printed_formula() -> None:
    """A * log(clip(ratio, 1/(1+eps), 1+eps)), computed as printed."""
    generator = th.Generator().manual_seed(2)
    log_ratio, advantage = th.randn(2, 1000, generator=generator, dtype=th.float64)
    printed = advantage * th.log(th.clamp(log_ratio.exp(), 1 / (1 + EPSILON), 1 + EPSILON))
    assert th.allclose(CELLS["sppo-two-sided"].objective(sample(log_ratio, advantage)), printed)
