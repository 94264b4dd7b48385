"""Learning curves on both environments, PPO's sensitivity, and MDPO's three plateaus."""

from __future__ import annotations

from itertools import product

import numpy as np

from sppo.exact import solve
from sppo.exact.solver import listed
from sppo.figures import grids
from sppo.figures.figure import Axes, Figure, Picture, Row, Table, Tables, panels, rows, stack, where
from sppo.figures.grids import COLORS, COLUMNS, LABELS, TITLES

#: The conventional form of each algorithm: the one in the main text's learning curves.
CONVENTIONAL = {"smdpo": "fixed", "mdpo": "fixed", "trpo": "constrained", "ppo": "fixed"}
CURVE_INNER_STEPS = 100


def compute_learning_curves(quick: bool, progress: bool) -> dict[str, Table]:
    """The best setting's curve of each algorithm with m = 100 on both environments."""
    curves: list[Row] = []
    settings: list[Row] = []
    for name in TITLES:
        for objective, method in CONVENTIONAL.items():
            result = grids.swept(name, objective, method, CURVE_INNER_STEPS, quick, progress)
            base = {"environment": name, "objective": objective}
            chosen = {"method": method, "optimal_value": grids.optimal_value(name)}
            chosen["setting"] = listed(result.best_setting)
            settings.append({**base, **chosen, "final_value": result.best_value})
            curves += grids.curve_rows(base, result.best_curve)
    return {"curves": stack(curves), "settings": stack(settings)}


def draw_learning_curves(tables: Tables) -> Picture:
    """One panel per environment."""
    figure, (row,) = panels(1, len(TITLES), 10, 4)
    for axes, (name, title) in zip(row, TITLES.items(), strict=True):
        for objective in CONVENTIONAL:
            part = where(tables["curves"], environment=name, objective=objective)
            axes.plot(part["iteration"], part["value"], color=COLORS[objective], label=LABELS[objective])
        optimum = where(tables["settings"], environment=name)["optimal_value"][0]
        grids.finish(axes, name, optimum, "--", title=f"{title}, m = {CURVE_INNER_STEPS}")
        axes.set(xlabel="iteration (environment interactions)", ylabel=r"$J(\pi_t)$")
        axes.legend(loc="lower right")
    return figure


def compute_ppo(quick: bool, progress: bool) -> dict[str, Table]:
    """PPO's final value for every ε with the best α, and the whole grid."""
    grid: list[Row] = []
    for name in TITLES:
        for m in grids.inner_steps(quick):
            result = grids.swept(name, "ppo", "fixed", m, quick, progress)
            epsilons, alphas = zip(*product(*result.axes.values()), strict=True)
            base = {"environment": name, "inner_steps": m}
            grid += rows(base, epsilon=epsilons, alpha=alphas, final_value=result.final.flat)
    best = grids.best_rows(grid, "environment", "inner_steps", "epsilon")
    best = [{**row, "optimal_value": grids.optimal_value(row["environment"])} for row in best]
    return {"sensitivity": stack(best), "grid": stack(grid)}


def draw_ppo(tables: Tables) -> Picture:
    """One panel per environment and number of inner steps."""
    table = tables["sensitivity"]
    columns = [m for m in COLUMNS if m in np.asarray(table["inner_steps"])]
    figure, grid = panels(len(TITLES), len(columns), 4 * len(columns), 6)
    for row, (name, title) in zip(grid, TITLES.items(), strict=True):
        for axes, m in zip(row, columns, strict=True):
            part = where(table, environment=name, inner_steps=m)
            axes.plot(part["epsilon"], part["final_value"], "o-", markersize=3, color=COLORS["ppo"])
            labels = {"title": f"{title}, m = {m}", "xlabel": r"$\epsilon$"}
            grids.finish(axes, name, part["optimal_value"][0], **labels)
        row[0].set_ylabel(r"$J(\pi)$ at the end")
    return figure


def compute_plateaus(quick: bool, progress: bool) -> dict[str, Table]:
    """Closed-form MDPO with η = 1 on CliffWorld."""
    result = solve(grids.environment("cliffworld"), "mdpo", "closed_form", iterations=2000, eta=1.0)
    return {"curve": {"iteration": np.arange(result.values.size), "value": result.values}}


def draw_plateaus(tables: Tables) -> Picture:
    """The grid on the left, the curve with its plateaus γ¹⁰, γ⁸ and γ⁶ on the right."""
    figure, ((left, right),) = panels(1, 2, 10, 4, width_ratios=(1, 1.6))
    _draw_cliff(left)
    curve = tables["curve"]
    right.plot(curve["iteration"], curve["value"], color=COLORS["mdpo"], label=r"MDPO, $\eta = 1$")
    for power, style in ((6, "-"), (8, "--"), (10, ":")):
        label = rf"$0.9^{{{power}}}$" + (" (optimal)" if power == 6 else "")
        right.axhline(0.9**power, color="black", linewidth=0.8, linestyle=style, label=label)
    right.set(ylim=(0.0, 0.56), xlabel="iteration", ylabel=r"$J(\pi_t)$")
    right.legend(loc="lower right")
    return figure


def _draw_cliff(axes: Axes) -> None:
    names = {0: "Start", 1: "Cliff", 2: "Cliff", 3: "Cliff", 4: "Goal"}
    colors = {"Start": "lightblue", "Cliff": "dimgray", "Goal": "lightgreen"}
    from matplotlib.patches import Rectangle

    for state in range(20):
        x, y = divmod(state, 5)
        name = names.get(state, "")
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colors.get(name, "white"), edgecolor="black"))
        ink = "white" if name == "Cliff" else "black"
        axes.text(x + 0.5, y + 0.5, name, ha="center", va="center", color=ink)
    axes.set(xlim=(-0.05, 4.05), ylim=(-0.05, 5.05), aspect="equal")
    axes.axis("off")
    axes.set_title("CliffWorld (and a terminal state after Goal)", fontsize=10)


_CURVES = "best settings on both environments, m = 100"
_PLATEAUS = "CliffWorld and the three plateaus of closed-form MDPO"
FIGURES = [
    Figure("learning_curves", _CURVES, compute_learning_curves, draw_learning_curves),
    Figure("ppo_sensitivity", "PPO's final value against its clip", compute_ppo, draw_ppo),
    Figure("mdpo_plateaus", _PLATEAUS, compute_plateaus, draw_plateaus),
]
