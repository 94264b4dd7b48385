"""Bandit regret: sEXP3 against the two EXP3 variants on easy and hard problems with 2, 10 and 100 arms."""

from __future__ import annotations

from itertools import product

import numpy as np

from sppo.bandits import ALGORITHMS, BanditResult, mean_half_width, simulate
from sppo.figures.figure import Axes, Figure, Picture, Row, Table, Tables, panels, rows, stack, where

#: The paper's names in its legend, with the colours used here.
LABELS = {
    "sexp3": ("sEXP3", "tab:blue"),
    "exp3-iw": ("IWEXP3", "tab:orange"),
    "exp3-lbiw": ("LBIWEXP3", "tab:green"),
}
STEP_SIZES = (0.5, 0.05, 0.005, 0.0005, 0.00005)
GAPS = {"easy": 0.5, "hard": 0.1}
HORIZONS = {2: 100_000, 10: 200_000, 100: 600_000}


def _run(algorithm: str, difficulty: str, arms: int, quick: bool) -> tuple[BanditResult, BanditResult]:
    """All step sizes on the tuning environments, and the best of them on the fresh ones.

    The step size is tuned and reported on the same runs, as in the paper. As many environments again, on
    which nothing was tuned, check that the choice did not flatter any algorithm.
    """
    seeds, horizon = (20, HORIZONS[arms] // 10) if quick else (50, HORIZONS[arms])
    problem: Row = {"arms": arms, "gap": GAPS[difficulty], "horizon": horizon}
    tuned = simulate(algorithm, **problem, eta=STEP_SIZES, seeds=seeds)
    return tuned, simulate(algorithm, **problem, eta=tuned.best_eta, seeds=range(seeds, 2 * seeds))


def compute(quick: bool, progress: bool) -> dict[str, Table]:
    """Tables ``curves`` (tuned step sizes), ``grid`` (every step size) and ``summary`` (a row per panel)."""
    curves: list[Row] = []
    grid: list[Row] = []
    summary: list[Row] = []
    for difficulty, arms in product(GAPS, HORIZONS):
        results = {}
        for algorithm in ALGORITHMS:
            if progress:
                print(f"bandit: {difficulty}, {arms} arms, {algorithm}", flush=True)
            results[algorithm] = _run(algorithm, difficulty, arms, quick)
        for algorithm, (tuned, fresh) in results.items():
            panel = {"difficulty": difficulty, "gap": GAPS[difficulty], "arms": arms, "algorithm": algorithm}
            mean, (lower, upper), best = tuned.mean, tuned.interval(), tuned.best
            ends = {"regret": mean[best], "lower": lower[best], "upper": upper[best]}
            curves += rows({**panel, "eta": tuned.best_eta}, round=tuned.rounds, **ends)
            ends = {"final_regret": mean[:, -1], "lower": lower[:, -1], "upper": upper[:, -1]}
            grid += rows(panel, eta=tuned.eta, horizon=[tuned.horizon] * len(tuned.eta), **ends)
            summary.append({**panel, **_summary_row(tuned, fresh, *results["sexp3"])})
    return {"curves": stack(curves), "grid": stack(grid), "summary": stack(summary)}


def _summary_row(
    tuned: BanditResult, fresh: BanditResult, tuned_sexp3: BanditResult, fresh_sexp3: BanditResult
) -> Row:
    """Final regrets with 95% half-widths, and the excess over sEXP3 paired by environment."""
    samples = {
        "regret": tuned.final[tuned.best],
        "excess": tuned.final[tuned.best] - tuned_sexp3.final[tuned_sexp3.best],
        "fresh_regret": fresh.final[0],
        "fresh_excess": fresh.final[0] - fresh_sexp3.final[0],
    }
    row: Row = {"eta": tuned.best_eta, "horizon": tuned.horizon, "seeds": len(tuned.seeds)}
    for name, sample in samples.items():
        row[name] = float(sample.mean())
        row[f"{name}_half_width"] = float(mean_half_width(sample))
    return row


def draw(tables: Tables) -> Picture:
    """Two rows (easy, hard) by three columns (2, 10, 100 arms): mean regret and its 95% interval."""
    figure, grid = panels(len(GAPS), len(HORIZONS), 11, 6)
    for axes, (difficulty, arms) in zip(grid.flat, product(GAPS, HORIZONS), strict=True):
        _draw_panel(axes, where(tables["curves"], difficulty=difficulty, arms=arms))
        axes.set_title(f"{difficulty} (Δ = {GAPS[difficulty]:g}), {arms} arms")
    for axes in grid[-1]:
        axes.set_xlabel("round")
    for axes in grid[:, 0]:
        axes.set_ylabel("average regret")
    return figure


def _draw_panel(axes: Axes, curves: Table) -> None:
    for algorithm, (label, colour) in LABELS.items():
        curve = where(curves, algorithm=algorithm)
        rounds, lower, upper = curve["round"], curve["lower"], curve["upper"]
        axes.plot(rounds, curve["regret"], color=colour, label=f"{label}, η = {curve['eta'][0]:g}")
        axes.fill_between(rounds, lower, upper, color=colour, alpha=0.2, linewidth=0)
    axes.set_xlim(0, np.max(curves["round"]))
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    axes.legend(loc="upper left", fontsize="small", frameon=False)


FIGURES = [
    Figure("bandit", "regret of sEXP3, IWEXP3 and LBIWEXP3, easy and hard, 2 to 100 arms", compute, draw)
]
