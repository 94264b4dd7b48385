"""Divergences between action distributions: in closed form per state, and estimated from one sample of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stable_baselines3.common.distributions import Distribution as ActionDistribution
    from torch import Tensor
    from torch.distributions import Distribution


def kl_divergence(p: ActionDistribution, q: ActionDistribution) -> Tensor:
    r"""KL(p || q) in each state of a batch, exact and never negative.

    For Gaussian actions (also with state-dependent exploration, and squashed ones, whose divergence is that
    of the Gaussians behind them), categorical, multi-categorical, Bernoulli and masked ones. Logits, not
    probabilities, are compared, so that it stays finite where a probability underflows.

    :raises ValueError: for another distribution
    """
    pairs = zip(_parts(p), _parts(q), strict=True)
    # What rounding puts below zero is zero.
    return sum(_kl(one, other) for one, other in pairs).clamp(min=0)  # type: ignore[union-attr]


def _parts(distribution: ActionDistribution) -> list[Distribution]:
    """The independent PyTorch distributions that an action distribution is made of."""
    own = getattr(distribution, "distributions", None) or getattr(distribution, "distribution", None)
    return own if isinstance(own, list) else [own]  # type: ignore[list-item]


def _kl(p: Distribution, q: Distribution) -> Tensor:
    from torch.distributions import Bernoulli, Categorical, Normal
    from torch.nn.functional import softplus

    if isinstance(p, Normal) and isinstance(q, Normal):
        narrowing = p.scale.log() - q.scale.log()
        shift = (p.loc - q.loc) / q.scale
        return (0.5 * ((2 * narrowing).expm1() - 2 * narrowing + shift.square())).sum(-1)
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        return (p.probs * (p.logits - q.logits)).sum(-1)
    if isinstance(p, Bernoulli) and isinstance(q, Bernoulli):
        return (p.probs * (p.logits - q.logits) + softplus(q.logits) - softplus(p.logits)).sum(-1)
    raise ValueError(
        f"no exact divergence is known between a {type(p).__name__} and a {type(q).__name__} distribution: "
        'write divergence="sampled", and no kl_budget'
    )


def forward_kl(log_ratio: Tensor) -> Tensor:
    r"""Single-sample estimate of :math:`\mathrm{KL}(\pi_t \| \pi)`: :math:`-r`, as in the printed sMDPO.

    Unbiased under samples of the old policy; single samples may be negative.
    """
    return -log_ratio


def reverse_kl(log_ratio: Tensor) -> Tensor:
    r"""Single-sample estimate of :math:`\mathrm{KL}(\pi \| \pi_t)`: :math:`e^r r - (e^r - 1)`.

    The importance-weighted :math:`e^r r` is unbiased under samples of the old policy;
    :math:`e^r - 1`, which has mean zero, is its control variate. It makes every sample's term
    non-negative and its gradient zero at :math:`\pi = \pi_t`.
    """
    return log_ratio.exp() * log_ratio - log_ratio.expm1()
