"""Functional mirror ascent for reparameterised policies (Appendix A of the FMA-PG paper), exactly, on LQR.

The surrogate at π_t, for a policy f(s, ε) = K s + L ε and with the constant that makes ℓ_t(π_t) = J(π_t), is

    ℓ_t(f) = J(π_t) + E_{s ~ d_t, ε}[ (f − f_t) · ∇_a Q_t(s, f_t) − ‖f − f_t‖² / η ].

With Δ = f − f_t, the symbols of :mod:`sppo.exact.linear_quadratic` and
‖Δ‖²_d = E_{d_t, ε}‖Δ‖² = tr(ΔK Σ ΔKᵀ) + h ‖ΔL‖²_F, it is a concave quadratic. Its maximiser moves every
action by (η/2) ∇_a Q: K ← K − ηE, L ← (I − ηG) L, which is the natural gradient step of LQR. One inner
gradient step is the plain value gradient (deterministic if L = 0), since the divergence has no slope at π_t;
m steps are in between.

Which η guarantees J(π_{t+1}) ≥ ℓ_t(π_{t+1}) ≥ J(π_t) is proved in this package's README, whose symbols
:func:`lower_bound_eta` uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from sppo.arguments import given, integer, one_of, positive
from sppo.exact.evaluation import Array
from sppo.exact.linear_quadratic import LQR, LinearGaussianPolicy, LQREvaluation, UnstablePolicyError
from sppo.exact.theory import Certificate

#: method -> (required arguments, optional ones, rules for η)
METHODS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "closed_form": (("eta",), (), ("lower_bound", "improvement")),
    "surrogate": (("eta", "inner_steps"), ("alpha",), ("lower_bound",)),
    "value_gradient": (("alpha",), (), ()),
}


@dataclass(frozen=True, eq=False)
class ValueGradientSurrogate:
    """ℓ_t of the module's docstring.

    :param at: exact evaluation of π_t
    :param eta: functional step size η
    """

    at: LQREvaluation
    eta: float

    def _steps(self, policy: LinearGaussianPolicy) -> tuple[Array, Array]:
        return policy.gain - self.at.policy.gain, policy.scale - self.at.policy.scale

    def divergence(self, policy: LinearGaussianPolicy) -> float:
        """E_{d_t, ε} ‖f − f_t‖²."""
        gain_step, scale_step = self._steps(policy)
        gain_part = np.trace(gain_step @ self.at.state_moment @ gain_step.T)
        return float(gain_part + self.at.problem.horizon * np.sum(scale_step**2))

    def value(self, policy: LinearGaussianPolicy) -> float:
        """ℓ_t(f)."""
        slope = sum(np.sum(g * step) for g, step in zip(self.at.gradient(), self._steps(policy), strict=True))
        return self.at.value + float(slope) - self.divergence(policy) / self.eta

    def gradient(self, policy: LinearGaussianPolicy) -> tuple[Array, Array]:
        """(∂ℓ_t/∂K, ∂ℓ_t/∂L)."""
        (gain_gradient, scale_gradient), (gain_step, scale_step) = self.at.gradient(), self._steps(policy)
        gain_pull, scale_pull = gain_step @ self.at.state_moment, self.at.problem.horizon * scale_step
        return gain_gradient - 2 / self.eta * gain_pull, scale_gradient - 2 / self.eta * scale_pull

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
            policy = policy.moved(*(alpha * g for g in self.gradient(policy)))
        return policy


def lower_bound_eta(evaluation: LQREvaluation) -> float:
    """The largest η for which J ≥ ℓ_t is proved wherever ℓ_t ≥ J(π_t), see this package's README.

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

    # the condition implies η ≤ 1/λ and only gets harder with η: bisect, returning the side on which it holds
    eta, upper = 0.0, 1 / curvature
    if holds(upper):
        return upper
    for _ in range(100):
        middle = (eta + upper) / 2
        eta, upper = (middle, upper) if holds(middle) else (eta, middle)
    return eta


def improvement_eta(evaluation: LQREvaluation) -> float:
    """2 / λ_max(G): the exact maximiser of ℓ_t improves on π_t, in every state, for all η up to here."""
    return 2 / float(np.linalg.eigvalsh(evaluation.action_curvature)[-1])


#: What η may be called.
_RULES = {"lower_bound": lower_bound_eta, "improvement": lambda at: improvement_eta(at) / 2}


def certified(evaluation: LQREvaluation, bound: float, new_value: float) -> Certificate:
    """The chain J(π_{t+1}) ≥ ℓ_t(π_{t+1}) ≥ J(π_t) of one update; J is −∞ for a destabilising one."""
    return Certificate(evaluation.value, bound, new_value, tolerance=1e-9 * (1 + abs(evaluation.value)))


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
    values: Array
    policy: LinearGaussianPolicy
    etas: Array
    certificates: tuple[Certificate, ...]

    @property
    def diverged(self) -> bool:
        """Whether an update left the stable policies."""
        return not np.isfinite(self.values[-1])

    def __repr__(self) -> str:
        outcome = "left the stable policies" if self.diverged else f"J {self.values[-1]:.6g}"
        held = sum(certificate.holds for certificate in self.certificates)
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
    one_of("method", method, METHODS)
    integer("iterations", iterations)
    required, optional, rules = METHODS[method]
    arguments = {"eta": eta, "inner_steps": inner_steps, "alpha": alpha}
    found: dict[str, float | str] = given(f"method {method!r}", arguments, required, optional)
    for name, value in found.items():
        if name == "inner_steps":
            integer(name, value)
        elif name == "eta" and isinstance(value, str):
            one_of("eta, if not a number,", value, rules)
        else:
            positive(name, value)
    values, etas = np.full(iterations, -np.inf), np.full(iterations, np.nan)
    certificates: list[Certificate] = []
    evaluation = problem.evaluate(policy)
    for t in range(iterations):
        values[t] = evaluation.value
        if method == "value_gradient":
            updated = evaluation.policy.moved(*(float(alpha or 0) * g for g in evaluation.gradient()))
        else:
            etas[t] = _RULES[eta](evaluation) if isinstance(eta, str) else eta
            surrogate = ValueGradientSurrogate(evaluation, etas[t])
            if inner_steps is None:
                updated = surrogate.maximiser()
            else:
                updated = surrogate.ascend(inner_steps, alpha or 1 / surrogate.smoothness())
            certificates.append(certified(evaluation, surrogate.value(updated), -np.inf))
        try:
            evaluation = problem.evaluate(updated)
        except UnstablePolicyError:
            break
        if certificates:
            certificates[-1] = replace(certificates[-1], new_value=evaluation.value)
    return AscentResult(method, values, evaluation.policy, etas, tuple(certificates))
