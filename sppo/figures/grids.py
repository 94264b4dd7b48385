"""The paper's hyper-parameter grids, and sweeps over them shared between figures of one run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sppo.exact import SweepResult, TabularMDP, cliff_world, deep_sea_treasure, sweep
from sppo.exact.evaluation import Array
from sppo.figures.figure import Axes, Row, rows

OBJECTIVES = ("smdpo", "mdpo", "trpo")
LABELS = {"smdpo": "sMDPO", "mdpo": "MDPO", "trpo": "TRPO", "ppo": "PPO"}
COLORS = {"smdpo": "tab:blue", "mdpo": "tab:red", "trpo": "tab:green", "ppo": "tab:orange"}
#: The numbers of inner steps with a panel of their own.
COLUMNS = (10, 100, 1000)
#: Curves often coincide: thin lines are drawn over thick ones.
WIDTHS = {"smdpo": 4.0, "mdpo": 2.4, "trpo": 1.1, "ppo": 1.5}
TITLES = {"cliffworld": "CliffWorld", "deepseatreasure": "DeepSeaTreasure"}


#: What is swept for each way of optimising; PPO has no divergence, and ε in place of η.
AXES = {"fixed": ("eta", "alpha"), "line_search": ("eta", "armijo"), "constrained": ("delta",)}


def powers(first: int, last: int, step: int = 1) -> tuple[float, ...]:
    """2^first, ..., 2^last."""
    return tuple(2.0**k for k in range(first, last + 1, step))


def grids(environment: str, quick: bool) -> dict[str, tuple[float, ...]]:
    """Appendix E's grids; with ``quick`` every few points of them."""
    top = 3 if environment == "cliffworld" else -2
    if quick:
        return {
            "eta": powers(-13, -1, 3),
            "alpha": powers(-12, top, 3),
            "epsilon": (0.01, 0.2, 0.5, 0.9),
            "armijo": (0.0, 0.5),
            "delta": powers(-24, -2, 4),
        }
    return {
        "eta": powers(-13, -1),
        "alpha": powers(-13, top),
        "epsilon": (0.01, *(k / 10 for k in range(1, 10)), 0.99),
        "armijo": (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99),
        "delta": powers(-24, -2, 2),
    }


def inner_steps(quick: bool) -> tuple[int, ...]:
    """The numbers m of inner steps."""
    return (1, 10, 100) if quick else (1, 10, 100, 1000)


@cache
def environment(name: str) -> TabularMDP:
    """The MDP, made once."""
    return cliff_world() if name == "cliffworld" else deep_sea_treasure()


@cache
def swept(
    name: str, objective: str, method: str, m: int, quick: bool, progress: bool, armijo_test: str = ""
) -> SweepResult:
    """The paper's sweep of one objective and method at one number m of inner steps."""
    iterations = {"cliffworld": (2000, 300), "deepseatreasure": (200, 100)}[name][quick]
    axes = ("epsilon", "alpha") if objective == "ppo" else AXES[method]
    chosen: dict[str, Any] = {axis: grids(name, quick)[axis] for axis in axes}
    if method == "line_search":
        chosen["armijo_test"] = armijo_test
    chosen |= {"iterations": iterations, "inner_steps": m, "progress": progress}
    return sweep(environment(name), objective, method, **chosen)


def optimal_value(name: str) -> float:
    """J*."""
    return environment(name).optimal().value


def best_rows(table: Sequence[Row], *keys: str) -> list[Row]:
    """Of all rows that agree in ``keys`` the first with the highest ``final_value``."""
    best: dict[tuple[object, ...], Row] = {}
    for row in table:
        group = tuple(row[key] for key in keys)
        if group not in best or row["final_value"] > best[group]["final_value"]:
            best[group] = row
    return list(best.values())


def curve_rows(base: Row, curve: Array, points: int = 400) -> list[Row]:
    """About ``points`` of the iterations of a learning curve, evenly spaced, first and last included."""
    last = curve.size - 1
    times = sorted({*range(0, curve.size, max(1, curve.size // points)), last})
    return rows(base, iteration=times, value=curve[times])


def finish(axes: Axes, name: str, optimum: float, style: str = "-", **labels: str) -> None:
    """The optimal value as a line, and an axis of J that ends a little above it."""
    axes.axhline(optimum, color="black", linewidth=0.8, linestyle=style)
    axes.set(ylim=(-0.02 if name == "cliffworld" else 0.0, optimum * 1.06), **labels)
