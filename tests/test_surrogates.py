"""The surrogate family: hand-computed values, closed-form gradients, and what they have in common."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch as th

from sppo.surrogates import Surrogate, forward_kl, mdpo, reverse_kl, smdpo, sppo

EPSILON, ETA = 0.5, 2.0
LOG_BOUND = math.log(1.5)

#: Every cell of the table, and the combinations of clip and divergence.
CELLS = {
    "ppo": Surrogate(use_softmax=False, epsilon=EPSILON),
    "ppo-symmetric": Surrogate(use_softmax=False, epsilon=EPSILON, clip_mode="symmetric"),
    "sppo-two-sided": Surrogate(epsilon=EPSILON),
    "sppo-one-sided": Surrogate(epsilon=EPSILON, clip_mode="one-sided"),
    "mdpo": Surrogate(use_softmax=False, eta=ETA),
    "smdpo": Surrogate(eta=ETA),
    "ppo+eta": Surrogate(use_softmax=False, epsilon=EPSILON, eta=ETA),
    "sppo+eta": Surrogate(epsilon=EPSILON, eta=ETA),
    "sppo-one-sided+eta": Surrogate(epsilon=EPSILON, eta=ETA, clip_mode="one-sided"),
}


def objective_and_gradient(
    surrogate: Callable[..., th.Tensor], log_ratio: list[float], advantage: list[float]
) -> tuple[list[float], list[float]]:
    """Per-sample objective and its derivative in the log-probability, in double precision."""
    log_prob = th.tensor(log_ratio, dtype=th.float64, requires_grad=True)
    value = surrogate(log_prob, th.zeros_like(log_prob), th.tensor(advantage, dtype=th.float64))
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
            "sppo-one-sided",
            UP,
            [3 * LOG_BOUND, 3 * math.log(1.25), 3 * math.log(0.8), 3 * math.log(0.4)],
            [0.0, 3.0, 3.0, 3.0],
        ),
        (
            "sppo-one-sided",
            DOWN,
            [-3 * math.log(2), -3 * math.log(1.25), -3 * math.log(0.8), 3 * LOG_BOUND],
            [-3.0, -3.0, -3.0, 0.0],
        ),
    ],
)
def test_clipped_surrogates_by_hand(
    cell: str, advantage: list[float], values: list[float], gradients: list[float]
) -> None:
    value, gradient = objective_and_gradient(CELLS[cell], LOG_RATIOS, advantage)
    assert value == pytest.approx(values)
    assert gradient == pytest.approx(gradients)


def test_smdpo_by_hand() -> None:
    """(A + 1/eta) r, whose derivative is A + 1/eta everywhere."""
    value, gradient = objective_and_gradient(lambda *args: smdpo(*args, ETA), LOG_RATIOS, UP)
    assert value == pytest.approx([3.5 * r for r in LOG_RATIOS])
    assert gradient == pytest.approx([3.5] * 4)


def test_mdpo_by_hand() -> None:
    """A x - (x log x - x + 1)/eta with x = exp(r); derivative in r: x (A - r/eta)."""
    value, gradient = objective_and_gradient(lambda *args: mdpo(*args, ETA), LOG_RATIOS, UP)
    assert value == pytest.approx([3 * x - (x * math.log(x) - x + 1) / ETA for x in RATIOS])
    assert gradient == pytest.approx([x * (3 - math.log(x) / ETA) for x in RATIOS])


def test_clip_and_divergence_add_up() -> None:
    value, _ = objective_and_gradient(CELLS["sppo+eta"], LOG_RATIOS, UP)
    clipped, _ = objective_and_gradient(CELLS["sppo-two-sided"], LOG_RATIOS, UP)
    assert value == pytest.approx([c + r / ETA for c, r in zip(clipped, LOG_RATIOS, strict=True)])
    value, _ = objective_and_gradient(CELLS["ppo+eta"], LOG_RATIOS, UP)
    clipped, _ = objective_and_gradient(CELLS["ppo"], LOG_RATIOS, UP)
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
    value = CELLS[cell](logits.log_softmax(-1), old.log_softmax(-1), advantage)
    (gradient,) = th.autograd.grad((probability * value).sum(), logits)
    assert th.allclose(gradient, probability * advantage, atol=1e-12)


def test_divergence_estimates_are_unbiased(categorical: tuple[th.Tensor, th.Tensor, th.Tensor]) -> None:
    """Averaged over the old policy, the estimates are the two KL divergences."""
    old, new, _ = categorical
    p, q = old.log_softmax(-1), new.log_softmax(-1)
    assert th.allclose((p.exp() * forward_kl(q, p)).sum(-1), (p.exp() * (p - q)).sum(-1))
    assert th.allclose((p.exp() * reverse_kl(q, p)).sum(-1), (q.exp() * (q - p)).sum(-1))
    assert (reverse_kl(q, p) >= 0).all()


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_against_finite_differences(cell: str) -> None:
    generator = th.Generator().manual_seed(1)
    log_prob = (0.6 * th.randn(64, generator=generator, dtype=th.float64)).requires_grad_()
    advantage = th.randn(64, generator=generator, dtype=th.float64)
    old = th.zeros_like(log_prob)
    assert th.autograd.gradcheck(lambda x: CELLS[cell](x, old, advantage), log_prob)


@pytest.mark.parametrize("cell", [name for name in CELLS if not name.startswith(("ppo", "mdpo"))])
@pytest.mark.parametrize("log_ratio", [-1e4, -200.0, 200.0, 1e4])
def test_softmax_family_is_finite_where_the_ratio_overflows(cell: str, log_ratio: float) -> None:
    log_prob = th.tensor([log_ratio], requires_grad=True)
    value = CELLS[cell](log_prob, th.zeros(1), th.tensor([2.0]))
    (gradient,) = th.autograd.grad(value.sum(), log_prob)
    assert th.isfinite(value).all()
    assert th.isfinite(gradient).all()
    # float32's exp overflows at 89: the direct representation cannot do this.
    assert log_ratio < 0 or not th.isfinite(CELLS["mdpo"](log_prob, th.zeros(1), th.tensor([2.0]))).all()


def test_outside_counts_both_sides() -> None:
    log_ratio = th.tensor([0.41, 0.40, 0.0, -0.40, -0.41, -0.70])
    above, below = Surrogate(epsilon=EPSILON).outside(log_ratio, th.zeros(6))
    assert above.tolist() == [True, False, False, False, False, False]
    assert below.tolist() == [False, False, False, False, True, True]
    above, below = Surrogate(use_softmax=False, epsilon=EPSILON).outside(log_ratio, th.zeros(6))
    assert above.tolist() == [True, False, False, False, False, False]
    assert below.tolist() == [False, False, False, False, False, True]
    symmetric = CELLS["ppo-symmetric"].outside(log_ratio, th.zeros(6))
    assert symmetric[0].tolist() == above.tolist()
    assert symmetric[1].tolist() == [False, False, False, False, True, True]


def test_two_sided_is_the_printed_formula() -> None:
    """A * log(clip(ratio, 1/(1+eps), 1+eps)), computed as printed."""
    generator = th.Generator().manual_seed(2)
    log_ratio, advantage = th.randn(2, 1000, generator=generator, dtype=th.float64)
    printed = advantage * th.log(th.clamp(log_ratio.exp(), 1 / (1 + EPSILON), 1 + EPSILON))
    assert th.allclose(sppo(log_ratio, th.zeros_like(log_ratio), advantage, EPSILON), printed)
