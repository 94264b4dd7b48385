"""The report's figures: learning curves, and what the tables say about all runs together.

Aggregates are drawn with stratified bootstrap 95 % intervals, which need two runs of every task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sppo.report.cells import Value, grouped, order_environments, order_key, seeds_of
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
    pooled = [row for row in summary.comparisons if row.env is None]
    plots = [
        grid_figure(summary.cells, looks),
        aggregate_figure(summary.aggregates, looks) if summary.aggregates else None,
        improvement_figure(pooled, looks) if pooled else None,
        profile_figure(summary.profiles, looks) if summary.profiles else None,
        beyond_figure(summary.cells, looks, baseline),
    ]
    return [plot for plot in plots if plot is not None]


def aggregate_figure(aggregates: Sequence[Aggregate], looks: Mapping[str, Look]) -> Plot:
    """Interquartile mean against ε, one panel per m, and over all settings."""
    labels = order_labels(row.label for row in aggregates)

    def panel(m: Value, rows: Sequence[Aggregate]) -> Panel:
        # over all settings there is one place for all clips
        clips: list[Value] = [None] if m is None else every_clip

        def draw(ax: Axes) -> None:
            for label, own in grouped(rows, lambda row: row.label).items():
                look, offset = looks[label], _offset(labels, label, 0.5)
                x = [clips.index(row.setting.clip_range if row.setting else None) + offset for row in own]
                ax.plot(x, [r.iqm.value for r in own], color=look.colour, marker=look.marker, linewidth=0.8)
                for at, row in zip(x, own, strict=True):
                    if row.iqm.has_interval:
                        ax.plot([at, at], [row.iqm.low, row.iqm.high], color=look.colour, **_BAR)
            ax.set_xticks(range(len(clips)), ["all" if clip is None else str(clip) for clip in clips])
            ax.set_xlim(-0.6, len(clips) - 0.4)
            ax.set_ylim(-0.02, 1.02)

        title = "all m and ε together" if m is None else f"m = {m}"
        spoken = "; ".join(f"{looks[row.label].title} {row.where} {row.iqm.spoken}" for row in rows)
        return Panel(title, f"Interquartile mean of normalised final returns, {title}: {spoken}.", draw)

    every_clip = sorted({row.setting.clip_range for row in aggregates if row.setting}, key=order_key)
    panels = grouped(aggregates, lambda row: row.setting.n_epochs if row.setting else None)
    return Plot(
        name="iqm",
        title="Interquartile mean of normalised final returns",
        caption="IQM: mean of the middle half of all runs, over environments. "
        f"{NORMALISATION} {_intervals_text(aggregates)}",
        rows=[[panel(m, rows) for m, rows in panels.items()]],
        keys=label_keys(labels, looks),
        x_label="clip ε",
        y_label="IQM of normalised final return",
        seeds=_seeds(aggregates),
        panel_size=(3.2, 2.6),
    )


def improvement_figure(pooled: Sequence[Comparison], looks: Mapping[str, Look]) -> Plot:
    """Probability of improvement over the baseline, pooled over environments."""

    def panel(baseline: str, rows: Sequence[Comparison]) -> Panel:
        settings = list(dict.fromkeys(row.setting for row in rows))
        labels = order_labels(row.label for row in rows)

        def draw(ax: Axes) -> None:
            ax.axvline(0.5, color=INK, linewidth=0.8)
            for row in rows:
                y = settings.index(row.setting) + _offset(labels, row.label, 0.6)
                look, found = looks[row.label], row.improvement
                if found.has_interval:
                    ax.plot([found.low, found.high], [y, y], color=look.colour, **_BAR)
                ax.plot([found.value], [y], look.marker, color=look.colour)
            ax.set_yticks(range(len(settings)), settings)
            ax.set_ylim(len(settings) - 0.4, -0.6)
            ax.set_xlim(-0.02, 1.02)

        spoken = [f"{looks[row.label].title} {row.setting} {row.improvement.spoken}" for row in rows]
        title = f"against {looks[baseline].title}"
        return Panel(title, f"Probability of improvement {title}: " + "; ".join(spoken) + ".", draw)

    by_baseline = grouped(pooled, lambda row: row.baseline)
    tallest = max(len({row.setting for row in rows}) for rows in by_baseline.values())
    return Plot(
        name="improvement",
        title="Probability that a run beats a run of the baseline",
        caption="P(X > Y) + P(X = Y)/2 for the final returns X of a run and Y of a run of the baseline: over "
        "all pairs of the same environment and setting, averaged over environments (returns are not "
        f"normalised for it). 0.5, the vertical line, is no difference. {_intervals_text(pooled)}",
        rows=[[panel(baseline, rows) for baseline, rows in by_baseline.items()]],
        keys=label_keys({row.label for row in pooled}, looks),
        x_label="probability that a run beats\na run of the baseline",
        y_label="setting",
        seeds=_seeds(pooled),
        panel_size=(4.2, 1.0 + 0.26 * tallest),
    )


def profile_figure(profiles: Sequence[Profile], looks: Mapping[str, Look]) -> Plot:
    """Fraction of runs above each normalised score, one panel per m."""

    def panel(m: Value, rows: Sequence[Profile]) -> Panel:
        def draw(ax: Axes) -> None:
            for row in rows:
                look, few = looks[row.label], band(row.least_runs)
                ax.plot(THRESHOLDS, row.value, color=look.colour, marker=look.marker, markevery=20)
                if row.least_runs > 1:
                    ax.fill_between(THRESHOLDS, row.low, row.high, color=look.colour, alpha=few, linewidth=0)
            ax.set_xlim(0, 1)
            ax.set_ylim(-0.02, 1.02)

        spoken = [f"{looks[r.label].title} {r.value[50]:.0%} of {r.n} runs above 0.5" for r in rows]
        return Panel(f"m = {m}", f"Performance profiles, m = {m}: " + "; ".join(spoken) + ".", draw)

    return Plot(
        name="profiles",
        title="Performance profiles",
        caption="Fraction of runs whose normalised final return lies above each score, over all environments "
        f"and ε; higher is better everywhere. {NORMALISATION} {_intervals_text(profiles, 'pointwise ')}",
        rows=[[panel(m, rows) for m, rows in grouped(profiles, lambda row: row.n_epochs).items()]],
        keys=label_keys((row.label for row in profiles), looks),
        x_label="normalised final return",
        y_label="fraction of runs above",
        seeds=_seeds(profiles),
        panel_size=(3.4, 2.6),
    )


def _offset(labels: Sequence[str], label: str, width: float) -> float:
    """Beside each other, not on each other."""
    return width * ((labels.index(label) + 0.5) / len(labels) - 0.5)


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
