"""How far the per-state step size gets, against the uniform theoretical one and the best tuned one."""

from __future__ import annotations

import numpy as np

from sppo.exact import TabularMDP, cliff_world, deep_sea_treasure, from_gymnasium, solve, sweep, theory
from sppo.figures.figure import Figure, Picture, Row, Table, Tables, panels, rows, stack, where
from sppo.figures.tabular import powers

#: In drawing order: the dashed line comes last, since it may coincide with another.
STYLES = {
    "per-state": ("tab:blue", "-", "per state, theory"),
    "tuned": ("tab:red", "-", "uniform, tuned"),
    "uniform": ("tab:gray", "--", "uniform, theory"),
}
TUNING_ITERATIONS = 2000


def _problems() -> dict[str, TabularMDP]:
    return {
        "CliffWorld": cliff_world(),
        "DeepSeaTreasure": deep_sea_treasure(),
        "FrozenLake 8x8": from_gymnasium("FrozenLake8x8-v1", gamma=0.99),
    }


def compute(quick: bool, progress: bool) -> dict[str, Table]:
    """``curves`` of closed-form sMDPO with each step size, and a ``summary`` of when they arrive."""
    iterations = 5_000 if quick else 100_000
    times = (np.unique(np.geomspace(1, iterations, 300).astype(int)) - 1).tolist()
    curves, summary = [], []
    for name, mdp in _problems().items():
        optimum = mdp.optimal().value
        start = mdp.evaluate(np.full(mdp.reward.shape, 1.0 / mdp.n_actions))
        etas = powers(-13, 13, 4 if quick else 1)
        tuning = sweep(mdp, "smdpo", "closed_form", iterations=TUNING_ITERATIONS, eta=etas, progress=progress)
        tuned = tuning.best_setting["eta"]
        uniform = theory.softmax_step_size(mdp)
        steps: dict[str, float | str] = {"uniform": uniform, "per-state": "per-state", "tuned": tuned}
        for kind, eta in steps.items():
            values = solve(mdp, "smdpo", "closed_form", iterations=iterations, eta=eta).values
            first = 1.0 / theory.resolve_eta(mdp, start, eta)
            row: Row = {"environment": name, "step": kind}
            row["eta_first"] = float(first.min())
            row["eta_first_largest"] = float(first[start.occupancy > 0].max())
            row["value_at_2000"] = values[min(TUNING_ITERATIONS, iterations) - 1]
            row |= {"final_value": values[-1], "optimal_value": optimum}
            for share in (50, 90, 99):
                reached = values >= share / 100 * optimum
                row[f"iterations_to_{share}_percent"] = int(reached.argmax()) if reached.any() else -1
            summary.append({**row, "monotone": bool(np.all(np.diff(values) >= -1e-9))})
            curves += rows({"environment": name, "step": kind}, iteration=times, value=values[times])
    return {"curves": stack(curves), "summary": stack(summary)}


def draw(tables: Tables) -> Picture:
    """One panel per environment, iterations on a logarithmic axis."""
    names = list(dict.fromkeys(tables["summary"]["environment"].tolist()))
    figure, (row,) = panels(1, len(names), 4.3 * len(names), 4.4)
    for axes, name in zip(row, names, strict=True):
        summary = where(tables["summary"], environment=name)
        optimum = float(summary["optimal_value"][0])
        for kind, (color, style, label) in STYLES.items():
            part = where(tables["curves"], environment=name, step=kind)
            eta = float(where(summary, step=kind)["eta_first"][0])
            detail = "" if kind == "per-state" else rf" ($\eta$ = {eta:.2g})"
            axes.plot(part["iteration"] + 1, part["value"], style, color=color, label=label + detail)
        axes.axhline(optimum, color="black", linewidth=0.8, linestyle="--")
        axes.set(xscale="log", ylim=(-0.1 * optimum, 1.08 * optimum), xlabel="iteration + 1", title=name)
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    row[0].set_ylabel(r"$J(\pi_t)$, closed-form sMDPO")
    return figure


FIGURES = [Figure("per_state", "per-state, uniform and tuned step sizes of closed-form sMDPO", compute, draw)]
