"""One front door: ``solve(mdp, objective, method, ...)``.

One table says which hyper-parameters go with which objective and method; everything else raises with the
reason. What was asked for becomes a :class:`Plan`, which :func:`run` carries out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from sppo.arguments import given, integer, one_of, positive
from sppo.exact import kernels, theory
from sppo.exact.evaluation import Array, Evaluation
from sppo.exact.framework import FMA
from sppo.exact.loops import LOOPS, State
from sppo.exact.mdp import DENSE_LIMIT, TabularMDP

METHODS = ("closed_form", "fixed", "line_search", "constrained")
#: What the compiled loops take the objectives for: see :mod:`sppo.exact.kernels`.
OBJECTIVES = {
    "smdpo": kernels.SMDPO,
    "mdpo": kernels.MDPO,
    "trpo": kernels.TRPO,
    "ppo": kernels.PPO,
    "pg": kernels.MDPO,
    "npg": kernels.MDPO,
    "cpi": kernels.CPI,
}
_SEARCH: dict[str, float | str] = {"first_step": 10.0, "decay": 0.9, "max_tries": 1000}
_ARMIJO = {**_SEARCH, "armijo": 0.0, "armijo_test": "regularized", "warm_start": 2.0}
_TRUST_REGION = {**_SEARCH, "first_step": 1e5, "cutoff": 1e-15}
_REGULARIZED = ("smdpo", "mdpo", "trpo")
#: (objective, method) -> (required hyper-parameters, optional ones with their defaults)
COMBINATIONS: dict[tuple[str, str], tuple[tuple[str, ...], Mapping[str, float | str]]] = {
    ("smdpo", "closed_form"): (("eta",), {"floor": 0.0}),
    ("mdpo", "closed_form"): (("eta",), {}),
    ("npg", "closed_form"): (("eta",), {}),
    ("cpi", "closed_form"): (("alpha",), {}),
    ("ppo", "fixed"): (("alpha", "epsilon"), {}),
    ("pg", "fixed"): (("alpha",), {}),
    ("fma", "fixed"): (("eta", "alpha"), {}),
    **{(name, "fixed"): (("eta", "alpha"), {}) for name in _REGULARIZED},
    **{(name, "line_search"): (("eta",), _ARMIJO) for name in _REGULARIZED},
    **{(name, "constrained"): (("delta",), _TRUST_REGION) for name in _REGULARIZED},
}
_REASONS = {
    "trpo closed_form": "its optimality condition is a non-linear system; use another method",
    "ppo closed_form": "a clipped objective has no unique maximiser; use fixed",
    "ppo line_search": "there is no divergence to regularise with, only a clip; use fixed",
    "ppo constrained": "there is no divergence to constrain, only a clip; use fixed",
    "pg closed_form": "the policy gradient is a gradient step; use fixed",
    "npg fixed": "the natural gradient is the closed form of the direct representation; use closed_form",
    "cpi fixed": "conservative policy iteration mixes policies, it follows no gradient; use closed_form",
}
_ARMIJO_TESTS = {"regularized": kernels.ARMIJO, "published": kernels.PUBLISHED}
_SHARE = (lambda x: 0.0 <= x < 1.0, "in [0, 1)")
_POSITIVE = (lambda x: 0.0 < x < math.inf, "positive and finite")
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "epsilon": (lambda x: x > 0.0, "positive"),
    "floor": _SHARE,
    "first_step": _POSITIVE,
    "delta": _POSITIVE,
    "cutoff": _SHARE,
    "armijo": _SHARE,
    "decay": (lambda x: 0.0 < x < 1.0, "in (0, 1)"),
    "warm_start": (lambda x: 0.0 <= x < math.inf, "a finite factor, or 0 for none"),
}
#: The other arguments of :func:`solve`.
_NO_HYPER_PARAMETERS = ("mdp", "objective", "method", "iterations", "initial_logits", "certify")


@dataclass(frozen=True)
class Plan:
    """A validated run: what the loops need besides the MDP and the start."""

    objective: str
    method: str
    settings: dict[str, npt.ArrayLike]
    numbers: kernels.Method
    inv_eta: Array
    family: FMA | None


@dataclass(frozen=True)
class Result:
    """What :func:`solve` found.

    :param objective: its name
    :param method: its name
    :param settings: every hyper-parameter in force, defaults included
    :param values: J(π_t) *before* update t, for t = 0 ... iterations - 1
    :param value: J of the returned policy, after the last update
    :param policy: π after the last update, (S, A)
    :param logits: its logits (S, A); log-probabilities for closed forms
    :param step_sizes: (iterations, n): the step size of every inner step for line searches (nan where the
        inner loop had stopped at a fixed point), α_t for ``fixed``, η (its least over states) or α for
        ``closed_form``
    :param lower_bounds: ℓ_t(θ_{t+1}) for every t, if ``certify`` was asked for
    """

    objective: str
    method: str
    settings: dict[str, npt.ArrayLike]
    values: Array
    value: float
    policy: Array
    logits: Array
    step_sizes: Array
    lower_bounds: Array | None = None
    theta: Array | None = field(default=None, repr=False)

    @property
    def certified(self) -> bool:
        """Whether J(π_{t+1}) ≥ ℓ_t(θ_{t+1}) ≥ J(π_t) held in every iteration."""
        if self.lower_bounds is None:
            raise ValueError("no lower bounds were recorded: call solve(..., certify=True)")
        path = np.append(self.values, self.value)
        slack = theory.ROUNDING * max(1.0, np.abs(path).max())
        steps = zip(path[:-1], self.lower_bounds, path[1:], strict=True)
        return all(theory.Certificate(*step, slack).holds for step in steps)

    def __repr__(self) -> str:
        return (
            f"Result({self.objective}, {self.method}: J {self.values[0]:.6g} -> {self.value:.6g} "
            f"in {self.values.size} iterations; {listed(self.settings)})"
        )


def listed(settings: Mapping[str, object]) -> str:
    """Hyper-parameters in one line."""

    def short(value: object) -> str:
        if isinstance(value, float):
            return f"{value:g}"
        shape = np.asarray(value).shape
        return f"array{shape}" if shape else str(value)

    return ", ".join(f"{name}={short(value)}" for name, value in settings.items())


def solve(
    mdp: TabularMDP,
    objective: str | FMA,
    method: str,
    *,
    iterations: int,
    inner_steps: int = 1,
    eta: float | str | npt.ArrayLike | None = None,
    alpha: float | str | None = None,
    delta: float | None = None,
    epsilon: float | None = None,
    armijo: float | None = None,
    armijo_test: str | None = None,
    first_step: float | None = None,
    warm_start: float | None = None,
    decay: float | None = None,
    max_tries: int | None = None,
    floor: float | None = None,
    cutoff: float | None = None,
    initial_logits: npt.ArrayLike | None = None,
    certify: bool = False,
) -> Result:
    """Run a policy-gradient method with exact values, from the uniform policy.

    :param mdp: the problem
    :param objective: ``"smdpo"``, ``"mdpo"``, ``"trpo"``, ``"ppo"`` (:mod:`sppo.exact.objectives`); their
        relatives ``"pg"`` (softmax policy gradient), ``"npg"`` (natural policy gradient) and ``"cpi"``
        (conservative policy iteration); or an :class:`~sppo.exact.framework.FMA` instance for any
        representation, mirror map and parameterisation
    :param method: ``"closed_form"`` maximises the surrogate exactly; ``"fixed"`` makes gradient steps of
        size α; ``"line_search"`` finds each step by Armijo backtracking; ``"constrained"`` makes
        trust-region steps
    :param iterations: outer iterations: evaluations of the policy
    :param inner_steps: m, inner steps per iteration
    :param eta: η, strength of the proximity (1/η multiplies the divergence): a number, one per state, or
        ``"per-state"`` for the theoretical one of :func:`sppo.exact.theory.per_state_step_size`
    :param alpha: inner step size of ``fixed``; ``"theory"`` for 1/β (smdpo). For ``cpi`` the weight of the
        greedy policy, ``"theory"`` for Kakade and Langford's (1 - γ)²/(4(r_m - r_l)) Σ d(s) max_a A
    :param delta: radius of the trust region
    :param epsilon: PPO's clip
    :param armijo: constant c of the Armijo test ℓ(θ + αg) ≥ ℓ(θ) + cα‖g‖²
    :param armijo_test: ``"regularized"`` tests J - C/η, whose gradient g is; ``"published"`` tests J alone,
        with probabilities clipped to [1e-8, 1 - 1e-8] in logarithms, as the published middle row of the
        ablation did
    :param first_step: first trial of a line search (default 10); cap of the first trial of ``constrained``
        (1e5)
    :param warm_start: later inner steps start from the last accepted step times this (default 2); 0 for none
    :param decay: factor between trials (default 0.9)
    :param max_tries: trials before the step becomes 1e-16 (default 1000)
    :param floor: least factor of the closed-form sMDPO update (default 0, exact; the published runs used
        1e-8)
    :param cutoff: the trust region's pseudo-inverse drops directions of curvature below this times the
        largest (default 1e-15, NumPy's ``pinv``; 0 for none)
    :param initial_logits: θ_0
    :param certify: also record ℓ_t(θ_{t+1}) (smdpo and mdpo with an η); slower
    """
    values = {name: value for name, value in locals().items() if name not in _NO_HYPER_PARAMETERS}
    integer("iterations", iterations)
    plan = make_plan(mdp, objective, method, values)
    if certify and (plan.objective not in ("smdpo", "mdpo") or "eta" not in plan.settings):
        raise ValueError("certify needs a lower bound: smdpo or mdpo with an eta")
    return run(mdp, plan, iterations, initial_logits, certify)


def make_plan(mdp: TabularMDP, objective: str | FMA, method: str, values: dict[str, Any]) -> Plan:
    """Check the combination and its hyper-parameters, ``inner_steps`` among them (``None``: not given)."""
    name, family = ("fma", objective) if isinstance(objective, FMA) else (objective, None)
    if family is None and name not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)} or an FMA instance, not {name!r}")
    one_of("method", method, METHODS)
    if (name, method) not in COMBINATIONS:
        possible = " and ".join(m for o, m in COMBINATIONS if o == name)
        reason = _REASONS.get(f"{name} {method}", f"{name} is defined for {possible} only")
        raise ValueError(f"{name} with {method} makes no sense: {reason}")
    required, optional = COMBINATIONS[name, method]
    optional = {**optional, "inner_steps": 1}
    where = f"solve(objective={name!r}, method={method!r})"
    settings = {**optional, **given(where, values, required, optional)}
    if integer("inner_steps", settings["inner_steps"]) > 1 and (method == "closed_form" or name == "pg"):
        raise ValueError(f"{name} with {method} makes one update per iteration: inner_steps must be 1")
    inv_eta = _inverse_eta(mdp, name, settings.get("eta", np.inf))
    if method == "closed_form" and name in ("mdpo", "npg") and not np.all(inv_eta > 0.0):
        raise ValueError("eta must be finite: an infinite one would move all probability at once")
    numbers = {}
    for key in _RANGES.keys() & settings.keys():
        accepts, meaning = _RANGES[key]
        numbers[key] = float(settings[key])
        if not accepts(numbers[key]):
            raise ValueError(f"{key} must be {meaning}, not {settings[key]}")
    test = settings.get("armijo_test", "regularized")
    one_of("armijo_test", test, _ARMIJO_TESTS)
    compiled = kernels.Method(
        objective=OBJECTIVES.get(name, -1),
        per_state=isinstance(settings.get("eta"), str),
        lowest_value=mdp.reward_range[0] / (1.0 - mdp.gamma),
        inner_steps=int(settings["inner_steps"]),
        alpha=_alpha(mdp, name, settings.get("alpha")),
        rule=kernels.TRUST_REGION if method == "constrained" else _ARMIJO_TESTS[test],
        tries=integer("max_tries", settings.get("max_tries", 1)),
        **numbers,
    )
    return Plan(name, method, settings, compiled, inv_eta, family)


def _inverse_eta(mdp: TabularMDP, objective: str, eta: float | str | npt.ArrayLike) -> Array:
    """1/η(s); that of ``"per-state"`` is filled in for every π_t."""
    if not isinstance(eta, str):
        return theory.inverse_eta(mdp, eta)
    one_of("eta, if not in numbers,", eta, theory.RULES)
    if objective != "smdpo":
        raise ValueError(f"{eta} is derived for the softmax representation: smdpo, not {objective}")
    return np.zeros(mdp.n_states)


def _alpha(mdp: TabularMDP, objective: str, alpha: float | str | None) -> float:
    """α; a negative one tells the loops to use 1/β (smdpo), or |α| Σ d(s) max_a A (cpi)."""
    if alpha is None:
        return 0.0
    if isinstance(alpha, str):
        if alpha != "theory" or objective not in ("smdpo", "cpi"):
            raise ValueError(
                f'alpha must be a positive number ("theory" too for smdpo and cpi), not {alpha!r}'
            )
        low, high = mdp.reward_range
        if objective == "smdpo":
            return -1.0
        return -((1.0 - mdp.gamma) ** 2) / (4.0 * (high - low)) if high > low else 0.0
    if objective == "cpi" and alpha > 1.0:
        raise ValueError(f"alpha is the weight of the greedy policy in a mixture, at most 1, not {alpha}")
    return positive("alpha", alpha)


def _initial_logits(mdp: TabularMDP, logits: npt.ArrayLike | None, *, finite: bool) -> Array:
    """θ_0: zeros (the uniform policy) unless given; -inf (an action excluded) is for closed forms only."""
    if logits is None:
        return np.zeros(mdp.reward.shape)
    array = np.array(logits, dtype=np.float64, order="C")
    if array.shape != mdp.reward.shape:
        raise ValueError(f"initial_logits must have shape {mdp.reward.shape}, not {array.shape}")
    if not np.isfinite(array.max(axis=1)).all():
        raise ValueError("initial_logits must give every state at least one finite logit, and no nan or +inf")
    if finite and not np.isfinite(array).all():
        raise ValueError("initial_logits must be finite for gradient methods: no gradient leaves -inf")
    return array


def run(
    mdp: TabularMDP, plan: Plan, iterations: int, start: npt.ArrayLike | None, certify: bool = False
) -> Result:
    """Carry out a plan; small MDPs entirely in compiled code."""
    if plan.family is not None:
        return _run_general(mdp, plan.family, plan, iterations, start)
    logits = _initial_logits(mdp, start, finite=plan.method != "closed_form")
    columns = plan.numbers.inner_steps if plan.method in ("line_search", "constrained") else 1
    values, used = np.empty(iterations), np.full((iterations, columns), np.nan)
    bounds = np.empty(iterations) if certify else None
    compiled = mdp.n_states <= DENSE_LIMIT and not certify
    scratch = np.empty((mdp.n_states, mdp.n_states) if compiled else (0, 0))
    packets = kernels.new_packets(*logits.shape)
    state = State(Evaluation.unknown(np.empty_like(logits)), plan.inv_eta.copy(), scratch, packets)
    loop = LOOPS[plan.method]
    if compiled:
        made = loop(mdp.model, plan.numbers, logits, state, values, used)
        values[made:], used[made:] = values[made - 1], used[made - 1]
    for t in range(0 if compiled else iterations):
        old = mdp.evaluate(softmax(logits, axis=1))
        values[t] = old.value
        # a closed form overwrites the policy
        state = state._replace(at=old._replace(policy=old.policy.copy()))
        loop(mdp.model, plan.numbers, logits, state, values[t : t + 1], used[t : t + 1])
        if bounds is not None:
            new, eta = softmax(logits, axis=1), plan.settings["eta"]
            bounds[t] = theory.lower_bound(mdp, old, new, objective=plan.objective, eta=eta)
    policy = softmax(logits, axis=1)
    value = mdp.evaluate(policy).value
    return Result(
        plan.objective, plan.method, plan.settings, values, value, policy, logits, used, bounds, logits
    )


def _run_general(
    mdp: TabularMDP, family: FMA, plan: Plan, iterations: int, start: npt.ArrayLike | None
) -> Result:
    """Algorithm 1 for any member of the family, in NumPy.

    The inner steps are ω ← ω + α (1 - γ) ∇ℓ_t(ω) from ω = θ_t. The factor 1 - γ turns the unnormalised
    occupancy into the normalised one, so that α means here what it means for the named objectives.
    """
    alpha, parameterization = plan.numbers.alpha, family.for_mdp(mdp)
    theta = parameterization.initial() if start is None else np.array(start, dtype=np.float64)
    values = np.empty(iterations)
    for t in range(iterations):
        evaluation = mdp.evaluate(softmax(parameterization.logits(theta), axis=1))
        values[t] = evaluation.value
        surrogate = family.surrogate(mdp, theta, plan.settings["eta"], evaluation)
        for _ in range(plan.numbers.inner_steps):
            theta = theta + alpha * (1.0 - mdp.gamma) * surrogate.gradient(theta)
    logits = parameterization.logits(theta)
    policy = softmax(logits, axis=1)
    value, used = mdp.evaluate(policy).value, np.full((iterations, 1), alpha)
    return Result(
        plan.objective, plan.method, plan.settings, values, value, policy, logits, used, None, theta
    )
