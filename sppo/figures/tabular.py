"""The paper's tabular experiments: ablations, learning curves, PPO's sensitivity, MDPO's three plateaus."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from sppo.exact import SweepResult, TabularMDP, cliff_world, deep_sea_treasure, solve, sweep
from sppo.exact.evaluation import Array
from sppo.exact.solver import listed
from sppo.figures.figure import Axes, Figure, Picture, Row, Table, Tables, panels, rows, stack, where


class Environment(NamedTuple):
    """A problem with the paper's protocol: iterations (in full, quick), log2 of the largest α; axis of J."""

    title: str
    mdp: TabularMDP
    iterations: tuple[int, int]
    largest_alpha: int
    lowest_value: float


ENVIRONMENTS = {
    "cliffworld": Environment("CliffWorld", cliff_world(), (2000, 300), 3, -0.02),
    "deepseatreasure": Environment("DeepSeaTreasure", deep_sea_treasure(), (200, 100), -2, 0.0),
}
#: objective -> (label, colour, width of its line: curves often coincide, thin ones are drawn over thick ones)
STYLES = {
    "smdpo": ("sMDPO", "tab:blue", 4.0),
    "mdpo": ("MDPO", "tab:red", 2.4),
    "trpo": ("TRPO", "tab:green", 1.1),
    "ppo": ("PPO", "tab:orange", 1.5),
}
#: The numbers of inner steps with a panel of their own.
COLUMNS = (10, 100, 1000)
#: The conventional form of each algorithm: the one in the main text's learning curves.
CONVENTIONAL = {"smdpo": "fixed", "mdpo": "fixed", "trpo": "constrained", "ppo": "fixed"}
CURVE_INNER_STEPS = 100
#: What is swept for each way of optimising; PPO has no divergence, and ε in place of η.
AXES = {"fixed": ("eta", "alpha"), "line_search": ("eta", "armijo"), "constrained": ("delta",)}
#: Of the ablations: variant -> (method, Armijo test, swept parameter, row of the figure, line style, label)
VARIANTS = {
    "fixed": ("fixed", "", "eta", 0, "-", "Regularized + fixed step-size"),
    "line_search": ("line_search", "regularized", "eta", 1, "-", "Regularized + line search"),
    "line_search_published": ("line_search", "published", "eta", 1, "--", ""),
    "constrained": ("constrained", "", "delta", 2, "-", "Constrained + line search"),
}


def powers(first: int, last: int, step: int = 1) -> tuple[float, ...]:
    """2^first, ..., 2^last."""
    return tuple(2.0**k for k in range(first, last + 1, step))


def _grids(environment: str, quick: bool) -> dict[str, tuple[float, ...]]:
    """Appendix E's grids; with ``quick`` every few points of them."""
    step, top = 3 if quick else 1, ENVIRONMENTS[environment].largest_alpha
    return {
        "eta": powers(-13, -1, step),
        "alpha": powers(-12 if quick else -13, top, step),
        "epsilon": (0.01, 0.2, 0.5, 0.9) if quick else (0.01, *(k / 10 for k in range(1, 10)), 0.99),
        "armijo": (0.0, 0.5) if quick else (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99),
        "delta": powers(-24, -2, 4 if quick else 2),
    }


def _inner_steps(quick: bool) -> tuple[int, ...]:
    return (1, 10, 100) if quick else (1, 10, 100, 1000)


@cache
def _swept(
    name: str, objective: str, method: str, m: int, quick: bool, progress: bool, armijo_test: str = ""
) -> SweepResult:
    """The paper's sweep of one objective and method at one number m of inner steps, shared by the figures."""
    axes = ("epsilon", "alpha") if objective == "ppo" else AXES[method]
    chosen: dict[str, Any] = {axis: _grids(name, quick)[axis] for axis in axes}
    if method == "line_search":
        chosen["armijo_test"] = armijo_test
    mdp, iterations = ENVIRONMENTS[name].mdp, ENVIRONMENTS[name].iterations[quick]
    return sweep(mdp, objective, method, iterations=iterations, inner_steps=m, progress=progress, **chosen)


def _best_rows(table: Sequence[Row], *keys: str) -> list[Row]:
    """Of all rows that agree in ``keys`` the first with the highest ``final_value``."""
    best: dict[tuple[object, ...], Row] = {}
    for row in table:
        group = tuple(row[key] for key in keys)
        if group not in best or row["final_value"] > best[group]["final_value"]:
            best[group] = row
    return list(best.values())


def _curve_rows(base: Row, curve: Array, points: int = 400) -> list[Row]:
    """About ``points`` of the iterations of a learning curve, evenly spaced, first and last included."""
    times = sorted({*range(0, curve.size, max(1, curve.size // points)), curve.size - 1})
    return rows(base, iteration=times, value=curve[times])


def _plot(axes: Axes, table: Table, x: str, y: str, style: str = "-", **options: Any) -> None:
    """A line per objective."""
    for objective, (label, colour, width) in STYLES.items():
        part = where(table, objective=objective)
        if part.size:
            axes.plot(part[x], part[y], style, color=colour, label=label, **{"linewidth": width, **options})


def _finish(axes: Axes, name: str, optimum: float, style: str = "-", **labels: str) -> None:
    """The optimal value as a line, and an axis of J that ends a little above it."""
    axes.axhline(optimum, color="black", linewidth=0.8, linestyle=style)
    axes.set(ylim=(ENVIRONMENTS[name].lowest_value, optimum * 1.06), **labels)


def compute_learning_curves(quick: bool, progress: bool) -> dict[str, Table]:
    """The best setting's curve of each algorithm with m = 100 on both environments."""
    curves: list[Row] = []
    settings: list[Row] = []
    for (name, environment), (objective, method) in product(ENVIRONMENTS.items(), CONVENTIONAL.items()):
        result = _swept(name, objective, method, CURVE_INNER_STEPS, quick, progress)
        base = {"environment": name, "objective": objective}
        chosen = {"method": method, "optimal_value": environment.mdp.optimal().value}
        chosen["setting"] = listed(result.best_setting)
        settings.append({**base, **chosen, "final_value": result.best_value})
        curves += _curve_rows(base, result.best_curve)
    return {"curves": stack(curves), "settings": stack(settings)}


def draw_learning_curves(tables: Tables) -> Picture:
    """One panel per environment."""
    figure, (row,) = panels(1, len(ENVIRONMENTS), 10, 4)
    for axes, (name, environment) in zip(row, ENVIRONMENTS.items(), strict=True):
        _plot(axes, where(tables["curves"], environment=name), "iteration", "value", linewidth=1.5)
        optimum = where(tables["settings"], environment=name)["optimal_value"][0]
        _finish(axes, name, optimum, "--", title=f"{environment.title}, m = {CURVE_INNER_STEPS}")
        axes.set(xlabel="iteration (environment interactions)", ylabel=r"$J(\pi_t)$")
        axes.legend(loc="lower right")
    return figure


def compute_ppo(quick: bool, progress: bool) -> dict[str, Table]:
    """PPO's final value for every ε with the best α, and the whole grid."""
    grid: list[Row] = []
    for name, m in product(ENVIRONMENTS, _inner_steps(quick)):
        result = _swept(name, "ppo", "fixed", m, quick, progress)
        epsilons, alphas = zip(*product(*result.axes.values()), strict=True)
        base = {"environment": name, "inner_steps": m}
        grid += rows(base, epsilon=epsilons, alpha=alphas, final_value=result.final.flat)
    best = _best_rows(grid, "environment", "inner_steps", "epsilon")
    optima = {name: environment.mdp.optimal().value for name, environment in ENVIRONMENTS.items()}
    best = [{**row, "optimal_value": optima[row["environment"]]} for row in best]
    return {"sensitivity": stack(best), "grid": stack(grid)}


def draw_ppo(tables: Tables) -> Picture:
    """One panel per environment and number of inner steps."""
    table = tables["sensitivity"]
    columns = [m for m in COLUMNS if m in table["inner_steps"]]
    figure, grid = panels(len(ENVIRONMENTS), len(columns), 4 * len(columns), 6)
    for row, (name, environment) in zip(grid, ENVIRONMENTS.items(), strict=True):
        for axes, m in zip(row, columns, strict=True):
            part = where(table, environment=name, inner_steps=m)
            axes.plot(part["epsilon"], part["final_value"], "o-", markersize=3, color=STYLES["ppo"][1])
            labels = {"title": f"{environment.title}, m = {m}", "xlabel": r"$\epsilon$"}
            _finish(axes, name, part["optimal_value"][0], **labels)
        row[0].set_ylabel(r"$J(\pi)$ at the end")
    return figure


def compute_plateaus(quick: bool, progress: bool) -> dict[str, Table]:
    """Closed-form MDPO with η = 1 on CliffWorld."""
    values = solve(ENVIRONMENTS["cliffworld"].mdp, "mdpo", "closed_form", iterations=2000, eta=1.0).values
    return {"curve": stack(rows({}, iteration=range(values.size), value=values))}


def draw_plateaus(tables: Tables) -> Picture:
    """The grid on the left, the curve with its plateaus γ¹⁰, γ⁸ and γ⁶ on the right."""
    figure, ((left, right),) = panels(1, 2, 10, 4, width_ratios=(1, 1.6))
    _draw_cliff(left)
    curve = tables["curve"]
    right.plot(curve["iteration"], curve["value"], color=STYLES["mdpo"][1], label=r"MDPO, $\eta = 1$")
    for power, style in ((6, "-"), (8, "--"), (10, ":")):
        label = rf"$0.9^{{{power}}}$" + (" (optimal)" if power == 6 else "")
        right.axhline(0.9**power, color="black", linewidth=0.8, linestyle=style, label=label)
    right.set(ylim=(0.0, 0.56), xlabel="iteration", ylabel=r"$J(\pi_t)$")
    right.legend(loc="lower right")
    return figure


def _draw_cliff(axes: Axes) -> None:
    from matplotlib.patches import Rectangle

    names = {0: "Start", 1: "Cliff", 2: "Cliff", 3: "Cliff", 4: "Goal"}
    colours = {"Start": "lightblue", "Cliff": "dimgray", "Goal": "lightgreen"}
    for state in range(20):
        x, y = divmod(state, 5)
        name = names.get(state, "")
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colours.get(name, "white"), edgecolor="black"))
        ink = "white" if name == "Cliff" else "black"
        axes.text(x + 0.5, y + 0.5, name, ha="center", va="center", color=ink)
    axes.set(xlim=(-0.05, 4.05), ylim=(-0.05, 5.05), aspect="equal")
    axes.axis("off")
    axes.set_title("CliffWorld (and a terminal state after Goal)", fontsize=10)


def _ablation_rows(result: SweepResult, base: Row) -> list[Row]:
    """Every run of a sweep; the trust region's has one parameter only."""
    axes = {**result.axes, "none": (np.nan,)}
    first, second = list(axes)[:2]
    values, seconds = zip(*product(axes[first], axes[second]), strict=True)
    columns = {"parameter_value": values, "second": [second] * len(values), "second_value": seconds}
    return rows({**base, "parameter": first}, **columns, final_value=result.final.flat)


def compute_ablation(environment: str, quick: bool, progress: bool) -> dict[str, Table]:
    """Tables: ``sensitivity`` (what is drawn), ``grid`` (every run), ``curves`` (best of each variant)."""
    grid: list[Row] = []
    curves: list[Row] = []
    for (variant, (method, test, *_)), objective in product(VARIANTS.items(), ("smdpo", "mdpo", "trpo")):
        base: Row = {"variant": variant, "objective": objective}
        results = {}
        for m in _inner_steps(quick):
            # the trust region saturates after a few steps; the paper did not run it with m = 1000 either
            if method != "constrained" or m <= 100:
                results[m] = _swept(environment, objective, method, m, quick, progress, test)
                grid += _ablation_rows(results[m], {**base, "inner_steps": m})
        m = max(results, key=lambda m: (round(results[m].best_value, 8), results[m].best_curve.mean()))
        base |= {"inner_steps": m, "setting": listed(results[m].best_setting)}
        curves += _curve_rows(base, results[m].best_curve)
    best = _best_rows(grid, "variant", "objective", "inner_steps", "parameter_value")
    optimum = stack([{"optimal_value": ENVIRONMENTS[environment].mdp.optimal().value}])
    return {"sensitivity": stack(best), "grid": stack(grid), "curves": stack(curves), "optimum": optimum}


def draw_ablation(environment: str, tables: Tables) -> Picture:
    """Rows: variants; columns: m = 10, 100, 1000, then the best curves. Dashed: the published Armijo test."""
    from matplotlib.lines import Line2D

    sensitivity, curves = tables["sensitivity"], tables["curves"]
    columns = [m for m in COLUMNS if m in sensitivity["inner_steps"]]
    figure, grid = panels(3, len(columns) + 1, 4 * (len(columns) + 1), 9.5)
    for variant, (_, _, parameter, row, style, label) in VARIANTS.items():
        for axes, m in zip(grid[row], columns, strict=False):
            part = where(sensitivity, variant=variant, inner_steps=m)
            _plot(axes, part, "parameter_value", "final_value", style, marker="o", markersize=3)
            axes.set_title(f"m = {m}")
            if part.size:
                axes.set_xscale("log", base=2)
                axes.set_xlabel(rf"$\{parameter}$")
            else:
                axes.text(0.5, 0.5, "not run: saturated at m = 10", ha="center", transform=axes.transAxes)
                axes.set_xticks([])
        _plot(grid[row][-1], where(curves, variant=variant), "iteration", "value", style)
        grid[row][-1].set(xlabel="iteration", title="best setting of each")
        if label:
            grid[row][0].set_ylabel(f"{label}\n" + r"$J(\pi)$ at the end")
    for axes in grid.flat:
        _finish(axes, environment, tables["optimum"]["optimal_value"][0])
    handles, _ = grid[0][0].get_legend_handles_labels()
    published = "Armijo test on J alone, as published (row 2)"
    handles.append(Line2D([], [], color="gray", linestyle="--", label=published))
    handles.append(Line2D([], [], color="black", linewidth=0.8, label="optimal value"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5)
    title = ENVIRONMENTS[environment].title
    figure.suptitle(f"{title}: three objectives, three ways of optimising them")
    return figure


_CURVES = "best settings on both environments, m = 100"
_PLATEAUS = "CliffWorld and the three plateaus of closed-form MDPO"
FIGURES = [
    *(
        Figure(
            f"ablation_{name}",
            f"sensitivity of sMDPO, MDPO and TRPO on {environment.title}, three ways of optimising",
            partial(compute_ablation, name),
            partial(draw_ablation, name),
        )
        for name, environment in ENVIRONMENTS.items()
    ),
    Figure("learning_curves", _CURVES, compute_learning_curves, draw_learning_curves),
    Figure("ppo_sensitivity", "PPO's final value against its clip", compute_ppo, draw_ppo),
    Figure("mdpo_plateaus", _PLATEAUS, compute_plateaus, draw_plateaus),
]
