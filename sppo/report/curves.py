"""Learning curves: the paper's grid of panels, and the cells that have no place on it.

Means are drawn with 95 % Student-t intervals over runs. Where there is one run there is no interval, and
the panel says so; runs that are not there are counted in the panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sppo.report.cells import Cell, Setting, display_name, not_there, order_environments, order_key
from sppo.report.statistics import FEW_RUNS, mean_interval
from sppo.report.style import ALARM, INK, RULE, Key, Look, Panel, Plot, label_keys, line_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def grid_figure(cells: Sequence[Cell], look: Look) -> Plot | None:
    """The paper's figure: environments down, ε across, m as line style, algorithm as colour."""
    grid = [cell for cell in cells if cell.setting.on_grid]
    if not grid:
        return None
    clips = sorted({cell.setting.clip_range for cell in grid}, key=order_key)
    styles = line_styles(cell.setting.n_epochs for cell in grid)
    # An environment that the study has not come to would be a row of empty panels: it is named instead.
    planned = order_environments(cell.env for cell in grid)
    begun = order_environments(cell.env for cell in grid if cell.n) or planned
    absent = [env for env in planned if env not in begun]
    rows = []
    for env in begun:
        limits = _limits([cell for cell in grid if cell.env == env])
        row = []
        for clip in clips:
            inside = [c for c in grid if c.env == env and c.setting.clip_range == clip]
            lines = [_line(cell, look, styles[cell.setting.n_epochs]) for cell in inside]
            row.append(_curve_panel(f"{env}, ε = {clip}", lines, limits))
        rows.append(row)
    keys = label_keys((cell.label for cell in grid), look)
    keys += [Key(f"m = {m}", line=style) for m, style in styles.items()]
    return Plot(
        name="grid",
        title="Learning curves: environments down, clip ε across, passes m as line style",
        caption="Mean return of the deterministic policy over completed runs, with 95 % Student-t intervals. "
        "Bands may leave the panel where runs are few.",
        rows=rows,
        keys=keys,
        x_label="environment steps",
        y_label="return",
        seeds=_seeds(grid),
        absent=f"No completed run yet: {', '.join(absent)}." if absent else "",
    )


@dataclass(frozen=True, eq=False)
class _Line:
    """A cell and how to draw it."""

    cell: Cell
    colour: str
    style: Any
    marker: str


def _line(cell: Cell, look: Look, style: Any) -> _Line:
    return _Line(cell, look.colours[cell.label], style, look.markers[cell.label])


def _curve_panel(
    title: str, lines: Sequence[_Line], limits: tuple[float, float] | None, faint: Sequence[Cell] = ()
) -> Panel:
    def draw(ax: Axes) -> None:
        for cell in faint:
            steps, returns = cell.curves
            ax.plot(steps, returns.mean(axis=0), color=RULE, linewidth=1, zorder=1)
        for line in lines:
            if line.cell.n:
                _draw_curve(ax, line)
        if limits:
            ax.set_ylim(*limits)
        format_steps(ax)
        note, alarm = _panel_note([line.cell for line in lines])
        ax.text(
            0.02, 0.98, note, transform=ax.transAxes, va="top", fontsize=6.5, color=ALARM if alarm else INK,
            linespacing=1.3,
        )  # fmt: skip

    return Panel(title, _curve_alt(title, [line.cell for line in lines]), draw)


def _draw_curve(ax: Axes, line: _Line) -> None:
    steps, returns = line.cell.curves
    mean, low, high = mean_interval(returns)
    every = max(1, len(steps) // 4)
    marks: dict[str, Any] = {"marker": line.marker, "markevery": (every - 1, every)}
    ax.plot(steps, mean, color=line.colour, linestyle=line.style, **marks)
    if len(returns) > 1:
        ax.fill_between(steps, low, high, color=line.colour, alpha=band(len(returns)), linewidth=0)


def band(runs: int) -> float:
    """Opacity of an interval: those of few runs fill the panel, and lines must be seen through them."""
    return 0.18 if runs >= FEW_RUNS else 0.07


def _limits(cells: Sequence[Cell]) -> tuple[float, float] | None:
    """Bounds that show the middle 95 % of runs and all means; intervals of two runs would dwarf both."""
    low, high = np.inf, -np.inf
    for cell in cells:
        if cell.n:
            returns = cell.curves[1]
            bounds = np.percentile(returns, [2.5, 97.5], axis=0)
            low, high = min(low, bounds[0].min()), max(high, bounds[1].max())
    if not low < high:
        return None
    margin = 0.05 * (high - low)
    # the note with the number of runs stands at the top of the panel
    return float(low - margin), float(high + 4 * margin)


def _panel_note(cells: Sequence[Cell]) -> tuple[str, bool]:
    """How many runs the panel's lines stand for, and whether any is not there."""
    numbers = sorted({cell.n for cell in cells})
    if not numbers:
        return "not in the study", False
    text = f"n = {numbers[0]}" if len(numbers) == 1 else f"n = {numbers[0]} to {numbers[-1]}"
    text += " (no interval)" if numbers == [1] else ""
    lost = not_there(cells)
    if not lost:
        return text, False
    completed, planned = sum(cell.n for cell in cells), sum(len(cell.runs) for cell in cells)
    return f"{text}; {completed} of {planned} runs\n({lost})", True


def _curve_alt(title: str, cells: Sequence[Cell]) -> str:
    parts = []
    for cell in cells:
        name = f"{display_name(cell.label)} {cell.setting.text}"
        if not cell.n:
            parts.append(f"{name} no completed run, {cell.tally()}")
            continue
        mean, low, high = mean_interval(cell.finals)
        interval = f", 95 % interval {low:.0f} to {high:.0f}" if cell.n > 1 else ", no interval"
        parts.append(f"{name} {mean:.0f}{interval}, n {cell.tally()}")
    return f"Learning curves, {title}. Final mean return: " + "; ".join(parts) + "."


def beyond_figure(cells: Sequence[Cell], look: Look, baseline: str) -> Plot | None:
    """Algorithms without a place on the m × ε grid: divergence with step size η, trust region."""
    beyond = [cell for cell in cells if not cell.setting.on_grid]
    if not beyond:
        return None
    styles = line_styles(_line_value(cell.setting) for cell in beyond)
    panels = []
    for env in order_environments(cell.env for cell in beyond):
        inside = [cell for cell in beyond if cell.env == env]
        grey = [c for c in cells if c.env == env and c.setting.on_grid and c.label == baseline and c.n]
        lines = [_line(cell, look, styles[_line_value(cell.setting)]) for cell in inside]
        panels.append(_curve_panel(env, lines, _limits([*inside, *grey]), faint=grey))
    keys = label_keys((cell.label for cell in beyond), look)
    keys += [Key(value or "default", line=style) for value, style in styles.items()]
    has_baseline = any(cell.label == baseline and cell.setting.on_grid for cell in cells)
    if has_baseline:
        keys.append(Key(f"{display_name(baseline)}, all m and ε", colour=RULE))
    return Plot(
        name="beyond",
        title="Beyond the grid: divergence step size η and trust region",
        caption="Mean return with 95 % Student-t intervals."
        + (f" Grey: mean of each of {display_name(baseline)}'s cells on the grid." if has_baseline else ""),
        rows=[panels[start : start + 3] for start in range(0, len(panels), 3)],
        keys=keys,
        x_label="environment steps",
        y_label="return",
        seeds=_seeds(beyond),
        panel_size=(3.6, 2.7),
    )


def _line_value(setting: Setting) -> str:
    return setting.text if setting.text != "default" else ""


def format_steps(ax: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    def short(value: float, _: int) -> str:
        for size, letter in ((1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:g}{letter}"
        return f"{value:g}"

    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.xaxis.set_major_formatter(FuncFormatter(short))
    ax.yaxis.set_major_locator(MaxNLocator(5))


def _seeds(cells: Sequence[Cell]) -> tuple[int, ...]:
    return tuple(sorted({run.seed for cell in cells for run in cell.completed}))
