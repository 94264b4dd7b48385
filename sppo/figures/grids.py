"""The paper's hyper-parameter grids, and sweeps over them shared between figures of one run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sppo.exact import SweepResult, TabularMDP, cliff_world, deep_sea_treasure, sweep

OBJECTIVES = ("smdpo", "mdpo", "trpo")
LABELS = {"smdpo": "sMDPO", "mdpo": "MDPO", "trpo": "TRPO", "ppo": "PPO"}
COLORS = {"smdpo": "tab:blue", "mdpo": "tab:red", "trpo": "tab:green", "ppo": "tab:orange"}
#: Curves often coincide: thin lines are drawn over thick ones.
WIDTHS = {"smdpo": 4.0, "mdpo": 2.4, "trpo": 1.1, "ppo": 1.5}
TITLES = {"cliffworld": "CliffWorld", "deepseatreasure": "DeepSeaTreasure"}


@dataclass(frozen=True)
class Grids:
    """What is swept for one environment."""

    iterations: int
    inner_steps: tuple[int, ...]
    eta: tuple[float, ...]
    alpha: tuple[float, ...]
    epsilon: tuple[float, ...]
    armijo: tuple[float, ...]
    delta: tuple[float, ...]


def powers(first: int, last: int, step: int = 1) -> tuple[float, ...]:
    """2^first, ..., 2^last."""
    return tuple(2.0**k for k in range(first, last + 1, step))


def grids(environment: str, quick: bool) -> Grids:
    """Appendix E's grids; with ``quick`` every few points of them, and fewer iterations."""
    cliff = environment == "cliffworld"
    top = 3 if cliff else -2
    if quick:
        return Grids(
            300 if cliff else 100,
            (1, 10, 100),
            powers(-13, -1, 3),
            powers(-12, top, 3),
            (0.01, 0.2, 0.5, 0.9),
            (0.0, 0.5),
            powers(-24, -2, 4),
        )
    return Grids(
        2000 if cliff else 200,
        (1, 10, 100, 1000),
        powers(-13, -1),
        powers(-13, top),
        (0.01, *(k / 10 for k in range(1, 10)), 0.99),
        (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99),
        powers(-24, -2, 2),
    )


@cache
def environment(name: str) -> TabularMDP:
    """The MDP, made once."""
    return cliff_world() if name == "cliffworld" else deep_sea_treasure()


@cache
def swept(
    name: str, objective: str, method: str, m: int, quick: bool, progress: bool, armijo_test: str = ""
) -> SweepResult:
    """The paper's sweep of one objective and method at one number m of inner steps."""
    g = grids(name, quick)
    axes: dict[str, Any] = {"delta": g.delta} if method == "constrained" else {"eta": g.eta}
    if objective == "ppo":
        axes = {"epsilon": g.epsilon}
    if method == "fixed":
        axes["alpha"] = g.alpha
    if method == "line_search":
        axes |= {"armijo": g.armijo, "armijo_test": armijo_test}
    axes |= {"iterations": g.iterations, "inner_steps": m, "progress": progress}
    return sweep(environment(name), objective, method, **axes)


def optimal_value(name: str) -> float:
    """J*."""
    return environment(name).optimal().value


def limits(name: str, optimum: float) -> tuple[float, float]:
    """Of the axis of J."""
    return (-0.02 if name == "cliffworld" else 0.0, optimum * 1.06)


def thinned(iterations: int, points: int = 400) -> list[int]:
    """About ``points`` of the iterations 0 ... iterations - 1, evenly spaced, first and last included."""
    step = max(1, iterations // points)
    return np.unique(np.append(np.arange(0, iterations, step), iterations - 1)).tolist()
