"""The four objectives: gain J, divergence C, their gradients and the curvature of C, in plain NumPy.

Every function is pure. With p = softmax(θ) the policy of ``logits`` θ, and π_t, A, d the policy, advantage
and normalised occupancy of an :class:`~sppo.exact.mdp.Evaluation`, the rows of Appendix E's table are (its
"p(s, a)" read as p(a|s))::

    objective   gain J(θ)                               divergence C(θ)
    smdpo       Σ_s d(s) Σ_a π_t(a|s) A log p/π_t       Σ_s d(s) KL(π_t ‖ p)
    trpo        Σ_s d(s) Σ_a p(a|s) A                   Σ_s d(s) KL(π_t ‖ p)
    mdpo        Σ_s d(s) Σ_a p(a|s) A                   Σ_s d(s) KL(p ‖ π_t)
    ppo         Σ_s d(s) Σ_a π_t min(ρA, clip(ρ)A)      none: the clip to [1 - ε, 1 + ε] replaces it

with ρ = p/π_t. The paper writes TRPO's gain with Q; Q - A = V does not depend on θ, so A is used throughout.
These forms are for reading and for checking; the solvers run compiled ones (:mod:`sppo.exact.kernels`), and
tests tie the two together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from sppo.arguments import one_of
from sppo.exact.evaluation import Array
from sppo.exact.mdp import Evaluation

OBJECTIVES = ("smdpo", "mdpo", "trpo", "ppo")


def _check_divergence(objective: str) -> None:
    one_of("objective", objective, OBJECTIVES)
    if objective == "ppo":
        raise ValueError("ppo has no divergence: it stays close by clipping the ratio")


def policy_and_log_ratio(logits: npt.ArrayLike, evaluation: Evaluation) -> tuple[Array, Array]:
    """(p, log p/π_t); the ratio is taken as 1 where both probabilities are zero."""
    log_p = log_softmax(np.asarray(logits, dtype=np.float64), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = log_p - np.log(evaluation.policy)
    both_zero = (evaluation.policy == 0.0) & np.isneginf(log_p)
    return np.exp(log_p), np.where(both_zero, 0.0, log_ratio)


def expectation(weights: Array, values: Array) -> Array:
    """Σ_a w f with 0·∞ = 0, per state."""
    with np.errstate(invalid="ignore"):
        return np.where(weights > 0.0, weights * values, 0.0).sum(axis=-1)


def softmax_pullback(p: Array, f: Array) -> Array:
    """p (f - Σ_b p f), per state: a gradient in the probabilities becomes one in the logits."""
    return p * (f - (p * f).sum(axis=1, keepdims=True))


def gain(objective: str, logits: npt.ArrayLike, evaluation: Evaluation, *, epsilon: float = 0.2) -> float:
    """J(θ) of the table above."""
    one_of("objective", objective, OBJECTIVES)
    p, log_ratio = policy_and_log_ratio(logits, evaluation)
    advantage, old = evaluation.advantage, evaluation.policy
    if objective == "smdpo":
        per_state = expectation(old, advantage * log_ratio)
    elif objective == "ppo":
        ratio = np.exp(log_ratio)
        clipped = np.clip(ratio, 1.0 - epsilon, 1.0 + epsilon)
        per_state = expectation(old, np.minimum(ratio * advantage, clipped * advantage))
    else:
        per_state = expectation(p, advantage)
    return float(evaluation.occupancy @ per_state)


def divergence(objective: str, logits: npt.ArrayLike, evaluation: Evaluation) -> float:
    """C(θ) of the table above."""
    _check_divergence(objective)
    p, log_ratio = policy_and_log_ratio(logits, evaluation)
    if objective == "mdpo":
        return float(evaluation.occupancy @ expectation(p, log_ratio))
    return float(evaluation.occupancy @ expectation(evaluation.policy, -log_ratio))


def gain_gradient(
    objective: str, logits: npt.ArrayLike, evaluation: Evaluation, *, epsilon: float = 0.2
) -> Array:
    """∇_θ J, shape (S, A).

    smdpo: d π_t A;  trpo, mdpo: d p (A - Σ_b p A);  ppo: d p (χA - Σ_b p χA) with χ = 1 where the ratio is
    not cut: A > 0 and ρ < 1 + ε, or A < 0 and ρ > 1 - ε.
    """
    one_of("objective", objective, OBJECTIVES)
    p, _ = policy_and_log_ratio(logits, evaluation)
    d = evaluation.occupancy[:, None]
    advantage, old = evaluation.advantage, evaluation.policy
    if objective == "smdpo":
        return d * old * advantage
    if objective == "ppo":
        open_above = (advantage > 0.0) & (p < (1.0 + epsilon) * old)
        open_below = (advantage < 0.0) & (p > (1.0 - epsilon) * old)
        advantage = np.where(open_above | open_below, advantage, 0.0)
    return d * softmax_pullback(p, advantage)


def divergence_gradient(objective: str, logits: npt.ArrayLike, evaluation: Evaluation) -> Array:
    """∇_θ C, shape (S, A): d (p - π_t) for smdpo and trpo, d p (log p/π_t - KL(p ‖ π_t)) for mdpo."""
    _check_divergence(objective)
    p, log_ratio = policy_and_log_ratio(logits, evaluation)
    d = evaluation.occupancy[:, None]
    if objective != "mdpo":
        return d * (p - evaluation.policy)
    return d * softmax_pullback(p, np.where(p > 0.0, log_ratio, 0.0))


def curvature(objective: str, logits: npt.ArrayLike, evaluation: Evaluation) -> Array:
    """∇²_θ C, block by block: shape (S, A, A); the full Hessian is block diagonal.

    smdpo, trpo: d (diag(p) - p pᵀ);  mdpo: d (diag(T) - p Tᵀ - T pᵀ + p pᵀ), T = p (log p/π_t - KL + 1).
    """
    _check_divergence(objective)
    p, log_ratio = policy_and_log_ratio(logits, evaluation)
    outer = p[:, :, None] * p[:, None, :]
    identity = np.eye(p.shape[1])
    if objective == "mdpo":
        t = p + softmax_pullback(p, np.where(p > 0.0, log_ratio, 0.0))
        cross = p[:, :, None] * t[:, None, :]
        blocks = t[:, :, None] * identity - cross - cross.transpose(0, 2, 1) + outer
    else:
        blocks = p[:, :, None] * identity - outer
    return evaluation.occupancy[:, None, None] * blocks


def trust_region_direction(
    objective: str, logits: npt.ArrayLike, evaluation: Evaluation, *, cutoff: float = 1e-15
) -> Array:
    """H⁺g with H = ∇²C and g = ∇J, from the eigenvectors of every block; the solvers use its closed form.

    Eigenvalues below ``cutoff`` times the largest of all blocks count as zero, as in ``numpy.linalg.pinv``.
    """
    gradient = gain_gradient(objective, logits, evaluation)
    eigenvalues, vectors = np.linalg.eigh(curvature(objective, logits, evaluation))
    null = np.abs(eigenvalues) <= cutoff * np.abs(eigenvalues).max()
    inverse = np.where(null, 0.0, 1.0 / np.where(null, 1.0, eigenvalues))
    return np.einsum("sab,sb,scb,sc->sa", vectors, inverse, vectors, gradient)


def closed_form(
    objective: str, evaluation: Evaluation, eta: float | npt.ArrayLike, *, floor: float = 0.0
) -> Array:
    """argmax_p J - C/η over all policies, for smdpo and mdpo.

    smdpo: p ∝ π_t max(1 + ηA, floor) (floor 0 is exact: an action of 1 + ηA < 0 is dropped; the published
    runs used 1e-8);  mdpo: p ∝ π_t exp(ηA).
    """
    one_of("objective", objective, OBJECTIVES)
    step = np.broadcast_to(np.asarray(eta, dtype=np.float64), evaluation.occupancy.shape)[:, None]
    if objective == "smdpo":
        weights = evaluation.policy * np.maximum(1.0 + step * evaluation.advantage, floor)
    elif objective == "mdpo":
        exponent = np.where(evaluation.policy > 0.0, step * evaluation.advantage, -np.inf)
        weights = evaluation.policy * np.exp(exponent - exponent.max(axis=1, keepdims=True))
    else:
        raise ValueError(f"{objective} has no closed form: its optimality condition is a non-linear system")
    return weights / weights.sum(axis=1, keepdims=True)
