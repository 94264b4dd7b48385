"""One front door: ``solve(mdp, objective, method, ...)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from sppo.arguments import integer
from sppo.exact import outer_loop
from sppo.exact.evaluation import Array
from sppo.exact.framework import FMA
from sppo.exact.mdp import DENSE_LIMIT, TabularMDP
from sppo.exact.settings import Plan, initial_logits, make_plan
from sppo.exact.theory import ROUNDING, lower_bound

_HYPER_PARAMETERS = (
    *("eta", "alpha", "delta", "epsilon", "armijo", "armijo_test", "first_step", "warm_start", "decay"),
    *("max_tries", "floor", "cutoff", "inner_steps"),
)


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
        slack = ROUNDING * max(1.0, float(np.max(np.abs(path))))
        return bool(
            np.all(path[1:] >= self.lower_bounds - slack) and np.all(self.lower_bounds >= path[:-1] - slack)
        )

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
    integer("iterations", iterations)
    values = {name: value for name, value in locals().items() if name in _HYPER_PARAMETERS}
    plan = make_plan(mdp, objective, method, values)
    if certify and (plan.objective not in ("smdpo", "mdpo") or "eta" not in plan.settings):
        raise ValueError("certify needs a lower bound: smdpo or mdpo with an eta")
    return run(mdp, plan, iterations, initial_logits, certify)


def run(
    mdp: TabularMDP,
    plan: Plan,
    iterations: int,
    start: npt.ArrayLike | None = None,
    certify: bool = False,
    record: bool = True,
) -> Result:
    """Run a validated plan; small MDPs entirely in compiled code. ``record`` keeps inner step sizes."""
    if plan.family is not None:
        return _run_general(mdp, plan.family, plan, iterations, start)
    logits = initial_logits(mdp, start, finite=plan.method != "closed_form")
    compiled = mdp.n_states <= DENSE_LIMIT and not certify
    state = outer_loop.new_state(mdp.n_states, mdp.n_actions, plan.inv_eta, dense=compiled)
    searches = plan.method in ("line_search", "constrained")
    columns = (plan.numbers.inner_steps if record else 0) if searches else 1
    values, used = np.empty(iterations), np.full((iterations, columns), np.nan)
    lowest_value = mdp.reward_range[0] / (1.0 - mdp.gamma)
    problem = outer_loop.Problem(*mdp.csr, mdp.reward, mdp.start, mdp.gamma, lowest_value, not compiled)
    loop = outer_loop.LOOPS[plan.method]
    bounds = np.empty(iterations) if certify else None
    if compiled:
        made = loop(problem, plan.numbers, logits, state, values, used)
        values[made:], used[made:] = values[made - 1], used[made - 1]
    else:
        for t in range(iterations):
            evaluation = mdp.evaluate_unchecked(softmax(logits, axis=1))
            values[t] = evaluation.value
            for name in ("policy", "v", "q", "advantage", "occupancy"):
                getattr(state, name)[...] = getattr(evaluation, name)
            loop(problem, plan.numbers, logits, state, values[t : t + 1], used[t : t + 1])
            if bounds is not None:
                policy, eta = softmax(logits, axis=1), plan.settings["eta"]
                bounds[t] = lower_bound(mdp, evaluation, policy, objective=plan.objective, eta=eta)
    policy = softmax(logits, axis=1)
    value = mdp.evaluate_unchecked(policy).value
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
