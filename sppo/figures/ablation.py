"""The two ablation grids: fixed step, line search, trust region; m = 10, 100, 1000; best curves."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np

from sppo.exact import SweepResult
from sppo.exact.solver import listed
from sppo.figures import grids
from sppo.figures.figure import Axes, Figure, Picture, Row, Table, Tables, panels, rows, stack, where
from sppo.figures.grids import COLORS, COLUMNS, LABELS, OBJECTIVES, TITLES, WIDTHS

#: variant -> (method, Armijo test, swept parameter, row of the figure, line style, label)
VARIANTS = {
    "fixed": ("fixed", "", "eta", 0, "-", "Regularized + fixed step-size"),
    "line_search": ("line_search", "regularized", "eta", 1, "-", "Regularized + line search"),
    "line_search_published": ("line_search", "published", "eta", 1, "--", ""),
    "constrained": ("constrained", "", "delta", 2, "-", "Constrained + line search"),
}


def _grid_rows(result: SweepResult, base: Row) -> list[Row]:
    (first, second), points = [*result.axes, "none"][:2], [*result.axes.values(), (np.nan,)][:2]
    values = list(zip(*product(*points), strict=True))
    names, count = {**base, "parameter": first}, result.final.size
    columns = {"parameter_value": values[0], "second": [second] * count, "second_value": values[1]}
    return rows(names, **columns, final_value=result.final.flat)


def compute(environment: str, quick: bool, progress: bool) -> dict[str, Table]:
    """Tables: ``sensitivity`` (what is drawn), ``grid`` (every run), ``curves`` (best of each variant)."""
    grid: list[Row] = []
    curves: list[Row] = []
    for variant, (method, test, *_) in VARIANTS.items():
        for objective in OBJECTIVES:
            base: Row = {"variant": variant, "objective": objective}
            results = {}
            for m in grids.inner_steps(quick):
                # the trust region saturates after a few steps; the paper did not run it with m = 1000 either
                if method != "constrained" or m <= 100:
                    results[m] = grids.swept(environment, objective, method, m, quick, progress, test)
                    grid += _grid_rows(results[m], {**base, "inner_steps": m})
            m = max(results, key=lambda m: (round(results[m].best_value, 8), results[m].best_curve.mean()))
            base |= {"inner_steps": m, "setting": listed(results[m].best_setting)}
            curves += grids.curve_rows(base, results[m].best_curve)
    return {
        "sensitivity": stack(grids.best_rows(grid, "variant", "objective", "inner_steps", "parameter_value")),
        "grid": stack(grid),
        "curves": stack(curves),
        "optimum": {"optimal_value": [grids.optimal_value(environment)]},
    }


def _plot(axes: Axes, style: str, table: Table, x: str, y: str, marker: str = "") -> None:
    for objective in OBJECTIVES:
        part = where(table, objective=objective)
        color, width = COLORS[objective], WIDTHS[objective]
        axes.plot(part[x], part[y], style, color=color, linewidth=width, marker=marker, markersize=3)


def draw(environment: str, tables: Tables) -> Picture:
    """Rows: variants; columns: m = 10, 100, 1000, then the best curves. Dashed: the published Armijo test."""
    from matplotlib.lines import Line2D

    sensitivity, curves = tables["sensitivity"], tables["curves"]
    columns = [m for m in COLUMNS if m in np.asarray(sensitivity["inner_steps"])]
    figure, grid = panels(3, len(columns) + 1, 4 * (len(columns) + 1), 9.5)
    for variant, (_, _, parameter, row, style, label) in VARIANTS.items():
        for axes, m in zip(grid[row], columns, strict=False):
            part = where(sensitivity, variant=variant, inner_steps=m)
            _plot(axes, style, part, "parameter_value", "final_value", marker="o")
            axes.set_title(f"m = {m}")
            if len(part["objective"]):
                axes.set_xscale("log", base=2)
                axes.set_xlabel(rf"$\{parameter}$")
            else:
                axes.text(0.5, 0.5, "not run: saturated at m = 10", ha="center", transform=axes.transAxes)
                axes.set_xticks([])
        _plot(grid[row][-1], style, where(curves, variant=variant), "iteration", "value")
        grid[row][-1].set(xlabel="iteration", title="best setting of each")
        if label:
            grid[row][0].set_ylabel(f"{label}\n" + r"$J(\pi)$ at the end")
    for axes in grid.flat:
        grids.finish(axes, environment, tables["optimum"]["optimal_value"][0])
    handles = [
        Line2D([], [], color=COLORS[o], linewidth=WIDTHS[o], marker="o", markersize=3, label=LABELS[o])
        for o in OBJECTIVES
    ]
    published = "Armijo test on J alone, as published (row 2)"
    handles.append(Line2D([], [], color="gray", linestyle="--", label=published))
    handles.append(Line2D([], [], color="black", linewidth=0.8, label="optimal value"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5)
    figure.suptitle(f"{TITLES[environment]}: three objectives, three ways of optimising them")
    return figure


FIGURES = [
    Figure(
        f"ablation_{environment}",
        f"sensitivity of sMDPO, MDPO and TRPO on {title}, three ways of optimising",
        partial(compute, environment),
        partial(draw, environment),
    )
    for environment, title in TITLES.items()
]
