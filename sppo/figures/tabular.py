"""Learning curves on both environments, PPO's sensitivity, and MDPO's three plateaus."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from sppo.exact import solve
from sppo.figures.figure import Figure, Row, Table, Tables, best_rows, setting_text, stack, where
from sppo.figures.grids import (
    COLORS,
    LABELS,
    TITLES,
    environment,
    grids,
    limits,
    optimal_value,
    swept,
    thinned,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure

#: The conventional form of each algorithm: the one in the main text's learning curves.
CONVENTIONAL = {"smdpo": "fixed", "mdpo": "fixed", "trpo": "constrained", "ppo": "fixed"}
CURVE_INNER_STEPS = 100
COLUMNS = (10, 100, 1000)


def compute_learning_curves(quick: bool, progress: bool) -> dict[str, Table]:
    """The best setting's curve of each algorithm with m = 100 on both environments."""
    rows: list[Row] = []
    settings: list[Row] = []
    for name in TITLES:
        for objective, method in CONVENTIONAL.items():
            result = swept(name, objective, method, CURVE_INNER_STEPS, quick, progress)
            base = {"environment": name, "objective": objective}
            chosen = {"method": method, "optimal_value": optimal_value(name)}
            chosen["setting"] = setting_text(result.best_setting)
            settings.append({**base, **chosen, "final_value": result.best_value})
            curve = result.best_curve
            rows += [{**base, "iteration": t, "value": curve[t]} for t in thinned(curve.size)]
    return {"curves": stack(rows), "settings": stack(settings)}


def draw_learning_curves(tables: Tables) -> MplFigure:
    """One panel per environment."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(TITLES), figsize=(10, 4))
    for axes, (name, title) in zip(panels, TITLES.items(), strict=True):
        settings = where(tables["settings"], environment=name)
        for objective in CONVENTIONAL:
            part = where(tables["curves"], environment=name, objective=objective)
            axes.plot(part["iteration"], part["value"], color=COLORS[objective], label=LABELS[objective])
        axes.axhline(float(settings["optimal_value"][0]), color="black", linewidth=0.8, linestyle="--")
        axes.set_ylim(*limits(name, float(settings["optimal_value"][0])))
        axes.set_title(f"{title}, m = {CURVE_INNER_STEPS}")
        axes.set_xlabel("iteration (environment interactions)")
        axes.set_ylabel(r"$J(\pi_t)$")
        axes.legend(loc="lower right")
    figure.tight_layout()
    return figure


def compute_ppo(quick: bool, progress: bool) -> dict[str, Table]:
    """PPO's final value for every ε with the best α, and the whole grid."""
    grid: list[Row] = []
    for name in TITLES:
        for m in grids(name, quick).inner_steps:
            result = swept(name, "ppo", "fixed", m, quick, progress)
            for (epsilon, alpha), value in zip(
                product(*result.axes.values()), result.final.flat, strict=True
            ):
                setting = {"environment": name, "inner_steps": m, "epsilon": epsilon, "alpha": alpha}
                grid.append({**setting, "final_value": value})
    best = best_rows(grid, "environment", "inner_steps", "epsilon")
    rows = [{**row, "optimal_value": optimal_value(row["environment"])} for row in best]
    return {"sensitivity": stack(rows), "grid": stack(grid)}


def draw_ppo(tables: Tables) -> MplFigure:
    """One panel per environment and number of inner steps."""
    import matplotlib.pyplot as plt

    table = tables["sensitivity"]
    columns = [m for m in COLUMNS if m in np.asarray(table["inner_steps"])]
    figure, grid = plt.subplots(len(TITLES), len(columns), figsize=(4 * len(columns), 6), squeeze=False)
    for row, (name, title) in zip(grid, TITLES.items(), strict=True):
        for axes, m in zip(row, columns, strict=True):
            part = where(table, environment=name, inner_steps=m)
            axes.plot(part["epsilon"], part["final_value"], "o-", markersize=3, color=COLORS["ppo"])
            optimum = float(part["optimal_value"][0])
            axes.axhline(optimum, color="black", linewidth=0.8)
            axes.set_ylim(*limits(name, optimum))
            axes.set_title(f"{title}, m = {m}")
            axes.set_xlabel(r"$\epsilon$")
        row[0].set_ylabel(r"$J(\pi)$ at the end")
    figure.tight_layout()
    return figure


def compute_plateaus(quick: bool, progress: bool) -> dict[str, Table]:
    """Closed-form MDPO with η = 1 on CliffWorld."""
    result = solve(environment("cliffworld"), "mdpo", "closed_form", iterations=2000, eta=1.0)
    return {"curve": {"iteration": np.arange(result.values.size), "value": result.values}}


def draw_plateaus(tables: Tables) -> MplFigure:
    """The grid on the left, the curve with its plateaus γ¹⁰, γ⁸ and γ⁶ on the right."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(1, 1.6))
    _draw_cliff(left)
    curve = tables["curve"]
    right.plot(curve["iteration"], curve["value"], color=COLORS["mdpo"], label=r"MDPO, $\eta = 1$")
    for power, style in ((6, "-"), (8, "--"), (10, ":")):
        label = rf"$0.9^{{{power}}}$" + (" (optimal)" if power == 6 else "")
        right.axhline(0.9**power, color="black", linewidth=0.8, linestyle=style, label=label)
    right.set_ylim(0.0, 0.56)
    right.set_xlabel("iteration")
    right.set_ylabel(r"$J(\pi_t)$")
    right.legend(loc="lower right")
    figure.tight_layout()
    return figure


def _draw_cliff(axes: Axes) -> None:
    names = {0: "Start", 1: "Cliff", 2: "Cliff", 3: "Cliff", 4: "Goal"}
    colors = {"Start": "lightblue", "Cliff": "dimgray", "Goal": "lightgreen"}
    from matplotlib.patches import Rectangle

    for state in range(20):
        x, y = divmod(state, 5)
        name = names.get(state, "")
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colors.get(name, "white"), edgecolor="black"))
        axes.text(
            x + 0.5, y + 0.5, name, ha="center", va="center", color="white" if name == "Cliff" else "black"
        )
    axes.set_xlim(-0.05, 4.05)
    axes.set_ylim(-0.05, 5.05)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title("CliffWorld (and a terminal state after Goal)", fontsize=10)


FIGURES = [
    Figure(
        "learning_curves",
        "best settings on both environments, m = 100",
        compute_learning_curves,
        draw_learning_curves,
    ),
    Figure("ppo_sensitivity", "PPO's final value against its clip", compute_ppo, draw_ppo),
    Figure(
        "mdpo_plateaus",
        "CliffWorld and the three plateaus of closed-form MDPO",
        compute_plateaus,
        draw_plateaus,
    ),
]
