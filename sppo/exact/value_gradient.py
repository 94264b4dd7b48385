"""Functional mirror ascent for reparameterised policies (Appendix A of the FMA-PG paper), exactly, on LQR.

The surrogate at π_t, for a policy f(s, ε) = K s + L ε and with the constant that makes ℓ_t(π_t) = J(π_t), is

    ℓ_t(f) = J(π_t) + E_{s ~ d_t, ε}[ (f − f_t) · ∇_a Q_t(s, f_t) − ‖f − f_t‖² / η ].

With Δ = f − f_t, the symbols of :mod:`sppo.exact.linear_quadratic` and
‖Δ‖²_d = E_{d_t, ε}‖Δ‖² = tr(ΔK Σ ΔKᵀ) + h ‖ΔL‖²_F, it is a concave quadratic. Its maximiser moves every
action by (η/2) ∇_a Q: K ← K − ηE, L ← (I − ηG) L, which is the natural gradient step of LQR. One inner
gradient step is the plain value gradient (deterministic if L = 0), since the divergence has no slope at π_t;
m steps are in between.

**Which η guarantees J(π_{t+1}) ≥ ℓ_t(π_{t+1}) ≥ J(π_t)?** No η gives J ≥ ℓ_t for all policies: J is −∞ for
destabilising gains, and ℓ_t finite. But the argument only needs it where the inner loop can be, that is where
ℓ_t ≥ J(π_t). There ‖Δ‖²_d ≤ η E_d[Δ · ∇_a Q], so ‖Δ‖_d ≤ r = ηg with
g² = E_d‖∇_a Q‖² = 4 tr(EΣEᵀ) + 4h ‖GL‖²_F. Q is quadratic in the action, so the performance difference lemma
is the equality J(π) − J(π_t) = E_{d_π}[Δ · ∇_a Q − ΔᵀGΔ], and the claim J ≥ ℓ_t reads

    ‖Δ‖²_d / η  ≥  2 tr(ΔKᵀ E (Σ_π − Σ)) + tr(ΔKᵀ G ΔK Σ_π) + h tr(ΔLᵀ G ΔL).

Write Σ = CCᵀ, Σ_π = C (I + Y) Cᵀ, M = √γ C⁻¹ (A + BK) C, and ω for the largest eigenvalue of Σ_k Mᵏ (Mᵏ)ᵀ,
which is the norm of the positive map Z ↦ Σ_k Mᵏ Z (Mᵏ)ᵀ. With

    ρ = ‖M‖ < 1,   b = √γ ‖C⁻¹B‖,   e = ‖E C‖_F,   λ = λ_max(G),
    q = 2b √(ρ² + b² h ‖L‖²),   u(r) = ω (q + b² r) / (1 − ω (2ρ b r + b² r²)),

subtracting the Lyapunov equations of Σ_π and Σ gives ‖Y‖ ≤ ‖Δ‖_d u(r) as long as ω (2ρ b r + b² r²) < 1. The
same bound holds all along the segment from π_t to π, where Σ_π would have to grow beyond any bound before a
policy becomes unstable; so π is stable. The right-hand side of the claim is then at most
‖Δ‖²_d (2 e u(r) + λ (1 + r u(r))), so that

    1/η ≥ 2 e u(ηg) + λ (1 + ηg u(ηg))   and   ω (2ρ b ηg + b² η² g²) < 1

suffice (:func:`lower_bound_eta` is the largest such η). At the optimal deterministic policy it is η ≤ 1/λ.

**A larger η still improves, if ℓ_t is maximised exactly.** Then Δ = (η/2) ∇_a Q, and the equality becomes
J(π_{t+1}) − J(π_t) = E_{d_{t+1}}[(2/η) ‖Δ‖² − ΔᵀGΔ] ≥ 0 for η ≤ 2/λ, stability included, because P_t is a
Lyapunov function of the new closed loop. P never grows, so neither does G: 2/λ_max(G_0) serves for ever.
ℓ_t need not be below J there: the better policy visits smaller states, and its gain is collected on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from sppo.exact.linear_quadratic import (
    LQR,
    FloatArray,
    LinearGaussianPolicy,
    LQREvaluation,
    UnstablePolicyError,
)

METHODS = ("closed_form", "surrogate", "value_gradient")


@dataclass(frozen=True, eq=False)
class ValueGradientSurrogate:
    """ℓ_t of the module's docstring.

    :param at: exact evaluation of π_t
    :param eta: functional step size η
    """

    at: LQREvaluation
    eta: float

    def divergence(self, policy: LinearGaussianPolicy) -> float:
        """E_{d_t, ε} ‖f − f_t‖²."""
        gain_step = policy.gain - self.at.policy.gain
        scale_step = policy.scale - self.at.policy.scale
        gain_part = np.trace(gain_step @ self.at.state_moment @ gain_step.T)
        return float(gain_part + self.at.problem.horizon * np.sum(scale_step**2))

    def value(self, policy: LinearGaussianPolicy) -> float:
        """ℓ_t(f)."""
        gain_gradient, scale_gradient = self.at.gradient()
        slope = np.sum(gain_gradient * (policy.gain - self.at.policy.gain))
        slope += np.sum(scale_gradient * (policy.scale - self.at.policy.scale))
        return self.at.value + float(slope) - self.divergence(policy) / self.eta

    def gradient(self, policy: LinearGaussianPolicy) -> tuple[FloatArray, FloatArray]:
        """(∂ℓ_t/∂K, ∂ℓ_t/∂L)."""
        gain_gradient, scale_gradient = self.at.gradient()
        gain_step = policy.gain - self.at.policy.gain
        scale_step = policy.scale - self.at.policy.scale
        pull = 2 / self.eta
        return (
            gain_gradient - pull * gain_step @ self.at.state_moment,
            scale_gradient - pull * self.at.problem.horizon * scale_step,
        )

    def smoothness(self) -> float:
        """β = (2/η) max(λ_max(Σ), h): ℓ_t ascends for every inner step size α ≤ 1/β."""
        largest = np.linalg.eigvalsh(self.at.state_moment)[-1]
        return 2 / self.eta * max(float(largest), self.at.problem.horizon)

    def maximiser(self) -> LinearGaussianPolicy:
        """K − ηE and (I − ηG) L."""
        scale_step = -self.eta * self.at.action_curvature @ self.at.policy.scale
        return self.at.policy.moved(-self.eta * self.at.gain_residual, scale_step)

    def ascend(self, inner_steps: int, alpha: float) -> LinearGaussianPolicy:
        """m gradient steps of size α from π_t: the inner loop of Algorithm 1."""
        policy = self.at.policy
        for _ in range(inner_steps):
            gain_gradient, scale_gradient = self.gradient(policy)
            policy = policy.moved(alpha * gain_gradient, alpha * scale_gradient)
        return policy


def lower_bound_eta(evaluation: LQREvaluation) -> float:
    """The largest η for which the module's docstring proves J ≥ ℓ_t wherever ℓ_t ≥ J(π_t).

    Any smaller η has the same guarantee, and it holds for every number of inner steps with α ≤ 1/β.
    """
    problem, policy = evaluation.problem, evaluation.policy
    root = np.linalg.cholesky(evaluation.state_moment)
    closed_loop = problem.dynamics + problem.control @ policy.gain
    map_matrix = np.sqrt(problem.gamma) * np.linalg.solve(root, closed_loop @ root)
    identity = np.eye(len(root))
    amplification = float(np.linalg.eigvalsh(solve_discrete_lyapunov(map_matrix, identity))[-1])
    contraction = float(np.linalg.norm(map_matrix, 2))
    reach = float(np.sqrt(problem.gamma) * np.linalg.norm(np.linalg.solve(root, problem.control), 2))
    residual = float(np.linalg.norm(evaluation.gain_residual @ root))
    scale_part = problem.horizon * np.sum((evaluation.action_curvature @ policy.scale) ** 2)
    gradient = 2 * np.sqrt(residual**2 + scale_part)
    curvature = float(np.linalg.eigvalsh(evaluation.action_curvature)[-1])
    noise = reach**2 * problem.horizon * np.linalg.norm(policy.scale, 2) ** 2
    linear = 2 * reach * np.sqrt(contraction**2 + noise)

    def holds(eta: float) -> bool:
        radius = eta * gradient
        room = 1 - amplification * (2 * contraction * reach * radius + (reach * radius) ** 2)
        if room <= 0:
            return False
        spread = amplification * (linear + reach**2 * radius) / room
        return bool(eta * (2 * residual * spread + curvature * (1 + radius * spread)) <= 1)

    # The condition implies eta <= 1 / curvature and only gets harder with eta: bisect, returning the side on
    # which it holds.
    eta = 1 / curvature
    if holds(eta):
        return eta
    while not holds(eta):
        eta /= 2
    upper = 2 * eta
    for _ in range(50):
        middle = (eta + upper) / 2
        if holds(middle):
            eta = middle
        else:
            upper = middle
    return eta


def improvement_eta(evaluation: LQREvaluation) -> float:
    """2 / λ_max(G): the exact maximiser of ℓ_t improves on π_t, in every state, for all η up to here."""
    return 2 / float(np.linalg.eigvalsh(evaluation.action_curvature)[-1])


@dataclass(frozen=True)
class Certificate:
    """The chain J(π_{t+1}) ≥ ℓ_t(π_{t+1}) ≥ J(π_t) for one update.

    :param before: J(π_t)
    :param surrogate: ℓ_t(π_{t+1})
    :param after: J(π_{t+1}), −∞ for a destabilising update
    """

    before: float
    surrogate: float
    after: float

    def holds(self, tolerance: float = 1e-9) -> bool:
        """Whether both inequalities hold, up to rounding relative to the size of J."""
        slack = tolerance * (1 + abs(self.before))
        return self.after >= self.surrogate - slack and self.surrogate >= self.before - slack


@dataclass(frozen=True, eq=False, repr=False)
class AscentResult:
    """What :func:`value_gradient_ascent` returns.

    :param method: one of :data:`METHODS`
    :param values: J(π_t) before update t, shape (iterations,); −∞ from the first destabilising update on
    :param policy: the last policy with a finite return
    :param etas: η of each update (NaN for ``"value_gradient"`` and after divergence)
    :param certificates: one per update made; empty for ``"value_gradient"``
    """

    method: str
    values: FloatArray
    policy: LinearGaussianPolicy
    etas: FloatArray
    certificates: tuple[Certificate, ...]

    @property
    def diverged(self) -> bool:
        """Whether an update left the stable policies."""
        return not np.isfinite(self.values[-1])

    def __repr__(self) -> str:
        outcome = "left the stable policies" if self.diverged else f"J {self.values[-1]:.6g}"
        held = sum(certificate.holds() for certificate in self.certificates)
        checks = f", bound held in {held}/{len(self.certificates)} updates" if self.certificates else ""
        return (
            f"AscentResult: {self.method}, {len(self.values)} iterations, "
            f"J {self.values[0]:.6g} -> {outcome}{checks}"
        )


def value_gradient_ascent(
    problem: LQR,
    policy: LinearGaussianPolicy,
    method: str,
    *,
    iterations: int,
    eta: float | str | None = None,
    inner_steps: int | None = None,
    alpha: float | None = None,
) -> AscentResult:
    """Improve a policy by exact value gradients.

    :param method: ``"closed_form"`` (maximise ℓ_t exactly), ``"surrogate"`` (``inner_steps`` gradient steps
        on ℓ_t) or ``"value_gradient"`` (θ ← θ + α ∇J: deterministic if the policy's scale is zero)
    :param iterations: number of outer iterations
    :param eta: functional step size of the first two methods: a number, or ``"lower_bound"``
        (:func:`lower_bound_eta` at every iteration), or for ``"closed_form"`` also ``"improvement"``: half of
        :func:`improvement_eta`, which maximises the guaranteed gain E_{d_{t+1}}[(2/η − λ) ‖Δ‖²]
    :param inner_steps: m, for ``"surrogate"``
    :param alpha: parameter step size: required for ``"value_gradient"``; 1/β if left out for ``"surrogate"``
    """
    _check_arguments(method, iterations, eta, inner_steps, alpha)
    step = np.nan if alpha is None else float(alpha)
    values, etas = np.full(iterations, -np.inf), np.full(iterations, np.nan)
    certificates: list[Certificate] = []
    evaluation = problem.evaluate(policy)
    for t in range(iterations):
        values[t] = evaluation.value
        if method == "value_gradient":
            gain_gradient, scale_gradient = evaluation.gradient()
            updated = evaluation.policy.moved(step * gain_gradient, step * scale_gradient)
        else:
            etas[t] = _eta_at(evaluation, eta)
            surrogate = ValueGradientSurrogate(evaluation, etas[t])
            if inner_steps is None:
                updated = surrogate.maximiser()
            else:
                inner_step = 1 / surrogate.smoothness() if alpha is None else step
                updated = surrogate.ascend(inner_steps, inner_step)
            certificates.append(Certificate(evaluation.value, surrogate.value(updated), -np.inf))
        try:
            evaluation = problem.evaluate(updated)
        except UnstablePolicyError:
            break
        if certificates:
            certificates[-1] = replace(certificates[-1], after=evaluation.value)
    return AscentResult(method, values, evaluation.policy, etas, tuple(certificates))


def _eta_at(evaluation: LQREvaluation, eta: Any) -> float:
    if eta == "lower_bound":
        return lower_bound_eta(evaluation)
    if eta == "improvement":
        return improvement_eta(evaluation) / 2
    return float(eta)


def _check_arguments(method: str, iterations: int, eta: Any, inner_steps: Any, alpha: Any) -> None:
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose from {', '.join(map(repr, METHODS))}")
    needed = {"closed_form": ["eta"], "surrogate": ["eta", "inner_steps"], "value_gradient": ["alpha"]}[
        method
    ]
    allowed = [*needed, "alpha"] if method == "surrogate" else needed
    for name, value in (("eta", eta), ("inner_steps", inner_steps), ("alpha", alpha)):
        if value is None and name in needed:
            raise TypeError(f"method {method!r} needs {name}")
        if value is not None and name not in allowed:
            raise TypeError(f"method {method!r} makes no use of {name}; leave it out")
        if value is not None and not isinstance(value, str) and not 0 < value < np.inf:
            raise ValueError(f"{name} must be positive and finite, not {value!r}")
    for name, value in (("iterations", iterations), ("inner_steps", inner_steps)):
        if value is not None and (not isinstance(value, int | np.integer) or value < 1):
            raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
    rules = ("lower_bound", "improvement") if method == "closed_form" else ("lower_bound",)
    if isinstance(eta, str) and eta not in rules:
        raise ValueError(f"eta is a number or one of {rules} for method {method!r}, not {eta!r}")
