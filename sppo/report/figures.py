"""The report's figures: learning curves, and what the tables say about all runs together.

Means are drawn with 95 % Student-t intervals over runs, aggregates with stratified bootstrap ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sppo.report.cells import Cell, grouped, not_there, order_key, seeds_of, span
from sppo.report.labels import Dashes, Look
from sppo.report.plots import INK, Draw, Plot
from sppo.report.statistics import FEW_RUNS, Array, Estimate, mean_interval
from sppo.report.summary import THRESHOLDS, Aggregate, Comparison, Row, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Looks = Mapping[str, Look]

LINES: tuple[Dashes, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (8, 3)))
RETURN = "return of the deterministic policy"
BANDS = "with 95 % Student-t intervals; bands of few runs may leave the panel"
BEYOND = "Beyond the grid: divergence step size η and trust region"
NORMALISATION = (
    "Final returns are min-max normalised per environment: 0 and 1 are the lowest and the highest final "
    "return of any run of the study there."
)
INTERVALS = (
    "95 % intervals by stratified bootstrap, where there are two runs of every cell; with fewer than "
    f"{FEW_RUNS} they are too narrow on average."
)


def all_figures(summary: Summary) -> list[Plot]:
    """Every figure that the study has the runs for, in reading order."""
    looks = summary.looks
    grid = [cell for cell in summary.cells if cell.setting.on_grid]
    beyond = [cell for cell in summary.cells if not cell.setting.on_grid]
    pooled = [row for row in summary.comparisons if row.env is None]
    plots = [
        grid_figure(grid, looks) if any(cell.n for cell in grid) else None,
        aggregate_figure(summary.aggregates, looks) if summary.aggregates else None,
        improvement_figure(pooled, looks) if pooled else None,
        profile_figure(summary.profiles, looks) if summary.profiles else None,
        curves_figure("beyond", BEYOND, beyond, looks) if any(cell.n for cell in beyond) else None,
    ]
    return [plot for plot in plots if plot is not None]


def grid_figure(cells: Sequence[Cell], looks: Looks) -> Plot:
    """The paper's figure: environments down, ε across, m as line style, algorithm as colour."""
    clips = sorted({cell.setting.clip_range for cell in cells}, key=order_key)
    styles = _styles(cells, lambda cell: f"m = {cell.setting.n_epochs}")
    panels, absent = {}, []
    for env, own in grouped(cells, lambda cell: cell.env).items():
        if not any(cell.n for cell in own):
            # a row of empty panels would push what there is off the page
            absent.append(env)
            continue
        for clip in clips:
            at_clip = [cell for cell in own if cell.setting.clip_range == clip]
            panels[f"{env}, ε = {clip}"] = _curves(at_clip, looks, styles, _limits(own))
    nothing = f" No completed run yet: {', '.join(absent)}." if absent else ""
    return Plot(
        name="grid",
        title="Learning curves: environments down, clip ε across, passes m as line style",
        caption=f"Mean {RETURN} over completed runs, {BANDS}. {_runs_text(cells)}{nothing}",
        panels=panels,
        keys=[*_keys(cells, looks), *dict.fromkeys(styles.values())],
        seeds=seeds_of(cells),
        columns=len(clips),
    )


def curves_figure(name: str, title: str, cells: Sequence[Cell], looks: Looks, tag: str = "") -> Plot:
    """A panel for each environment, settings as line style; of the return, or what ``tag`` names instead."""
    styles = _styles(cells, lambda cell: cell.setting.text)
    lines = dict.fromkeys(styles.values())
    by_env = grouped(cells, lambda cell: cell.env or "all runs")
    return Plot(
        name=name,
        title=title,
        caption=f"Mean {tag or RETURN} over completed runs, {BANDS}. {_runs_text(cells)}",
        panels={env: _curves(own, looks, styles, _limits(own)) for env, own in by_env.items()},
        keys=[*_keys(cells, looks), *(lines if len(lines) > 1 else ())],
        y_label=tag or "return",
        seeds=seeds_of(cells),
        panel_size=(5.0, 3.2) if len(by_env) == 1 else (3.6, 2.7),
    )


def aggregate_figure(aggregates: Sequence[Aggregate], looks: Looks) -> Plot:
    """Interquartile mean over environments at each setting, and over everything."""
    return Plot(
        name="iqm",
        title="Interquartile mean of normalised final returns",
        caption=f"IQM: mean of the middle half of all runs, over environments. {NORMALISATION} {INTERVALS}",
        panels={"all environments": _intervals({row: row.iqm for row in aggregates}, looks)},
        keys=_keys(aggregates, looks),
        x_label="IQM of normalised final return",
        y_label="setting",
        seeds=_seeds(aggregates),
        panel_size=_size(aggregates),
    )


def improvement_figure(pooled: Sequence[Comparison], looks: Looks) -> Plot:
    """Probability of improvement over the baseline, pooled over environments."""
    by_baseline = grouped(pooled, lambda row: row.baseline)
    return Plot(
        name="improvement",
        title="Probability that a run beats a run of the baseline",
        caption="P(X > Y) + P(X = Y)/2 for the final returns X of a run and Y of a run of the baseline: over "
        "all pairs of the same environment and setting, averaged over environments (returns are not "
        f"normalised for it). 0.5, the vertical line, is no difference. {INTERVALS}",
        panels={
            f"against {looks[baseline].title}": _intervals({row: row.improvement for row in rows}, looks, 0.5)
            for baseline, rows in by_baseline.items()
        },
        keys=_keys(pooled, looks),
        x_label="probability that a run beats\na run of the baseline",
        y_label="setting",
        seeds=_seeds(pooled),
        panel_size=_size(*by_baseline.values()),
    )


def profile_figure(profiles: Sequence[Aggregate], looks: Looks) -> Plot:
    """Fraction of runs above each normalised score, one panel per m."""

    def panel(rows: Sequence[Aggregate]) -> Draw:
        def draw(ax: Axes) -> None:
            for row in rows:
                look, (value, low, high) = looks[row.label], row.profile
                ax.plot(THRESHOLDS, value, color=look.colour, marker=look.marker, markevery=20)
                _band(ax, THRESHOLDS, low, high, look, min(cell.n for cell in row.cells))
            ax.set(xlim=(0, 1), ylim=(-0.02, 1.02))

        return draw

    by_passes = grouped(profiles, lambda row: row.cells[0].setting.n_epochs)
    return Plot(
        name="profiles",
        title="Performance profiles",
        caption="Fraction of runs whose normalised final return lies above each score, over all environments "
        f"and ε; higher is better everywhere. {NORMALISATION} Pointwise {INTERVALS}",
        panels={f"m = {m}": panel(rows) for m, rows in by_passes.items()},
        keys=_keys(profiles, looks),
        x_label="normalised final return",
        y_label="fraction of runs above",
        seeds=_seeds(profiles),
        panel_size=(3.4, 2.6),
    )


def _curves(
    cells: Sequence[Cell], looks: Looks, styles: Mapping[Cell, Look], limits: tuple[float, float] | None
) -> Draw:
    """The mean curves of some cells, over the steps that all runs of a cell have."""

    def draw(ax: Axes) -> None:
        from matplotlib.ticker import EngFormatter, MaxNLocator

        for cell in cells:
            look, (steps, returns) = looks[cell.label], cell.curves
            if len(steps):
                mean, low, high = mean_interval(returns)
                every = max(1, len(steps) // 4)
                (line,) = ax.plot(steps, mean, color=look.colour, linestyle=styles[cell].line)
                line.set(marker=look.marker, markevery=(every - 1, every))
                _band(ax, steps, low, high, look, len(returns))
        if not any(cell.n for cell in cells):
            ax.text(0.5, 0.5, "no completed run", transform=ax.transAxes, ha="center", alpha=0.6)
        if limits:
            ax.set_ylim(*limits)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        ax.yaxis.set_major_locator(MaxNLocator(5))

    return draw


def _intervals(estimates: Mapping[Row, Estimate], looks: Looks, middle: float | None = None) -> Draw:
    """Numbers between 0 and 1 with their intervals: settings down, the algorithms beside each other."""
    settings = list(dict.fromkeys(row.where for row in estimates))
    labels = [label for label in looks if label in {row.label for row in estimates}]

    def draw(ax: Axes) -> None:
        if middle is not None:
            ax.axvline(middle, color=INK, linewidth=0.8)
        for label, own in grouped(estimates, lambda row: row.label).items():
            offset = 0.6 * ((labels.index(label) + 0.5) / len(labels) - 0.5)
            y = [settings.index(row.where) + offset for row in own]
            value, low, high = np.array([estimates[row] for row in own]).T
            ax.plot(value, y, looks[label].marker, color=looks[label].colour)
            ax.hlines(y, low, high, color=looks[label].colour, linewidth=2.2, alpha=0.6)
        ax.set_yticks(range(len(settings)), settings)
        ax.set(xlim=(-0.02, 1.02), ylim=(len(settings) - 0.4, -0.6))

    return draw


def _size(*panels: Sequence[Row]) -> tuple[float, float]:
    """Of a panel of intervals: as high as the one with most settings needs."""
    return 4.2, 1.0 + 0.26 * max(len({row.where for row in rows}) for rows in panels)


def _styles(cells: Sequence[Cell], name_of: Callable[[Cell], str]) -> dict[Cell, Look]:
    """A line style for each cell by a name that it shares with others, the smallest setting's solid."""
    ordered = sorted(cells, key=lambda cell: cell.setting.sort_key())
    lines = dict(zip(dict.fromkeys(map(name_of, ordered)), itertools.cycle(LINES), strict=False))
    return {cell: Look(name_of(cell), INK, line=lines[name_of(cell)]) for cell in ordered}


def _band(ax: Axes, x: Array, low: Array, high: Array, look: Look, runs: int) -> None:
    """An interval, if there is one; those of few runs fill the panel, and lines must be seen through them."""
    if runs > 1:
        alpha = 0.18 if runs >= FEW_RUNS else 0.07
        ax.fill_between(x, low, high, color=look.colour, alpha=alpha, linewidth=0)


def _limits(cells: Sequence[Cell]) -> tuple[float, float] | None:
    """Bounds that show the middle 95 % of runs and all means; intervals of two runs would dwarf both."""
    bounds = [np.percentile(cell.curves[1], [2.5, 97.5], axis=0) for cell in cells if cell.curves[1].size]
    low = min((float(each[0].min()) for each in bounds), default=0.0)
    high = max((float(each[1].max()) for each in bounds), default=0.0)
    margin = 0.05 * (high - low)
    return (low - margin, high + margin) if low < high else None


def _runs_text(cells: Sequence[Cell]) -> str:
    """How many runs the lines stand for, and which runs are not there."""
    counts = [cell.n for cell in cells if cell.n]
    text = f"Runs per line: {span(counts)}."
    text += " One run has no interval." if 1 in counts else ""
    if lost := not_there(cells):
        completed, planned = sum(cell.n for cell in cells), sum(len(cell.runs) for cell in cells)
        text += f" {completed} of {planned} planned runs are completed ({lost})."
    return text


def _keys(rows: Iterable[Cell | Row], looks: Looks) -> list[Look]:
    shown = {row.label for row in rows}
    return [look for label, look in looks.items() if label in shown]


def _seeds(rows: Sequence[Row]) -> tuple[int, ...]:
    return seeds_of(cell for row in rows for cell in row.cells)
