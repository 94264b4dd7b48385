"""The report's figures: learning curves, and what the tables say about all runs together.

Aggregates are drawn with stratified bootstrap 95 % intervals, which need two runs of every task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sppo.report.cells import Value, order_environments, order_key, seeds_of
from sppo.report.curves import band, beyond_figure, grid_figure
from sppo.report.labels import Look, order_labels
from sppo.report.plots import INK, Panel, Plot, label_keys
from sppo.report.statistics import FEW_RUNS
from sppo.report.summary import THRESHOLDS, Aggregate, Comparison, Profile, Row, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: how an interval is drawn beside its marker
_BAR: dict[str, Any] = {"linewidth": 2.2, "alpha": 0.6}
NORMALISATION = (
    "Final returns are min-max normalised per environment: 0 and 1 are the lowest and the highest final "
    "return of any run of the study there."
)


def all_figures(summary: Summary, looks: Mapping[str, Look], baseline: str) -> list[Plot]:
    """Every figure that the study has the runs for, in reading order."""
    plots = [
        grid_figure(summary.cells, looks),
        aggregate_figure(summary.aggregates, looks),
        improvement_figure(summary.comparisons, looks),
        profile_figure(summary.profiles, looks),
        beyond_figure(summary.cells, looks, baseline),
    ]
    return [plot for plot in plots if plot is not None]


def aggregate_figure(aggregates: Sequence[Aggregate], looks: Mapping[str, Look]) -> Plot | None:
    """Interquartile mean against ε, one panel per m, and over all settings."""
    settings = {row.setting for row in aggregates if row.setting is not None}
    if not settings:
        return None
    labels = order_labels(row.label for row in aggregates)
    clips = sorted({setting.clip_range for setting in settings}, key=order_key)
    panels = []
    for m in sorted({setting.n_epochs for setting in settings}, key=order_key):
        chosen = [row for row in aggregates if row.setting is not None and row.setting.n_epochs == m]
        panels.append(_aggregate_panel(f"m = {m}", chosen, clips, labels, looks))
    overall = [row for row in aggregates if row.setting is None]
    if overall:
        panels.append(_aggregate_panel("all m and ε together", overall, [None], labels, looks))
    return Plot(
        name="iqm",
        title="Interquartile mean of normalised final returns",
        caption="IQM: mean of the middle half of all runs, over environments. "
        f"{NORMALISATION} {_intervals_text(aggregates)}",
        rows=[panels],
        keys=label_keys(labels, looks),
        x_label="clip ε",
        y_label="IQM of normalised final return",
        seeds=_seeds(aggregates),
        panel_size=(3.2, 2.6),
    )


def _aggregate_panel(
    title: str,
    rows: Sequence[Aggregate],
    clips: Sequence[Value],
    labels: Sequence[str],
    looks: Mapping[str, Look],
) -> Panel:
    def draw(ax: Axes) -> None:
        for index, label in enumerate(labels):
            offset = 0.5 * ((index + 0.5) / len(labels) - 0.5)
            own = [row for row in rows if row.label == label]
            x = [clips.index(row.setting.clip_range if row.setting else None) + offset for row in own]
            look = looks[label]
            ax.plot(x, [row.iqm.value for row in own], color=look.colour, marker=look.marker, linewidth=0.8)
            for at, row in zip(x, own, strict=True):
                if row.iqm.has_interval:
                    ax.plot([at, at], [row.iqm.low, row.iqm.high], color=look.colour, **_BAR)
        ax.set_xticks(range(len(clips)), ["all" if clip is None else str(clip) for clip in clips])
        ax.set_xlim(-0.6, len(clips) - 0.4)
        ax.set_ylim(-0.02, 1.02)

    spoken = "; ".join(f"{looks[row.label].title} {row.where} {row.iqm.spoken}" for row in rows)
    return Panel(title, f"Interquartile mean of normalised final returns, {title}: {spoken}.", draw)


def improvement_figure(comparisons: Sequence[Comparison], looks: Mapping[str, Look]) -> Plot | None:
    """Probability of improvement over the baseline, pooled over environments."""
    pooled = [row for row in comparisons if row.env is None]
    if not pooled:
        return None
    by_baseline = {
        baseline: [row for row in pooled if row.baseline == baseline]
        for baseline in dict.fromkeys(row.baseline for row in pooled)
    }
    tallest = max(len({row.setting for row in rows}) for rows in by_baseline.values())
    return Plot(
        name="improvement",
        title="Probability that a run beats a run of the baseline",
        caption="P(X > Y) + P(X = Y)/2 for the final returns X of a run and Y of a run of the baseline: over "
        "all pairs of the same environment and setting, averaged over environments (returns are not "
        f"normalised for it). 0.5, the vertical line, is no difference. {_intervals_text(pooled)}",
        rows=[[_improvement_panel(rows, baseline, looks) for baseline, rows in by_baseline.items()]],
        keys=label_keys({row.label for row in pooled}, looks),
        x_label="probability that a run beats\na run of the baseline",
        y_label="setting",
        seeds=_seeds(pooled),
        panel_size=(4.2, 1.0 + 0.26 * tallest),
    )


def _improvement_panel(rows: Sequence[Comparison], baseline: str, looks: Mapping[str, Look]) -> Panel:
    settings = list(dict.fromkeys(row.setting for row in rows))
    labels = order_labels(row.label for row in rows)

    def draw(ax: Axes) -> None:
        ax.axvline(0.5, color=INK, linewidth=0.8)
        for row in rows:
            offset = 0.6 * ((labels.index(row.label) + 0.5) / len(labels) - 0.5)
            y = settings.index(row.setting) + offset
            look = looks[row.label]
            if row.improvement.has_interval:
                ax.plot([row.improvement.low, row.improvement.high], [y, y], color=look.colour, **_BAR)
            ax.plot([row.improvement.value], [y], look.marker, color=look.colour)
        ax.set_yticks(range(len(settings)), settings)
        ax.set_ylim(len(settings) - 0.4, -0.6)
        ax.set_xlim(-0.02, 1.02)

    spoken = [f"{looks[r.label].title} {r.setting} {r.improvement.spoken}" for r in rows]
    title = f"against {looks[baseline].title}"
    return Panel(title, f"Probability of improvement {title}: " + "; ".join(spoken) + ".", draw)


def profile_figure(profiles: Sequence[Profile], looks: Mapping[str, Look]) -> Plot | None:
    """Fraction of runs above each normalised score, one panel per m."""
    if not profiles:
        return None
    panels = [
        _profile_panel(f"m = {m}", [row for row in profiles if row.n_epochs == m], looks)
        for m in sorted({row.n_epochs for row in profiles}, key=order_key)
    ]
    return Plot(
        name="profiles",
        title="Performance profiles",
        caption="Fraction of runs whose normalised final return lies above each score, over all environments "
        f"and ε; higher is better everywhere. {NORMALISATION} {_intervals_text(profiles, 'pointwise ')}",
        rows=[panels],
        keys=label_keys((row.label for row in profiles), looks),
        x_label="normalised final return",
        y_label="fraction of runs above",
        seeds=_seeds(profiles),
        panel_size=(3.4, 2.6),
    )


def _profile_panel(title: str, rows: Sequence[Profile], looks: Mapping[str, Look]) -> Panel:
    def draw(ax: Axes) -> None:
        for row in rows:
            look = looks[row.label]
            ax.plot(THRESHOLDS, row.value, color=look.colour, marker=look.marker, markevery=20)
            if row.least_runs > 1:
                ax.fill_between(
                    THRESHOLDS, row.low, row.high, color=look.colour, alpha=band(row.least_runs), linewidth=0
                )
        ax.set_xlim(0, 1)
        ax.set_ylim(-0.02, 1.02)

    spoken = [f"{looks[r.label].title} {r.value[50]:.0%} of {r.n} runs above 0.5" for r in rows]
    return Panel(title, f"Performance profiles, {title}: " + "; ".join(spoken) + ".", draw)


def _intervals_text(rows: Sequence[Row], kind: str = "") -> str:
    """What the intervals are, and why some or all are not there."""
    what = f"{kind}stratified bootstrap 95 % intervals"
    single = ", ".join(order_environments(cell.env for row in rows for cell in row.cells if cell.n == 1))
    drawn = [row.least_runs for row in rows if row.least_runs > 1]
    if not drawn:
        return f"No {what}: they need two runs of every cell, and there are cells of {single} with one."
    text = what.capitalize()
    text += f" where there are two runs of every cell ({single}: one)." if single else "."
    if min(drawn) < FEW_RUNS:
        text += f" With as few as {min(drawn)} runs per cell they are too narrow on average."
    return text


def _seeds(rows: Sequence[Row]) -> tuple[int, ...]:
    return seeds_of(cell for row in rows for cell in row.cells)
