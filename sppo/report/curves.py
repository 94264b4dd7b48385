"""Learning curves: the paper's grid of panels, the cells that have no place on it, and any log directory's.

Means are drawn with 95 % Student-t intervals over runs. The caption says how many runs a line stands for,
which have no interval, and what is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sppo.report.cells import Cell, grouped, not_there, order_key, seeds_of
from sppo.report.labels import Look
from sppo.report.plots import FAINT, RULE, Dashes, Key, Panel, Plot, in_rows, label_keys, line_styles
from sppo.report.statistics import FEW_RUNS, mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: a cell, its look and its line style
Line = tuple[Cell, Look, Dashes]

MEANS = "Mean return of the deterministic policy over completed runs, with 95 % Student-t intervals"


def grid_figure(cells: Sequence[Cell], looks: Mapping[str, Look]) -> Plot | None:
    """The paper's figure: environments down, ε across, m as line style, algorithm as colour."""
    grid = [cell for cell in cells if cell.setting.on_grid]
    if not grid:
        return None
    clips = sorted({cell.setting.clip_range for cell in grid}, key=order_key)
    styles = line_styles(cell.setting.n_epochs for cell in grid)
    lines = [(cell, looks[cell.label], styles[cell.setting.n_epochs]) for cell in grid]
    # An environment that the study has not come to would be a row of empty panels: it is named instead.
    by_env = grouped(lines, lambda line: line[0].env)
    begun = [env for env, own in by_env.items() if any(cell.n for cell, _, _ in own)] or list(by_env)
    rows = []
    for env in begun:
        limits = _limits([cell for cell, _, _ in by_env[env]])
        inside = {clip: [x for x in by_env[env] if x[0].setting.clip_range == clip] for clip in clips}
        rows.append([_panel(f"{env}, ε = {clip}", own, limits) for clip, own in inside.items()])
    absent = ", ".join(env for env in by_env if env not in begun)
    nothing = f" No completed run yet: {absent}." if absent else ""
    keys = label_keys((cell.label for cell in grid), looks)
    return Plot(
        name="grid",
        title="Learning curves: environments down, clip ε across, passes m as line style",
        caption=f"{MEANS}; bands of few runs may leave the panel. {runs_text(grid)}{nothing}",
        rows=rows,
        keys=[*keys, *(Key(f"m = {m}", line=style) for m, style in styles.items())],
        x_label="environment steps",
        y_label="return",
        seeds=seeds_of(grid),
    )


def beyond_figure(cells: Sequence[Cell], looks: Mapping[str, Look], baseline: str) -> Plot | None:
    """Algorithms without a place on the m × ε grid: divergence with step size η, trust region."""
    beyond = [cell for cell in cells if not cell.setting.on_grid]
    if not beyond:
        return None
    styles = line_styles(cell.setting.text for cell in beyond)
    grid = [cell for cell in cells if cell.setting.on_grid and cell.label == baseline]
    panels = []
    for env, inside in grouped(beyond, lambda cell: cell.env).items():
        grey = [cell for cell in grid if cell.env == env and cell.n]
        lines = [(cell, looks[cell.label], styles[cell.setting.text]) for cell in inside]
        panels.append(_panel(env, lines, _limits([*inside, *grey]), faint=grey))
    keys = label_keys((cell.label for cell in beyond), looks)
    keys += [Key(str(value), line=style) for value, style in styles.items()]
    caption = f"{MEANS}. {runs_text(beyond)}"
    if grid:
        name = looks[baseline].title
        keys.append(Key(f"{name}, all m and ε", colour=RULE))
        caption += f" Grey: mean of each of {name}'s cells on the grid."
    return Plot(
        name="beyond",
        title="Beyond the grid: divergence step size η and trust region",
        caption=caption,
        rows=in_rows(panels),
        keys=keys,
        x_label="environment steps",
        y_label="return",
        seeds=seeds_of(beyond),
        panel_size=(3.6, 2.7),
    )


def logged_figure(cells: Sequence[Cell], looks: Mapping[str, Look], tag: str) -> Plot:
    """Every run of a log directory and their means, a panel for each task."""
    lines: list[Line] = [(cell, looks[cell.label], "-") for cell in cells]
    tasks = grouped(lines, lambda line: line[0].task)
    panels = [_panel(task or "all runs", own, None, every_run=True) for task, own in tasks.items()]
    return Plot(
        name="compare",
        title=f"Learning curves: {tag}",
        caption=f"{tag}: each run as a thin line, the mean of each algorithm as a thick one with its 95 % "
        "Student-t interval, over the steps that all of its runs have.",
        rows=in_rows(panels),
        keys=label_keys((cell.label for cell in cells), looks),
        x_label="environment steps",
        y_label=tag,
        panel_size=(5.0, 3.2) if len(panels) == 1 else (3.6, 2.6),
    )


def runs_text(cells: Sequence[Cell]) -> str:
    """How many runs the lines stand for, by environment, and which runs are not there."""
    found: dict[str, list[str]] = {}
    for env, own in grouped((cell for cell in cells if cell.n), lambda cell: cell.env).items():
        counts = [cell.n for cell in own]
        text = " to ".join(str(n) for n in dict.fromkeys((min(counts), max(counts))))
        found.setdefault(text, []).append(env)
    runs = "; ".join(f"{', '.join(environments)}: {text}" for text, environments in found.items())
    text = f"Runs per line: {runs}." if runs else ""
    if any(cell.n == 1 for cell in cells):
        text += " One run has no interval."
    if lost := not_there(cells):
        completed, planned = sum(cell.n for cell in cells), sum(len(cell.runs) for cell in cells)
        text += f" {completed} of {planned} planned runs are completed ({lost})."
    return text.strip()


def band(runs: int) -> float:
    """Opacity of an interval: those of few runs fill the panel, and lines must be seen through them."""
    return 0.18 if runs >= FEW_RUNS else 0.07


def _panel(
    title: str,
    lines: Sequence[Line],
    limits: tuple[float, float] | None,
    faint: Sequence[Cell] = (),
    every_run: bool = False,
) -> Panel:
    def draw(ax: Axes) -> None:
        for cell in faint:
            steps, returns = cell.curves
            ax.plot(steps, returns.mean(axis=0), color=RULE, linewidth=1, zorder=1)
        for line in lines:
            if line[0].n:
                _draw_line(ax, line, every_run)
        if not any(cell.n for cell, _, _ in lines):
            words = "no completed run" if lines else "not in the study"
            ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", color=FAINT)
        if limits:
            ax.set_ylim(*limits)
        _format_steps(ax)

    spoken = "; ".join(
        f"{look.title} {cell.setting.text} {cell.mean.spoken}, n {cell.tally()}" for cell, look, _ in lines
    )
    return Panel(title, f"Learning curves, {title}. Final mean: {spoken}.", draw)


def _draw_line(ax: Axes, line: Line, every_run: bool) -> None:
    cell, look, style = line
    for run in cell.completed if every_run else ():
        ax.plot(run.timesteps, run.returns, color=look.colour, linewidth=0.6, alpha=0.5)
    steps, returns = cell.curves
    if not len(steps):
        return
    mean, low, high = mean_interval(returns)
    every = max(1, len(steps) // 4)
    ax.plot(
        steps, mean, color=look.colour, linestyle=style, marker=look.marker, markevery=(every - 1, every),
        linewidth=2 if every_run else None,
    )  # fmt: skip
    if len(returns) > 1:
        ax.fill_between(steps, low, high, color=look.colour, alpha=band(len(returns)), linewidth=0)


def _limits(cells: Sequence[Cell]) -> tuple[float, float] | None:
    """Bounds that show the middle 95 % of runs and all means; intervals of two runs would dwarf both."""
    curves = [cell.curves[1] for cell in cells]
    bounds = [np.percentile(values, [2.5, 97.5], axis=0) for values in curves if values.size]
    low = min((float(each[0].min()) for each in bounds), default=0.0)
    high = max((float(each[1].max()) for each in bounds), default=0.0)
    margin = 0.05 * (high - low)
    return (low - margin, high + margin) if low < high else None


def _format_steps(ax: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    def short(value: float, _: int) -> str:
        for size, letter in ((1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:g}{letter}"
        return f"{value:g}"

    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.xaxis.set_major_formatter(FuncFormatter(short))
    ax.yaxis.set_major_locator(MaxNLocator(5))
