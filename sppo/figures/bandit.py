"""Bandit regret: sEXP3 against the two EXP3 variants on easy and hard problems with 2, 10 and 100 arms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sppo.bandits import ALGORITHMS, BanditResult, mean_half_width, simulate
from sppo.figures.figure import Figure, Table, Tables, stack, where

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure

#: The paper's names in its legend, with the colours used here.
LABELS = {
    "sexp3": ("sEXP3", "tab:blue"),
    "exp3-iw": ("IWEXP3", "tab:orange"),
    "exp3-lbiw": ("LBIWEXP3", "tab:green"),
}
STEP_SIZES = (0.5, 0.05, 0.005, 0.0005, 0.00005)
GAPS = {"easy": 0.5, "hard": 0.1}
HORIZONS = {2: 100_000, 10: 200_000, 100: 600_000}


@dataclass(frozen=True)
class Experiment:
    """The paper's protocol: horizons are divided by ``shorten``; environment seeds are 0, ..., ``seeds`` − 1.

    The step size is tuned and reported on the same runs, as in the paper. The next ``seeds`` environments,
    on which nothing was tuned, check that the choice did not flatter any algorithm.
    """

    seeds: int = 50
    shorten: int = 1

    def run(self, algorithm: str, difficulty: str, arms: int) -> tuple[BanditResult, BanditResult]:
        """All step sizes on the tuning environments, and the best of them on the fresh ones."""
        problem: dict[str, Any] = {
            "arms": arms,
            "gap": GAPS[difficulty],
            "horizon": HORIZONS[arms] // self.shorten,
        }
        tuned = simulate(algorithm, **problem, eta=STEP_SIZES, seeds=self.seeds)
        fresh_seeds = range(self.seeds, 2 * self.seeds)
        return tuned, simulate(algorithm, **problem, eta=tuned.best_eta, seeds=fresh_seeds)


def compute(quick: bool, progress: bool) -> dict[str, Table]:
    """Tables ``curves`` (tuned step sizes), ``grid`` (every step size) and ``summary`` (a row per panel)."""
    experiment = Experiment(seeds=20, shorten=10) if quick else Experiment()
    curves: list[dict[str, Any]] = []
    grid: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    for difficulty in GAPS:
        for arms in HORIZONS:
            results = {}
            for algorithm in ALGORITHMS:
                if progress:
                    print(f"bandit: {difficulty}, {arms} arms, {algorithm}", flush=True)
                results[algorithm] = experiment.run(algorithm, difficulty, arms)
            panel = {"difficulty": difficulty, "gap": GAPS[difficulty], "arms": arms}
            for algorithm, (tuned, fresh) in results.items():
                key = {**panel, "algorithm": algorithm}
                curves += [{**key, **row} for row in _curve_rows(tuned)]
                grid += [{**key, **row} for row in _grid_rows(tuned)]
                summary.append({**key, **_summary_row(tuned, fresh, *results["sexp3"])})
    return {"curves": stack(curves), "grid": stack(grid), "summary": stack(summary)}


def _curve_rows(result: BanditResult) -> list[dict[str, Any]]:
    lower, upper = result.interval()
    best = result.best
    columns = (result.rounds, result.mean[best], lower[best], upper[best])
    return [
        {"eta": result.best_eta, "round": t, "regret": mean, "lower": low, "upper": high}
        for t, mean, low, high in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _grid_rows(result: BanditResult) -> list[dict[str, Any]]:
    lower, upper = result.interval()
    return [
        {
            "eta": float(eta),
            "horizon": result.horizon,
            "final_regret": result.mean[e, -1],
            "lower": lower[e, -1],
            "upper": upper[e, -1],
        }
        for e, eta in enumerate(result.eta)
    ]


def _summary_row(
    tuned: BanditResult, fresh: BanditResult, tuned_sexp3: BanditResult, fresh_sexp3: BanditResult
) -> dict[str, Any]:
    """Final regrets with 95% half-widths, and the excess over sEXP3 paired by environment."""
    samples = {
        "regret": tuned.final[tuned.best],
        "excess": tuned.final[tuned.best] - tuned_sexp3.final[tuned_sexp3.best],
        "fresh_regret": fresh.final[0],
        "fresh_excess": fresh.final[0] - fresh_sexp3.final[0],
    }
    row: dict[str, Any] = {"eta": tuned.best_eta, "horizon": tuned.horizon, "seeds": len(tuned.seeds)}
    for name, sample in samples.items():
        row[name] = float(sample.mean())
        row[f"{name}_half_width"] = float(mean_half_width(sample))
    return row


def draw(tables: Tables) -> MplFigure:
    """Two rows (easy, hard) by three columns (2, 10, 100 arms): mean regret and its 95% interval."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(GAPS), len(HORIZONS), figsize=(11, 6), layout="constrained", squeeze=False
    )
    for row, (difficulty, gap) in enumerate(GAPS.items()):
        for column, arms in enumerate(HORIZONS):
            axis = axes[row, column]
            _draw_panel(axis, where(tables["curves"], difficulty=difficulty, arms=arms))
            axis.set_title(f"{difficulty} (Δ = {gap:g}), {arms} arms")
            if row == len(GAPS) - 1:
                axis.set_xlabel("round")
            if column == 0:
                axis.set_ylabel("average regret")
    return figure


def _draw_panel(axis: Axes, curves: dict[str, Any]) -> None:
    for algorithm, (label, colour) in LABELS.items():
        curve = where(curves, algorithm=algorithm)
        axis.plot(curve["round"], curve["regret"], color=colour, label=f"{label}, η = {curve['eta'][0]:g}")
        axis.fill_between(
            curve["round"], curve["lower"], curve["upper"], color=colour, alpha=0.2, linewidth=0
        )
    axis.set_xlim(0, np.max(curves["round"]))
    axis.set_ylim(bottom=0)
    axis.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    axis.legend(loc="upper left", fontsize="small", frameon=False)


FIGURES = [
    Figure(
        "bandit",
        "regret of sEXP3, IWEXP3 and LBIWEXP3, easy and hard, 2 to 100 arms",
        compute,
        draw,
    )
]
