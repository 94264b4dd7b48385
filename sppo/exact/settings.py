"""Which hyper-parameters go with which objective and method, and what they may be.

One table says what makes sense; everything else raises with the reason. The result is a :class:`Plan`, the
form in which the compiled loops take it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sppo.arguments import given, integer, one_of, positive
from sppo.exact import kernels, outer_loop, theory
from sppo.exact.evaluation import Array
from sppo.exact.framework import FMA
from sppo.exact.kernels import Method
from sppo.exact.mdp import TabularMDP

METHODS = ("closed_form", "fixed", "line_search", "constrained")
NAMES = ("smdpo", "mdpo", "trpo", "ppo", "pg", "npg", "cpi")

_SEARCH = {"first_step": 10.0, "decay": 0.9, "max_tries": 1000}
#: (objective, method) -> (required hyper-parameters, optional ones with their defaults)
COMBINATIONS: dict[tuple[str, str], tuple[tuple[str, ...], dict[str, float | str]]] = {
    ("smdpo", "closed_form"): (("eta",), {"floor": 0.0}),
    ("mdpo", "closed_form"): (("eta",), {}),
    ("npg", "closed_form"): (("eta",), {}),
    ("cpi", "closed_form"): (("alpha",), {}),
    ("ppo", "fixed"): (("alpha", "epsilon"), {}),
    ("pg", "fixed"): (("alpha",), {}),
    ("fma", "fixed"): (("eta", "alpha"), {}),
}
for _name in ("smdpo", "mdpo", "trpo"):
    COMBINATIONS[_name, "fixed"] = (("eta", "alpha"), {})
    COMBINATIONS[_name, "line_search"] = (
        ("eta",),
        {"armijo": 0.0, "armijo_test": "regularized", "warm_start": 2.0, **_SEARCH},
    )
    COMBINATIONS[_name, "constrained"] = (("delta",), {**_SEARCH, "first_step": 1e5, "cutoff": 1e-15})

_REASONS = {
    "trpo closed_form": "its optimality condition is a non-linear system; use another method",
    "ppo closed_form": "a clipped objective has no unique maximiser; use fixed",
    "ppo line_search": "there is no divergence to regularise with, only a clip; use fixed",
    "ppo constrained": "there is no divergence to constrain, only a clip; use fixed",
    "pg closed_form": "the policy gradient is a gradient step; use fixed",
    "npg fixed": "the natural gradient is the closed form of the direct representation; use closed_form",
    "cpi fixed": "conservative policy iteration mixes policies, it follows no gradient; use closed_form",
}
_STEP_KINDS = {
    "smdpo": outer_loop.SMDPO_STEP,
    "mdpo": outer_loop.EXPONENTIAL_STEP,
    "npg": outer_loop.EXPONENTIAL_STEP,
    "cpi": outer_loop.MIXTURE_STEP,
}
#: the policy gradient is MDPO's with an infinite η
_OBJECTIVES = {"smdpo": kernels.SMDPO, "trpo": kernels.TRPO, "ppo": kernels.PPO}
_ARMIJO_TESTS = {"regularized": kernels.ARMIJO, "published": kernels.PUBLISHED}

_Range = tuple[Callable[[float], bool], str]
_POSITIVE: _Range = (lambda x: 0.0 < x < math.inf, "positive and finite")
_SHARE: _Range = (lambda x: 0.0 <= x < 1.0, "in [0, 1)")
_RANGES: dict[str, _Range] = {
    "epsilon": (lambda x: x > 0.0, "positive"),
    "floor": _SHARE,
    "first_step": _POSITIVE,
    "delta": _POSITIVE,
    "cutoff": _SHARE,
    "armijo": _SHARE,
    "decay": (lambda x: 0.0 < x < 1.0, "in (0, 1)"),
    "warm_start": (lambda x: 0.0 <= x < math.inf, "a finite factor, or 0 for none"),
}
#: α < 0 tells the loops to use the theoretical step size.
THEORY = -1.0


@dataclass(frozen=True)
class Plan:
    """A validated run: what the compiled loops need besides the MDP and the start."""

    objective: str
    method: str
    settings: dict[str, npt.ArrayLike]
    numbers: Method
    inv_eta: Array
    family: FMA | None = None


def make_plan(mdp: TabularMDP, objective: str | FMA, method: str, values: dict[str, Any]) -> Plan:
    """Check the combination and its hyper-parameters, ``inner_steps`` among them (``None``: not given)."""
    family = objective if isinstance(objective, FMA) else None
    name = objective if isinstance(objective, str) else "fma"
    if family is None and name not in NAMES:
        raise ValueError(f"objective must be one of {', '.join(NAMES)} or an FMA instance, not {name!r}")
    required, optional = _combination(name, method)
    where, optional = f"solve(objective={name!r}, method={method!r})", {**optional, "inner_steps": 1}
    settings = {**optional, **given(where, values, required, optional)}
    if integer("inner_steps", settings["inner_steps"]) > 1 and (method == "closed_form" or name == "pg"):
        raise ValueError(f"{name} with {method} makes one update per iteration: inner_steps must be 1")
    inv_eta = _inverse_eta(mdp, name, settings.get("eta"))
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
    kinds = _STEP_KINDS if method == "closed_form" else _OBJECTIVES
    compiled = Method(
        objective=kinds.get(name, kernels.MDPO),
        per_state=isinstance(settings.get("eta"), str),
        inner_steps=int(settings["inner_steps"]),
        alpha=_alpha(mdp, name, settings.get("alpha")),
        rule=kernels.TRUST_REGION if method == "constrained" else _ARMIJO_TESTS[test],
        tries=integer("max_tries", settings.get("max_tries", 1)),
        **numbers,
    )
    return Plan(name, method, settings, compiled, inv_eta, family)


def _combination(name: str, method: str) -> tuple[tuple[str, ...], dict[str, float | str]]:
    one_of("method", method, METHODS)
    if (name, method) not in COMBINATIONS:
        possible = " and ".join(m for o, m in COMBINATIONS if o == name)
        reason = _REASONS.get(f"{name} {method}", f"{name} is defined for {possible} only")
        raise ValueError(f"{name} with {method} makes no sense: {reason}")
    return COMBINATIONS[name, method]


def _inverse_eta(mdp: TabularMDP, objective: str, eta: float | str | npt.ArrayLike | None) -> Array:
    if eta is None:
        return np.zeros(mdp.n_states)
    if isinstance(eta, str):
        theory.check_rule(eta)
        if objective != "smdpo":
            raise ValueError(
                'eta="per-state" is derived for the softmax representation (smdpo); '
                f"{objective} has no such bound"
            )
        return np.zeros(mdp.n_states)
    array = np.asarray(eta, dtype=np.float64)
    if array.ndim and array.shape != (mdp.n_states,):
        raise ValueError(
            f"eta must be a number or have one entry per state, ({mdp.n_states},), not {array.shape}"
        )
    if not np.all(array > 0.0):
        raise ValueError(f"eta must be positive, not {eta}")
    # an infinite η is allowed: no regularisation
    return np.broadcast_to(1.0 / array, (mdp.n_states,)).copy()


def _alpha(mdp: TabularMDP, objective: str, alpha: float | str | None) -> float:
    if alpha is None:
        return 0.0
    if isinstance(alpha, str):
        if alpha != "theory" or objective not in ("smdpo", "cpi"):
            raise ValueError(
                f'alpha must be a positive number ("theory" too for smdpo and cpi), not {alpha!r}'
            )
        if objective == "smdpo":
            return THEORY
        low, high = mdp.reward_range
        return -((1.0 - mdp.gamma) ** 2) / (4.0 * (high - low)) if high > low else 0.0
    if objective == "cpi" and alpha > 1.0:
        raise ValueError(f"alpha is the weight of the greedy policy in a mixture, at most 1, not {alpha}")
    return positive("alpha", alpha)


def initial_logits(mdp: TabularMDP, logits: npt.ArrayLike | None, *, finite: bool) -> Array:
    """θ_0: zeros (the uniform policy) unless given; -inf (an action excluded) is for closed forms only."""
    if logits is None:
        return np.zeros(mdp.reward.shape)
    array = np.array(logits, dtype=np.float64, order="C")
    if array.shape != mdp.reward.shape:
        raise ValueError(f"initial_logits must have shape {mdp.reward.shape}, not {array.shape}")
    if np.isnan(array).any() or np.isposinf(array).any() or np.isneginf(array).all(axis=1).any():
        raise ValueError("initial_logits must give every state at least one finite logit, and no nan or +inf")
    if finite and np.isneginf(array).any():
        raise ValueError("initial_logits must be finite for gradient methods: no gradient leaves -inf")
    return array
