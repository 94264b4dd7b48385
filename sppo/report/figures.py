"""The report's figures: learning curves, and what the tables say about all runs together.

Means are drawn with 95 % Student-t intervals over runs, aggregates with stratified bootstrap ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sppo.report.cells import Cell, Value, grouped, not_there, order_key, seeds_of
from sppo.report.labels import Look, order_labels
from sppo.report.plots import FAINT, INK, Dashes, Key, Panel, Plot, label_keys
from sppo.report.statistics import FEW_RUNS, Estimate, mean_interval
from sppo.report.summary import EVERYWHERE, THRESHOLDS, Aggregate, Comparison, Row, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Looks = Mapping[str, Look]

LINES: tuple[Dashes, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (8, 3)))
MEANS = "Mean return of the deterministic policy over completed runs, with 95 % Student-t intervals"
NORMALISATION = (
    "Final returns are min-max normalised per environment: 0 and 1 are the lowest and the highest final "
    "return of any run of the study there."
)
INTERVALS = (
    "95 % intervals by stratified bootstrap, where there are two runs of every cell; with fewer than "
    f"{FEW_RUNS} they are too narrow on average."
)


def all_figures(summary: Summary, looks: Looks) -> list[Plot]:
    """Every figure that the study has the runs for, in reading order."""
    grid = [cell for cell in summary.cells if cell.setting.on_grid]
    beyond = [cell for cell in summary.cells if not cell.setting.on_grid]
    pooled = [row for row in summary.comparisons if row.env is None]
    plots = [
        grid_figure(grid, looks) if grid else None,
        aggregate_figure(summary.aggregates, looks) if summary.aggregates else None,
        improvement_figure(pooled, looks) if pooled else None,
        profile_figure(summary.profiles, looks) if summary.profiles else None,
        beyond_figure(beyond, looks) if beyond else None,
    ]
    return [plot for plot in plots if plot is not None]


def grid_figure(cells: Sequence[Cell], looks: Looks) -> Plot:
    """The paper's figure: environments down, ε across, m as line style, algorithm as colour."""
    clips = sorted({cell.setting.clip_range for cell in cells}, key=order_key)
    styles, keys = _styles(cells, lambda cell: f"m = {cell.setting.n_epochs}")
    # An environment that the study has not come to would be a row of empty panels: it is named instead.
    by_env = grouped(cells, lambda cell: cell.env)
    begun = [env for env, own in by_env.items() if any(cell.n for cell in own)] or list(by_env)
    panels = []
    for env, clip in itertools.product(begun, clips):
        own = [cell for cell in by_env[env] if cell.setting.clip_range == clip]
        panels.append(_panel(f"{env}, ε = {clip}", own, looks, styles, _limits(by_env[env])))
    absent = ", ".join(env for env in by_env if env not in begun)
    nothing = f" No completed run yet: {absent}." if absent else ""
    return Plot(
        name="grid",
        title="Learning curves: environments down, clip ε across, passes m as line style",
        caption=f"{MEANS}; bands of few runs may leave the panel. {_runs_text(cells)}{nothing}",
        panels=panels,
        keys=[*label_keys((cell.label for cell in cells), looks), *keys],
        seeds=seeds_of(cells),
        columns=len(clips),
    )


def beyond_figure(cells: Sequence[Cell], looks: Looks) -> Plot:
    """Algorithms without a place on the m × ε grid: divergence with step size η, trust region."""
    styles, keys = _styles(cells, lambda cell: cell.setting.text)
    by_env = grouped(cells, lambda cell: cell.env)
    return Plot(
        name="beyond",
        title="Beyond the grid: divergence step size η and trust region",
        caption=f"{MEANS}. {_runs_text(cells)}",
        panels=[_panel(env, own, looks, styles, _limits(own)) for env, own in by_env.items()],
        keys=[*label_keys((cell.label for cell in cells), looks), *keys],
        seeds=seeds_of(cells),
        panel_size=(3.6, 2.7),
    )


def logged_figure(cells: Sequence[Cell], looks: Looks, tag: str) -> Plot:
    """Every run of a log directory and their means, a panel for each task."""
    tasks = grouped(cells, lambda cell: cell.task)
    panels = [_panel(task or "all runs", own, looks, {}, every_run=True) for task, own in tasks.items()]
    return Plot(
        name="compare",
        title=f"Learning curves: {tag}",
        caption=f"{tag}: each run as a thin line, the mean of each algorithm as a thick one with its 95 % "
        "Student-t interval, over the steps that all of its runs have.",
        panels=panels,
        keys=label_keys((cell.label for cell in cells), looks),
        y_label=tag,
        panel_size=(5.0, 3.2) if len(panels) == 1 else (3.6, 2.6),
    )


def aggregate_figure(aggregates: Sequence[Aggregate], looks: Looks) -> Plot:
    """Interquartile mean against ε, one panel per m, and over all settings."""
    panels: dict[str, dict[str, dict[Value, Estimate]]] = {}
    for row in aggregates:
        setting = row.cells[0].setting
        title, clip = f"m = {setting.n_epochs}", setting.clip_range
        if row.where == EVERYWHERE:
            title, clip = "all m and ε together", None
        panels.setdefault(title, {}).setdefault(row.label, {})[clip] = row.iqm
    return Plot(
        name="iqm",
        title="Interquartile mean of normalised final returns",
        caption=f"IQM: mean of the middle half of all runs, over environments. {NORMALISATION} {INTERVALS}",
        panels=[_sweep(title, lines, looks) for title, lines in panels.items()],
        keys=label_keys((row.label for row in aggregates), looks),
        x_label="clip ε",
        y_label="IQM of normalised final return",
        seeds=_seeds(aggregates),
        panel_size=(3.2, 2.6),
    )


def improvement_figure(pooled: Sequence[Comparison], looks: Looks) -> Plot:
    """Probability of improvement over the baseline, pooled over environments."""

    def panel(baseline: str, rows: Sequence[Comparison]) -> Panel:
        settings = list(dict.fromkeys(row.where for row in rows))
        labels = order_labels(row.label for row in rows)

        def draw(ax: Axes) -> None:
            ax.axvline(0.5, color=INK, linewidth=0.8)
            for label, own in grouped(rows, lambda row: row.label).items():
                look, offset = looks[label], _offset(labels, label, 0.6)
                y = [settings.index(row.where) + offset for row in own]
                value, low, high = np.array([row.improvement for row in own]).T
                ax.plot(value, y, look.marker, color=look.colour)
                ax.hlines(y, low, high, color=look.colour, linewidth=2.2, alpha=0.6)
            ax.set_yticks(range(len(settings)), settings)
            ax.set(xlim=(-0.02, 1.02), ylim=(len(settings) - 0.4, -0.6))

        return Panel(f"against {looks[baseline].title}", draw)

    by_baseline = grouped(pooled, lambda row: row.baseline)
    tallest = max(len({row.where for row in rows}) for rows in by_baseline.values())
    return Plot(
        name="improvement",
        title="Probability that a run beats a run of the baseline",
        caption="P(X > Y) + P(X = Y)/2 for the final returns X of a run and Y of a run of the baseline: over "
        "all pairs of the same environment and setting, averaged over environments (returns are not "
        f"normalised for it). 0.5, the vertical line, is no difference. {INTERVALS}",
        panels=[panel(baseline, rows) for baseline, rows in by_baseline.items()],
        keys=label_keys({row.label for row in pooled}, looks),
        x_label="probability that a run beats\na run of the baseline",
        y_label="setting",
        seeds=_seeds(pooled),
        panel_size=(4.2, 1.0 + 0.26 * tallest),
    )


def profile_figure(profiles: Sequence[Aggregate], looks: Looks) -> Plot:
    """Fraction of runs above each normalised score, one panel per m."""

    def panel(m: Value, rows: Sequence[Aggregate]) -> Panel:
        def draw(ax: Axes) -> None:
            for row in rows:
                look, (value, low, high) = looks[row.label], row.profile
                ax.plot(THRESHOLDS, value, color=look.colour, marker=look.marker, markevery=20)
                _band(ax, THRESHOLDS, low, high, look, min(cell.n for cell in row.cells))
            ax.set(xlim=(0, 1), ylim=(-0.02, 1.02))

        return Panel(f"m = {m}", draw)

    panels = grouped(profiles, lambda row: row.cells[0].setting.n_epochs)
    return Plot(
        name="profiles",
        title="Performance profiles",
        caption="Fraction of runs whose normalised final return lies above each score, over all environments "
        f"and ε; higher is better everywhere. {NORMALISATION} Pointwise {INTERVALS}",
        panels=[panel(m, rows) for m, rows in panels.items()],
        keys=label_keys((row.label for row in profiles), looks),
        x_label="normalised final return",
        y_label="fraction of runs above",
        seeds=_seeds(profiles),
        panel_size=(3.4, 2.6),
    )


def _panel(
    title: str,
    cells: Sequence[Cell],
    looks: Looks,
    styles: Mapping[Cell, Dashes],
    limits: tuple[float, float] | None = None,
    every_run: bool = False,
) -> Panel:
    """The mean curves of some cells; with ``every_run`` the runs' own as well."""

    def draw(ax: Axes) -> None:
        from matplotlib.ticker import EngFormatter, MaxNLocator

        for cell in cells:
            look, (steps, returns) = looks[cell.label], cell.curves
            for run in cell.completed if every_run else ():
                ax.plot(run.timesteps, run.returns, color=look.colour, linewidth=0.6, alpha=0.5)
            if len(steps):
                mean, low, high = mean_interval(returns)
                every = max(1, len(steps) // 4)
                (line,) = ax.plot(steps, mean, color=look.colour, linestyle=styles.get(cell, "-"))
                line.set(marker=look.marker, markevery=(every - 1, every), linewidth=2 if every_run else 1.5)
                _band(ax, steps, low, high, look, len(returns))
        if not any(cell.n for cell in cells):
            words = "no completed run" if cells else "not in the study"
            ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", color=FAINT)
        if limits:
            ax.set_ylim(*limits)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        ax.yaxis.set_major_locator(MaxNLocator(5))

    return Panel(title, draw)


def _sweep(title: str, lines: Mapping[str, Mapping[Value, Estimate]], looks: Looks) -> Panel:
    """Estimates against the values of a parameter, a line for each algorithm; ``None`` is over all values."""
    values = sorted({value for points in lines.values() for value in points}, key=order_key)
    at = {value: [label for label in order_labels(lines) if value in lines[label]] for value in values}

    def draw(ax: Axes) -> None:
        for label, points in lines.items():
            x = [values.index(value) + _offset(at[value], label, 0.5) for value in points]
            y, low, high = np.array(list(points.values())).T
            ax.plot(x, y, color=looks[label].colour, marker=looks[label].marker, linewidth=0.8)
            ax.vlines(x, low, high, color=looks[label].colour, linewidth=2.2, alpha=0.6)
        ax.set_xticks(range(len(values)), ["all" if value is None else str(value) for value in values])
        ax.set(xlim=(-0.6, len(values) - 0.4), ylim=(-0.02, 1.02))

    return Panel(title, draw)


def _styles(cells: Sequence[Cell], name_of: Callable[[Cell], str]) -> tuple[dict[Cell, Dashes], list[Key]]:
    """A line style for each cell by a name that it shares with others, the smallest setting's solid."""
    ordered = sorted(cells, key=lambda cell: cell.setting.sort_key())
    lines = dict(zip(dict.fromkeys(map(name_of, ordered)), itertools.cycle(LINES), strict=False))
    return {c: lines[name_of(c)] for c in cells}, [Key(name, line=line) for name, line in lines.items()]


def _band(ax: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, look: Look, runs: int) -> None:
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
    counts = sorted({cell.n for cell in cells if cell.n}) or [0]
    text = f"Runs per line: {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}."
    text += " One run has no interval." if counts[0] == 1 else ""
    if lost := not_there(cells):
        completed, planned = sum(cell.n for cell in cells), sum(len(cell.runs) for cell in cells)
        text += f" {completed} of {planned} planned runs are completed ({lost})."
    return text


def _offset(labels: Sequence[str], label: str, width: float) -> float:
    """Beside each other, not on each other."""
    return width * ((labels.index(label) + 0.5) / len(labels) - 0.5)


def _seeds(rows: Sequence[Row]) -> tuple[int, ...]:
    return seeds_of(cell for row in rows for cell in row.cells)
