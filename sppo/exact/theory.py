"""The guarantees, as numbers: step sizes, lower bounds on J, and a certificate of improvement.

All for rewards in [r_l, r_m] (``mdp.reward_range``). What the property tests find about these statements is
written up in this package's README.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sppo.arguments import one_of
from sppo.exact.evaluation import Array
from sppo.exact.mdp import Evaluation, TabularMDP
from sppo.exact.objectives import expectation, policy_and_log_ratio

#: The rules for η that have a name.
RULES = ("per-state",)
#: Comparisons of exact numbers allow for rounding: this much, relative to the values' range.
ROUNDING = 1e-10


def softmax_step_size(mdp: TabularMDP) -> float:
    """η = (1 - γ)/(r_m - r_l): with it sMDPO's ℓ_t ≤ J for every pair of policies."""
    low, high = mdp.reward_range
    return np.inf if high == low else (1.0 - mdp.gamma) / (high - low)


def direct_step_size(mdp: TabularMDP, evaluation: Evaluation | None = None) -> float:
    """η = (1 - γ)³ / (2γ|A|(r_m - r_l)), as printed for the direct representation (MDPO).

    The smoothness behind it is for the unweighted Euclidean norm, while ℓ_t weights states by their
    occupancy. With ``evaluation`` (of π_t) the missing factor min_s d(s)/(1 - γ), capped at 1, is included,
    and the lower bound is proved; it is zero if some state is never visited.
    """
    low, high = mdp.reward_range
    scale = 2.0 * mdp.gamma * mdp.n_actions * (high - low)
    eta = np.inf if scale == 0.0 else (1.0 - mdp.gamma) ** 3 / scale
    if evaluation is not None:
        eta *= min(1.0, float(evaluation.occupancy.min()) / (1.0 - mdp.gamma))
    return eta


def per_state_step_size(mdp: TabularMDP, evaluation: Evaluation) -> Array:
    """η(s) = 1/(V^{π_t}(s) - r_l/(1 - γ)): sMDPO's lower bound state by state, never below the uniform η.

    From J(π) ≥ J(π_t) + E_μt[(Q - r_l/(1 - γ)) log p/p_t] and Q = A + V. Needs no r_m. Infinite where V is at
    its lower bound; there no action matters.
    """
    with np.errstate(divide="ignore"):
        return 1.0 / resolve_eta(mdp, evaluation, "per-state")


def inverse_eta(mdp: TabularMDP, eta: npt.ArrayLike) -> Array:
    """1/η(s) for every state, from a number (infinity for no regularisation) or one number per state."""
    array = np.asarray(eta, dtype=np.float64)
    if array.shape not in ((), (mdp.n_states,)):
        raise ValueError(
            f"eta must be a number or have one entry per state, ({mdp.n_states},), not {array.shape}"
        )
    if not np.all(array > 0.0):
        raise ValueError(f"eta must be positive, not {eta!r}")
    return np.full(mdp.n_states, 1.0 / array)


def resolve_eta(mdp: TabularMDP, evaluation: Evaluation, eta: float | str | npt.ArrayLike) -> Array:
    """1/η(s) for every state, from a number, one number per state, or ``"per-state"``."""
    if isinstance(eta, str):
        one_of("eta, if not in numbers,", eta, RULES)
        return np.maximum(evaluation.v - mdp.reward_range[0] / (1.0 - mdp.gamma), 0.0)
    return inverse_eta(mdp, eta)


def smoothness(mdp: TabularMDP, evaluation: Evaluation, eta: float | str | npt.ArrayLike) -> float:
    """β of sMDPO's regularised objective in tabular logits: max_s d(s)/(2η(s)).

    Its Hessian in a state is -(d/η)(diag p - ppᵀ), and the eigenvalues of diag p - ppᵀ are at most ½. Any
    inner step size α ≤ 1/β then improves the surrogate in every inner step.
    """
    return float(np.max(0.5 * evaluation.occupancy * resolve_eta(mdp, evaluation, eta)))


def lower_bound(
    mdp: TabularMDP,
    old: npt.ArrayLike | Evaluation,
    new: npt.ArrayLike,
    *,
    objective: str = "smdpo",
    eta: float | str | npt.ArrayLike = "per-state",
) -> float:
    """ℓ_t(π) for π_t = ``old`` and π = ``new``, including the constants, so that ℓ_t(π_t) = J(π_t).

    smdpo: J(π_t) + Σ d/(1 - γ) Σ_a π_t (A + 1/η) log π/π_t (minus infinity if π drops an action of π_t);
    mdpo: J(π_t) + Σ d/(1 - γ) (Σ_a π A - KL(π ‖ π_t)/η) (minus infinity if π adds an action).
    """
    evaluation = old if isinstance(old, Evaluation) else mdp.evaluate(old)
    if objective not in ("smdpo", "mdpo"):
        raise ValueError(f"a lower bound is known for smdpo and mdpo, not for {objective!r}")
    if objective == "mdpo" and isinstance(eta, str):
        raise ValueError("the per-state step size is derived for the softmax representation: smdpo, not mdpo")
    inv_eta = resolve_eta(mdp, evaluation, eta)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        policy, log_ratio = policy_and_log_ratio(np.log(mdp.check_policy(new)), evaluation)
        if objective == "smdpo":
            weights = evaluation.advantage + inv_eta
            gains = expectation(evaluation.policy, np.where(weights == 0.0, 0.0, weights * log_ratio))
        else:
            gains = expectation(policy, evaluation.advantage - inv_eta * log_ratio)
    return evaluation.value + float(expectation(evaluation.occupancy, gains)) / (1.0 - mdp.gamma)


@dataclass(frozen=True)
class Certificate:
    """J(π_{t+1}) ≥ ℓ_t(θ_{t+1}) ≥ J(π_t), as numbers.

    :param old_value: J(π_t)
    :param bound: ℓ_t(θ_{t+1})
    :param new_value: J(π_{t+1})
    :param tolerance: how much rounding is allowed for
    """

    old_value: float
    bound: float
    new_value: float
    tolerance: float

    @property
    def is_lower_bound(self) -> bool:
        """J(π_{t+1}) ≥ ℓ_t(θ_{t+1})."""
        return self.new_value >= self.bound - self.tolerance

    @property
    def surrogate_improved(self) -> bool:
        """ℓ_t(θ_{t+1}) ≥ ℓ_t(θ_t) = J(π_t)."""
        return self.bound >= self.old_value - self.tolerance

    @property
    def holds(self) -> bool:
        """Both: the improvement of J is certified."""
        return self.is_lower_bound and self.surrogate_improved

    def __repr__(self) -> str:
        first, second = (">=" if ok else "<" for ok in (self.is_lower_bound, self.surrogate_improved))
        return (
            f"Certificate(new value {self.new_value:.8g} {first} bound {self.bound:.8g} "
            f"{second} old value {self.old_value:.8g})"
        )


def certificate(
    mdp: TabularMDP,
    old: npt.ArrayLike | Evaluation,
    new: npt.ArrayLike,
    *,
    objective: str = "smdpo",
    eta: float | str | npt.ArrayLike = "per-state",
) -> Certificate:
    """The certificate of one step from ``old`` to ``new``."""
    evaluation = old if isinstance(old, Evaluation) else mdp.evaluate(old)
    low, high = mdp.reward_range
    tolerance = ROUNDING * max(1.0, abs(low), abs(high)) / (1.0 - mdp.gamma)
    bound = lower_bound(mdp, evaluation, new, objective=objective, eta=eta)
    return Certificate(evaluation.value, bound, mdp.evaluate(new).value, tolerance)
