"""The report's figures: learning curves, and what the tables say about all runs together.

Aggregates are drawn with stratified bootstrap 95 % intervals, which need two runs of every task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sppo.report.cells import display_name, order_key, order_labels
from sppo.report.curves import band, beyond_figure, grid_figure
from sppo.report.statistics import FEW_RUNS, Estimate
from sppo.report.style import INK, Look, Panel, Plot, assign_looks, label_keys
from sppo.report.summary import THRESHOLDS, Aggregate, Comparison, Profile, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: how an interval is drawn beside its marker
_BAR: dict[str, Any] = {"linewidth": 2.2, "alpha": 0.6}


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
        ticks = [f"ε={clip}" for clip in clips]
        panels.append(_aggregate_panel(f"m = {m}", chosen, positions, labels, look, ticks))
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
                    ax.plot([at, at], [row.iqm.low, row.iqm.high], color=look.colours[label], **_BAR)
        ax.set_xticks(list(positions.values()), ticks)
        ax.set_xlim(-0.6, max(positions.values()) + 0.6)
        ax.set_ylim(-0.02, 1.02)

    spoken = "; ".join(
        f"{display_name(row.label)} {row.setting.text if row.setting else 'all settings'} {_spoken(row.iqm)}"
        for row in rows
    )
    return Panel(title, f"Interquartile mean of normalised final returns, {title}: {spoken}.", draw)


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
                ax.plot([row.improvement.low, row.improvement.high], [y, y], color=colour, **_BAR)
            ax.plot([row.improvement.value], [y], look.markers[row.label], color=colour)
        ax.set_yticks(range(len(settings)), settings)
        ax.set_ylim(len(settings) - 0.4, -0.6)
        ax.set_xlim(-0.02, 1.02)

    spoken = [f"{display_name(r.label)} {r.setting} {_spoken(r.improvement)}" for r in rows]
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
        caption="Fraction of runs whose normalised final return lies above each score, over all environments "
        "and ε; higher is better everywhere. Same normalisation as above; pointwise stratified bootstrap "
        "95 % bands, "
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
                ax.fill_between(
                    THRESHOLDS, row.low, row.high, color=colour, alpha=band(row.least_runs), linewidth=0
                )
        ax.set_xlim(0, 1)
        ax.set_ylim(-0.02, 1.02)

    spoken = [f"{display_name(r.label)} {r.value[50]:.0%} of {r.runs} runs above 0.5" for r in rows]
    return Panel(title, f"Performance profiles, {title}: " + "; ".join(spoken) + ".", draw)


def _spoken(estimate: Estimate) -> str:
    if not estimate.has_interval:
        return f"{estimate.value:.2f}, no interval"
    return f"{estimate.value:.2f}, 95 % interval {estimate.low:.2f} to {estimate.high:.2f}"


def _few_text(runs: Sequence[int]) -> str:
    least = min(runs)
    if least < 2:
        return "absent where a task has a single run."
    if least < FEW_RUNS:
        return f"which are too narrow on average with as few as {least} runs per task."
    return f"at least {least} runs per task."


def _union(rows: Sequence[Aggregate] | Sequence[Comparison] | Sequence[Profile]) -> tuple[int, ...]:
    return tuple(sorted({seed for row in rows for seed in row.seeds}))
