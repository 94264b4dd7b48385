"""Value gradients on a linear-quadratic problem: plain, and by functional mirror ascent."""

from __future__ import annotations

import numpy as np

from sppo.exact import double_integrator, improvement_eta, lower_bound_eta, value_gradient_ascent
from sppo.exact.linear_quadratic import LinearGaussianPolicy
from sppo.figures.figure import Axes, Figure, Picture, Row, Table, Tables, panels, rows, stack, where

#: Two axes of unequal mass: with one action, G would be a number and η = 1/λ(G) exactly policy iteration.
PROBLEM = double_integrator(masses=(1.0, 3.0))
#: Scale L of the zero-gain starting policy: a deterministic and a stochastic value gradient.
SCALES = {"deterministic": 0.0, "stochastic": 0.5}
#: Curve -> (method, its settings); ``None`` is the best constant of the step-size grid.
CURVES: dict[str, tuple[str, Row]] = {
    "value gradient, guaranteed α": ("surrogate", {"eta": "lower_bound", "inner_steps": 1}),
    "value gradient, tuned α": ("value_gradient", {"alpha": None}),
    "surrogate, m = 10, guaranteed η": ("surrogate", {"eta": "lower_bound", "inner_steps": 10}),
    "surrogate, m = ∞, guaranteed η": ("closed_form", {"eta": "lower_bound"}),
    "surrogate, m = ∞, η = 1/λ(G)": ("closed_form", {"eta": "improvement"}),
    "surrogate, m = ∞, tuned η": ("closed_form", {"eta": None}),
}
STEP_NAMES = {"value_gradient": "alpha", "closed_form": "eta"}


def compute(quick: bool, progress: bool) -> dict[str, Table]:
    """Tables ``curves``, ``steps`` (final gap per constant step size), ``update`` (one update as η grows)."""
    iterations = 50 if quick else 300
    grid = np.logspace(-7, 2, 31 if quick else 61)
    curves: list[Row] = []
    steps: list[Row] = []
    update: list[Row] = []
    for kind, scale in SCALES.items():
        if progress:
            print(f"lqr: {kind}", flush=True)
        start = PROBLEM.policy(scale=scale)
        tuned = {}
        for method, name in STEP_NAMES.items():
            gaps = [_gaps(start, method, iterations, {name: float(step)})[-1] for step in grid]
            tuned[method] = float(grid[np.argmin(gaps)])
            steps += rows({"kind": kind, "method": method}, step=grid, gap=gaps)
        for label, (method, options) in CURVES.items():
            settings = {name: tuned[method] if value is None else value for name, value in options.items()}
            gaps = _gaps(start, method, iterations, settings)
            curves += rows({"kind": kind, "curve": label}, iteration=range(iterations), gap=gaps)
        update += _update_rows(kind, start, 20 if quick else 100)
    return {"curves": stack(curves), "steps": stack(steps), "update": stack(update)}


def _gaps(start: LinearGaussianPolicy, method: str, iterations: int, settings: Row) -> list[float]:
    """(J* − J(π_t)) / |J*|, infinite once an update has left the stable policies."""
    best = PROBLEM.optimal().value
    result = value_gradient_ascent(PROBLEM, start, method, iterations=iterations, **settings)
    return ((best - result.values) / abs(best)).tolist()


def _update_rows(kind: str, start: LinearGaussianPolicy, points: int) -> list[Row]:
    """J and ℓ at the maximiser of the surrogate, from below the guaranteed η to above the improving one."""
    evaluation = PROBLEM.evaluate(start)
    guaranteed, improving = lower_bound_eta(evaluation), improvement_eta(evaluation)
    table = []
    for eta in np.geomspace(guaranteed / 10, 10 * improving, points).tolist():
        update = value_gradient_ascent(PROBLEM, start, "closed_form", iterations=1, eta=eta).certificates[0]
        gains = {"value_gain": update.new_value, "surrogate_gain": update.bound}
        row = {name: value - update.old_value for name, value in gains.items()}
        table.append(
            {"kind": kind, "eta": eta, **row, "guaranteed_eta": guaranteed, "improving_eta": improving}
        )
    return table


def draw(tables: Tables) -> Picture:
    """Top: learning curves, deterministic and stochastic. Bottom: step sizes; one update as η grows."""
    figure, axes = panels(2, 2, 11, 8)
    for axis, kind in zip(axes[0], SCALES, strict=True):
        for position, label in enumerate(CURVES):
            curve = where(tables["curves"], kind=kind, curve=label)
            axis.plot(curve["iteration"], curve["gap"], label=label, color=f"C{position}")
        axis.set(yscale="log", xlabel="iteration", ylabel="(J* − J) / |J*|", title=f"{kind} value gradient")
        axis.set_ylim(bottom=1e-10)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize="small", frameon=False)
    _draw_steps(axes[1, 0], tables["steps"])
    _draw_update(axes[1, 1], where(tables["update"], kind="stochastic"))
    return figure


def _draw_steps(axis: Axes, table: Table) -> None:
    names = {"value_gradient": ("value gradient, α", "C1"), "closed_form": ("surrogate, m = ∞, η", "C5")}
    for method, (label, colour) in names.items():
        for kind, style in (("deterministic", "-"), ("stochastic", "--")):
            rows = where(table, method=method, kind=kind)
            finite = np.isfinite(rows["gap"])
            gap = np.where(finite, np.maximum(rows["gap"], 1e-12), np.nan)
            axis.plot(rows["step"], gap, style, color=colour, label=f"{label} ({kind})")
            last = np.flatnonzero(finite)[-1]
            axis.plot(rows["step"][last], gap[last], "x", color=colour)
    axis.set(xscale="log", yscale="log", title="sensitivity to the step size", ylabel="final (J* − J) / |J*|")
    axis.set_xlabel("constant step size (×: beyond it, updates leave the stable policies)")
    axis.legend(fontsize="small")


def _draw_update(axis: Axes, rows: Table) -> None:
    axis.plot(rows["eta"], rows["value_gain"], label=r"$J(\pi_{t+1}) - J(\pi_t)$", color="C4")
    axis.plot(rows["eta"], rows["surrogate_gain"], "--", label=r"$\ell_t(\pi_{t+1}) - J(\pi_t)$", color="C3")
    axis.axvline(rows["guaranteed_eta"][0], color="grey", linestyle=":", label="guaranteed η")
    axis.axvline(rows["improving_eta"][0], color="black", linestyle=":", label="η = 2/λ(G)")
    largest = np.max(rows["value_gain"])
    axis.set(xscale="log", xlabel="η", ylim=(-0.3 * largest, 2 * largest))
    axis.set_title("one exact update from the stochastic start, by η")
    axis.legend(fontsize="small", loc="upper left")


FIGURES = [Figure("lqr", "value gradients on a double integrator, plain and by mirror ascent", compute, draw)]
