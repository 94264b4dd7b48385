"""The two ablation grids: fixed step, line search and trust region; inner loops 10, 100, 1000; best
curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sppo.exact import SweepResult
from sppo.figures.figure import Figure, Table, Tables, stack, where
from sppo.figures.grids import (
    COLORS,
    LABELS,
    OBJECTIVES,
    TITLES,
    WIDTHS,
    grids,
    optimal_value,
    swept,
    thinned,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MplFigure

#: variant -> (method, Armijo test, swept parameter, row of the figure, line style, label)
VARIANTS = {
    "fixed": ("fixed", "", "eta", 0, "-", "Regularized + fixed step-size"),
    "line_search": ("line_search", "regularized", "eta", 1, "-", "Regularized + line search"),
    "line_search_published": (
        "line_search",
        "published",
        "eta",
        1,
        "--",
        "Regularized + line search (published test)",
    ),
    "constrained": ("constrained", "", "delta", 2, "-", "Constrained + line search"),
}
COLUMNS = (10, 100, 1000)


def _rows(result: SweepResult, parameter: str, base: dict[str, Any]) -> list[dict[str, Any]]:
    """For every value of the swept parameter the best final value, and the other parameter that gave it."""
    names = list(result.axes)
    final = np.moveaxis(result.final, names.index(parameter), 0).reshape(len(result.axes[parameter]), -1)
    others = [name for name in names if name != parameter]
    rows = []
    for value, finals in zip(result.axes[parameter], final, strict=True):
        best = int(finals.argmax())
        other = result.axes[others[0]][best] if others else np.nan
        rows.append(
            {
                **base,
                "parameter": parameter,
                "parameter_value": value,
                "second": others[0] if others else "none",
                "second_value": other,
                "final_value": finals[best],
            }
        )
    return rows


def _grid_rows(result: SweepResult, base: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    names = list(result.axes)
    for index in np.ndindex(result.final.shape):
        point = [result.axes[name][i] for name, i in zip(names, index, strict=True)]
        rows.append(
            {
                **base,
                "parameter": names[0],
                "parameter_value": point[0],
                "second": names[1] if len(names) > 1 else "none",
                "second_value": point[1] if len(names) > 1 else np.nan,
                "final_value": result.final[index],
            }
        )
    return rows


def compute(environment: str, quick: bool, progress: bool) -> dict[str, Table]:
    """Tables: ``sensitivity`` (what is drawn), ``grid`` (every run), ``curves`` (best of each variant)."""
    sensitivity, grid, curves = [], [], []
    inner_steps = grids(environment, quick).inner_steps
    for variant, (method, test, parameter, *_) in VARIANTS.items():
        for objective in OBJECTIVES:
            # the trust region saturates after a few steps; the paper did not run it with m = 1000 either
            counts = [m for m in inner_steps if method != "constrained" or m <= 100]
            results = {m: swept(environment, objective, method, m, quick, progress, test) for m in counts}
            for m, result in results.items():
                base = {"variant": variant, "objective": objective, "inner_steps": m}
                sensitivity += _rows(result, parameter, base)
                grid += _grid_rows(result, base)
            m, best = max(
                results.items(), key=lambda item: (round(item[1].best_value, 8), item[1].best_curve.mean())
            )
            setting = ", ".join(f"{name}={value:g}" for name, value in best.best_setting.items())
            curves += [
                {
                    "variant": variant,
                    "objective": objective,
                    "inner_steps": m,
                    "setting": setting,
                    "iteration": t,
                    "value": best.best_curve[t],
                }
                for t in thinned(best.best_curve.size).tolist()
            ]
    optimum = {"optimal_value": [optimal_value(environment)]}
    return {
        "sensitivity": stack(sensitivity),
        "grid": stack(grid),
        "curves": stack(curves),
        "optimum": optimum,
    }


def draw(environment: str, tables: Tables) -> MplFigure:
    """Rows: variants; columns: m = 10, 100, 1000, then the best curves. Dashed: the published Armijo test."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    sensitivity, curves = tables["sensitivity"], tables["curves"]
    optimum = float(np.asarray(tables["optimum"]["optimal_value"])[0])
    columns = [m for m in COLUMNS if m in np.asarray(sensitivity["inner_steps"])]
    figure, grid = plt.subplots(3, len(columns) + 1, figsize=(4 * (len(columns) + 1), 9.5), squeeze=False)
    bottom = -0.02 if environment == "cliffworld" else 0.0
    for variant, (_, _, parameter, row, style, label) in VARIANTS.items():
        for column, m in enumerate(columns):
            axes = grid[row][column]
            rows = where(sensitivity, variant=variant, inner_steps=m)
            for objective in OBJECTIVES:
                part = where(rows, objective=objective)
                axes.plot(
                    part["parameter_value"],
                    part["final_value"],
                    style,
                    color=COLORS[objective],
                    linewidth=WIDTHS[objective],
                    marker="o",
                    markersize=3,
                )
            axes.set_title(f"m = {m}")
            if len(rows["objective"]):
                axes.set_xscale("log", base=2)
                axes.set_xlabel(rf"$\{parameter}$")
            else:
                axes.text(0.5, 0.5, "not run: saturated at m = 10", ha="center", transform=axes.transAxes)
                axes.set_xticks([])
        for objective in OBJECTIVES:
            part = where(curves, variant=variant, objective=objective)
            grid[row][-1].plot(
                part["iteration"], part["value"], style, color=COLORS[objective], linewidth=WIDTHS[objective]
            )
        grid[row][-1].set_xlabel("iteration")
        grid[row][-1].set_title("best setting of each")
        if style == "-":
            grid[row][0].set_ylabel(f"{label}\n" + r"$J(\pi)$ at the end")
    for row in range(3):
        for axes in grid[row]:
            axes.axhline(optimum, color="black", linewidth=0.8)
            axes.set_ylim(bottom, optimum * 1.06)
    handles = [
        Line2D(
            [],
            [],
            color=COLORS[objective],
            linewidth=WIDTHS[objective],
            marker="o",
            markersize=3,
            label=LABELS[objective],
        )
        for objective in OBJECTIVES
    ]
    handles.append(
        Line2D([], [], color="gray", linestyle="--", label="Armijo test on J alone, as published (row 2)")
    )
    handles.append(Line2D([], [], color="black", linewidth=0.8, label="optimal value"))
    figure.legend(handles=handles, loc="lower center", ncols=5)
    figure.suptitle(f"{TITLES[environment]}: three objectives, three ways of optimising them")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure


def _figure(environment: str) -> Figure:
    return Figure(
        f"ablation_{environment}",
        f"sensitivity of sMDPO, MDPO and TRPO on {TITLES[environment]}, three ways of optimising",
        lambda quick, progress: compute(environment, quick, progress),
        lambda tables: draw(environment, tables),
    )


FIGURES = {figure.name: figure for figure in map(_figure, ("cliffworld", "deepseatreasure"))}
