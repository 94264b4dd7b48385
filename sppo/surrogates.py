r"""What is maximised: the surrogate family of functional mirror ascent, as pure functions.

A surrogate is *what is linearised* (the functional representation of the policy) plus *what keeps it
close* (the proximity). With :math:`r = \log \pi(a|s) - \log \pi_t(a|s)` the log-ratio of the new to
the old policy, :math:`A` the advantage under the old policy and samples drawn from the old policy:

=====================  ==================================  ====================================
representation         clip :math:`\epsilon`               divergence :math:`1/\eta`
=====================  ==================================  ====================================
direct, ``A * exp(r)``  PPO                                 MDPO, ``KL(pi || pi_t) / eta``
softmax, ``A * r``      **sPPO**                            **sMDPO**, ``KL(pi_t || pi) / eta``
=====================  ==================================  ====================================

Every function here takes tensors of one shape, one element per sample, and returns the objective **per
sample**; the surrogate is its mean over the batch, and it is *maximised*. All of them share one
gradient at :math:`\pi = \pi_t`, the policy gradient (for sMDPO in expectation over the old policy,
because the printed estimate of its divergence is not zero sample by sample).

The softmax family works on log-ratios throughout and never exponentiates one, so it stays finite where
a ratio would overflow.

Reference: Vaswani et al., *A general class of surrogate functions for stable and efficient
reinforcement learning*, AISTATS 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch as th

ClipMode = Literal["two-sided", "one-sided", "symmetric"]
CLIP_MODES: tuple[str, ...] = get_args(ClipMode)


def ppo(
    log_prob: th.Tensor,
    old_log_prob: th.Tensor,
    advantage: th.Tensor,
    epsilon: float = math.inf,
    symmetric: bool = False,
) -> th.Tensor:
    r"""PPO's clipped ratio, :math:`\min(A e^r, A\,\mathrm{clip}(e^r, 1-\epsilon, 1+\epsilon))`.

    The operations and their order are those of Stable-Baselines3, so that results agree bit for bit.
    With ``symmetric`` the lower bound is :math:`1/(1+\epsilon)`, which is as far from 1 as the upper one
    in log space.

    :param log_prob: :math:`\log \pi(a|s)`, any shape
    :param old_log_prob: :math:`\log \pi_t(a|s)`, same shape
    :param advantage: :math:`A^{\pi_t}(s, a)`, same shape
    :param epsilon: the clip; infinite for the plain importance-weighted objective
    :param symmetric: bounds that are symmetric in log space
    :return: the objective per sample, same shape
    """
    ratio = th.exp(log_prob - old_log_prob)
    if math.isinf(epsilon):
        return advantage * ratio
    lowest = 1 / (1 + epsilon) if symmetric else 1 - epsilon
    return th.min(advantage * ratio, advantage * th.clamp(ratio, lowest, 1 + epsilon))


def sppo(
    log_prob: th.Tensor,
    old_log_prob: th.Tensor,
    advantage: th.Tensor,
    epsilon: float = math.inf,
    clip_mode: ClipMode = "two-sided",
) -> th.Tensor:
    r"""sPPO's clipped log-ratio, with :math:`c = \log(1+\epsilon)`.

    - ``"two-sided"`` (the formula as printed): :math:`A\,\mathrm{clip}(r, -c, c)`. A sample outside the
      interval has no gradient, whatever the sign of its advantage.
    - ``"one-sided"``: :math:`\min(A r, A\,\mathrm{clip}(r, -c, c))`. As in PPO, a sample is cut only
      where it would move further out; one that is outside on the wrong side is pulled back.

    :param log_prob: :math:`\log \pi(a|s)`, any shape
    :param old_log_prob: :math:`\log \pi_t(a|s)`, same shape
    :param advantage: :math:`A^{\pi_t}(s, a)`, same shape
    :param epsilon: the clip; infinite for the plain log-linear objective :math:`A r`
    :param clip_mode: which samples outside the interval are cut
    :return: the objective per sample, same shape
    """
    log_ratio = log_prob - old_log_prob
    if math.isinf(epsilon):
        return advantage * log_ratio
    bound = math.log1p(epsilon)
    clipped = advantage * th.clamp(log_ratio, -bound, bound)
    return clipped if clip_mode == "two-sided" else th.min(advantage * log_ratio, clipped)


def forward_kl(log_prob: th.Tensor, old_log_prob: th.Tensor) -> th.Tensor:
    r"""Single-sample estimate of :math:`\mathrm{KL}(\pi_t \| \pi)`: :math:`-r`, as in the printed sMDPO.

    Unbiased under samples of the old policy; single samples may be negative.
    """
    return old_log_prob - log_prob


def reverse_kl(log_prob: th.Tensor, old_log_prob: th.Tensor) -> th.Tensor:
    r"""Single-sample estimate of :math:`\mathrm{KL}(\pi \| \pi_t)`: :math:`e^r r - (e^r - 1)`.

    The importance-weighted :math:`e^r r` is unbiased under samples of the old policy;
    :math:`e^r - 1`, which has mean zero, is its control variate. It makes every sample's term
    non-negative and its gradient zero at :math:`\pi = \pi_t`.
    """
    log_ratio = log_prob - old_log_prob
    return th.exp(log_ratio) * log_ratio - th.expm1(log_ratio)


def mdpo(log_prob: th.Tensor, old_log_prob: th.Tensor, advantage: th.Tensor, eta: float) -> th.Tensor:
    r"""MDPO, :math:`A e^r - \mathrm{KL}(\pi \| \pi_t) / \eta`, with :func:`reverse_kl` as the estimate.

    :param eta: the step size in function space; smaller keeps closer
    :return: the objective per sample
    """
    return ppo(log_prob, old_log_prob, advantage) - reverse_kl(log_prob, old_log_prob) / eta


def smdpo(log_prob: th.Tensor, old_log_prob: th.Tensor, advantage: th.Tensor, eta: float) -> th.Tensor:
    r"""sMDPO, :math:`(A + 1/\eta)\, r`, which is :math:`A r - \mathrm{KL}(\pi_t \| \pi) / \eta`.

    :param eta: the step size in function space; smaller keeps closer
    :return: the objective per sample
    """
    return (advantage + 1 / eta) * (log_prob - old_log_prob)


@dataclass(frozen=True)
class Surrogate:
    """One cell of the family's table, with its numbers: representation, clip and divergence.

    :param use_softmax: the softmax representation (log-ratios) rather than the direct one (ratios)
    :param epsilon: the clip; infinite switches it off
    :param eta: the divergence's step size; ``None`` switches it off. With a clip and an ``eta`` the
        linear part is clipped and the divergence is subtracted.
    :param clip_mode: which samples the softmax representation's clip cuts, see :func:`sppo`; the direct
        representation is always cut one-sidedly, as PPO is, and ``"symmetric"`` gives it the softmax
        representation's interval, see :func:`ppo`
    """

    use_softmax: bool = True
    epsilon: float = math.inf
    eta: float | None = None
    clip_mode: ClipMode = "two-sided"

    def __call__(self, log_prob: th.Tensor, old_log_prob: th.Tensor, advantage: th.Tensor) -> th.Tensor:
        """The objective per sample; its mean is maximised."""
        if self.use_softmax:
            if self.eta is not None and math.isinf(self.epsilon):
                return smdpo(log_prob, old_log_prob, advantage, self.eta)
            objective = sppo(log_prob, old_log_prob, advantage, self.epsilon, self.clip_mode)
        else:
            symmetric = self.clip_mode == "symmetric"
            objective = ppo(log_prob, old_log_prob, advantage, self.epsilon, symmetric)
        if self.eta is None:
            return objective
        return objective - self.divergence(log_prob, old_log_prob) / self.eta

    def divergence(self, log_prob: th.Tensor, old_log_prob: th.Tensor) -> th.Tensor:
        """The representation's own divergence from the old policy, estimated per sample."""
        estimate = forward_kl if self.use_softmax else reverse_kl
        return estimate(log_prob, old_log_prob)

    def outside(self, log_prob: th.Tensor, old_log_prob: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Which samples lie above and below the clip's interval, as two boolean tensors."""
        log_ratio = log_prob - old_log_prob
        if self.use_softmax:
            bound = math.log1p(self.epsilon)
            return log_ratio > bound, log_ratio < -bound
        excess = th.exp(log_ratio) - 1
        below, above = self.ratio_bounds
        return excess > above, excess < -below

    @property
    def ratio_bounds(self) -> tuple[float, float]:
        """How far under and how far over 1 the direct representation's ratio may lie."""
        epsilon = float(self.epsilon)
        if self.clip_mode == "symmetric" and not math.isinf(epsilon):
            return epsilon / (1 + epsilon), epsilon
        return epsilon, epsilon
