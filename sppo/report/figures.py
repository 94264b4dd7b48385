"""The report's figures, from cells and table rows.

Means are drawn with 95 % intervals: Student-t over runs for learning curves, stratified bootstrap for
aggregates. Where there is one run there is no interval, and the panel says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sppo.report.cells import Cell, Setting, display_name, order_environments, order_key, order_labels
from sppo.report.statistics import FEW_RUNS, mean_interval
from sppo.report.style import ALARM, INK, RULE, Key, Look, Panel, Plot, assign_looks, label_keys, line_styles
from sppo.report.summary import THRESHOLDS, Aggregate, Comparison, Profile, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def all_figures(summary: Summary, baseline: str = "ppo") -> list[Plot]:
    """Every figure that the study has the runs for, in reading order."""
    look = assign_looks(cell.label for cell in summary.cells)
    plots = [
        grid_figure(summary.cells, look),
        aggregate_figure(summary.aggregates, look),
        improvement_figure(summary.comparisons, look),
        profile_figure(summary.profiles, look),
        beyond_figure(summary.cells, look, baseline),
    ]
    return [plot for plot in plots if plot is not None]


def grid_figure(cells: Sequence[Cell], look: Look) -> Plot | None:
    """The paper's figure: environments down, ε across, m as line style, algorithm as colour."""
    grid = [cell for cell in cells if cell.setting.on_grid]
    if not grid:
        return None
    clips = sorted({cell.setting.clip_range for cell in grid}, key=order_key)
    styles = line_styles(cell.setting.n_epochs for cell in grid)
    environments = order_environments(cell.env for cell in grid)
    rows = []
    for env in environments:
        limits = _limits([cell for cell in grid if cell.env == env])
        row = []
        for clip in clips:
            inside = [c for c in grid if c.env == env and c.setting.clip_range == clip]
            lines = [_Line(c, look.colours[c.label], styles[c.setting.n_epochs], look.markers[c.label]) for c in inside]
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
    )


class _Line:
    """A cell and how to draw it."""

    def __init__(self, cell: Cell, colour: str, style: Any, marker: str = "") -> None:
        self.cell, self.colour, self.style, self.marker = cell, colour, style, marker


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
        _format_steps(ax)
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
    ax.plot(
        steps, mean, color=line.colour, linestyle=line.style, marker=line.marker or None, markevery=(every - 1, every)
    )  # fmt: skip
    if len(returns) > 1:
        ax.fill_between(steps, low, high, color=line.colour, alpha=0.18, linewidth=0)


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
    incomplete = [cell for cell in cells if cell.n < len(cell.runs)]
    if incomplete:
        listed = [f"{display_name(c.label)} {c.setting.text.split(',')[0]}: {c.tally()}" for c in incomplete[:5]]
        more = [f"and {len(incomplete) - 5} more lines incomplete"] if len(incomplete) > 5 else []
        return "\n".join(["runs completed"] * bool(listed) + listed + more), True
    numbers = sorted({cell.n for cell in cells})
    if not numbers:
        return "not in the study", False
    text = f"n = {numbers[0]}" if len(numbers) == 1 else f"n = {numbers[0]} to {numbers[-1]}"
    return text + (" (no interval)" if numbers == [1] else ""), False


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


def aggregate_figure(aggregates: Sequence[Aggregate], look: Look) -> Plot | None:
    """Interquartile mean against ε, one panel per m, and over all settings."""
    rows = [row for row in aggregates if row.setting is not None]
    if not rows:
        return None
    labels = order_labels(row.label for row in aggregates)
    settings = [row.setting for row in rows if row.setting is not None]
    clips = sorted({setting.clip_range for setting in settings}, key=order_key)
    panels = []
    for m in sorted({setting.n_epochs for setting in settings}, key=order_key):
        chosen = [row for row in rows if row.setting is not None and row.setting.n_epochs == m]
        positions = {clip: float(index) for index, clip in enumerate(clips)}
        panels.append(_aggregate_panel(f"m = {m}", chosen, positions, labels, look, [f"ε={c}" for c in clips]))
    overall = [row for row in aggregates if row.setting is None]
    if overall:
        panels.append(_aggregate_panel("all settings", overall, {None: 0.0}, labels, look, ["all"]))
    return Plot(
        name="iqm",
        title="Interquartile mean of normalised final returns",
        caption="Mean of the middle half of all runs, over environments, min-max normalised per environment "
        "(0 and 1: lowest and highest final return of any run of the study). Stratified bootstrap 95 % "
        f"intervals, {_few_text([row.least_runs for row in aggregates])}",
        rows=[panels],
        keys=label_keys(labels, look),
        x_label="",
        y_label="normalised score",
        seeds=_union(aggregates),
        panel_size=(3.2, 2.6),
    )


def _aggregate_panel(
    title: str,
    rows: Sequence[Aggregate],
    positions: dict[Any, float],
    labels: Sequence[str],
    look: Look,
    ticks: Sequence[str],
) -> Panel:
    def draw(ax: Axes) -> None:
        for index, label in enumerate(labels):
            offset = 0.5 * ((index + 0.5) / len(labels) - 0.5)
            own = [row for row in rows if row.label == label]
            x = [positions[row.setting.clip_range if row.setting else None] + offset for row in own]
            y = [row.iqm.value for row in own]
            ax.plot(x, y, color=look.colours[label], marker=look.markers[label], linewidth=0.8)
            for at, row in zip(x, own, strict=True):
                if row.iqm.has_interval:
                    ax.plot([at, at], [row.iqm.low, row.iqm.high], color=look.colours[label], linewidth=2.2, alpha=0.6)
        ax.set_xticks(list(positions.values()), ticks)
        ax.set_xlim(-0.6, max(positions.values()) + 0.6)
        ax.set_ylim(-0.02, 1.02)

    spoken = [
        f"{display_name(r.label)} {r.setting.text if r.setting else 'all settings'} {_spoken(r.iqm, 2)}" for r in rows
    ]
    return Panel(title, f"Interquartile mean of normalised final returns, {title}: " + "; ".join(spoken) + ".", draw)


def improvement_figure(comparisons: Sequence[Comparison], look: Look) -> Plot | None:
    """Probability of improvement over the baseline, pooled over environments."""
    pooled = [row for row in comparisons if not row.env]
    if not pooled:
        return None
    panels, tallest = [], 0
    for baseline in dict.fromkeys(row.baseline for row in pooled):
        rows = [row for row in pooled if row.baseline == baseline]
        panels.append(_improvement_panel(rows, baseline, look))
        tallest = max(tallest, len({row.setting for row in rows}))
    return Plot(
        name="improvement",
        title="Probability that a run beats a run of the baseline",
        caption="P(X > Y) + P(X = Y)/2 over all pairs of runs of the same environment and setting, averaged "
        "over environments; 0.5 is no difference. Stratified bootstrap 95 % intervals, "
        f"{_few_text([row.least_runs for row in pooled])}",
        rows=[panels],
        keys=label_keys({row.label for row in pooled}, look),
        x_label="probability of improvement",
        y_label="",
        seeds=_union(pooled),
        panel_size=(4.2, 1.0 + 0.26 * tallest),
    )


def _improvement_panel(rows: Sequence[Comparison], baseline: str, look: Look) -> Panel:
    settings = list(dict.fromkeys(row.setting for row in rows))
    labels = order_labels(row.label for row in rows)

    def draw(ax: Axes) -> None:
        ax.axvline(0.5, color=INK, linewidth=0.8)
        for row in rows:
            offset = 0.6 * ((labels.index(row.label) + 0.5) / len(labels) - 0.5)
            y = settings.index(row.setting) + offset
            colour = look.colours[row.label]
            if row.improvement.has_interval:
                ax.plot([row.improvement.low, row.improvement.high], [y, y], color=colour, linewidth=2.2, alpha=0.6)
            ax.plot([row.improvement.value], [y], color=colour, marker=look.markers[row.label], linestyle="none")
        ax.set_yticks(range(len(settings)), settings)
        ax.set_ylim(len(settings) - 0.4, -0.6)
        ax.set_xlim(-0.02, 1.02)

    spoken = [f"{display_name(r.label)} {r.setting} {_spoken(r.improvement, 2)}" for r in rows]
    title = f"against {display_name(baseline)}"
    return Panel(title, f"Probability of improvement {title}: " + "; ".join(spoken) + ".", draw)


def profile_figure(profiles: Sequence[Profile], look: Look) -> Plot | None:
    """Fraction of runs above each normalised score, one panel per m."""
    if not profiles:
        return None
    panels = [
        _profile_panel(f"m = {m}", [row for row in profiles if row.n_epochs == m], look)
        for m in sorted({row.n_epochs for row in profiles}, key=order_key)
    ]
    return Plot(
        name="profiles",
        title="Performance profiles",
        caption="Fraction of runs whose normalised final return lies above each score, over all environments and ε; "
        "higher is better everywhere. Same normalisation as above; pointwise stratified bootstrap 95 % bands, "
        f"{_few_text([row.least_runs for row in profiles])}",
        rows=[panels],
        keys=label_keys((row.label for row in profiles), look),
        x_label="normalised score",
        y_label="fraction of runs above",
        seeds=_union(profiles),
        panel_size=(3.4, 2.6),
    )


def _profile_panel(title: str, rows: Sequence[Profile], look: Look) -> Panel:
    def draw(ax: Axes) -> None:
        for row in rows:
            colour = look.colours[row.label]
            ax.plot(THRESHOLDS, row.value, color=colour, marker=look.markers[row.label], markevery=20)
            if row.least_runs > 1:
                ax.fill_between(THRESHOLDS, row.low, row.high, color=colour, alpha=0.18, linewidth=0)
        ax.set_xlim(0, 1)
        ax.set_ylim(-0.02, 1.02)

    spoken = [f"{display_name(r.label)} {r.value[50]:.0%} of {r.runs} runs above 0.5" for r in rows]
    return Panel(title, f"Performance profiles, {title}: " + "; ".join(spoken) + ".", draw)


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
        lines = [_Line(c, look.colours[c.label], styles[_line_value(c.setting)], look.markers[c.label]) for c in inside]
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


def _spoken(estimate: Any, digits: int) -> str:
    if not estimate.has_interval:
        return f"{estimate.value:.{digits}f}, no interval"
    return f"{estimate.value:.{digits}f}, 95 % interval {estimate.low:.{digits}f} to {estimate.high:.{digits}f}"


def _few_text(runs: Sequence[int]) -> str:
    least = min(runs)
    if least < 2:
        return "absent where a task has a single run."
    if least < FEW_RUNS:
        return f"which are too narrow on average with as few as {least} runs per task."
    return f"at least {least} runs per task."


def _seeds(cells: Sequence[Cell]) -> tuple[int, ...]:
    return tuple(sorted({run.seed for cell in cells for run in cell.completed}))


def _union(rows: Sequence[Aggregate] | Sequence[Comparison] | Sequence[Profile]) -> tuple[int, ...]:
    return tuple(sorted({seed for row in rows for seed in row.seeds}))
