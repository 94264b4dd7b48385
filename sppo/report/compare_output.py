"""What ``python -m sppo compare`` writes: learning curves as PNG, the table as CSV, both as HTML."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sppo.report.cells import display_name
from sppo.report.curves import format_steps
from sppo.report.events import Series
from sppo.report.html import estimate_html, figure_html, page, table_html
from sppo.report.provenance import Provenance, installed
from sppo.report.statistics import mean_interval
from sppo.report.style import Look, Panel, Plot, assign_looks, label_keys, require_matplotlib, write_sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sppo.report.compare import Group

#: points at which the curves of runs that logged at different steps are averaged
_POINTS = 200


def write_outputs(
    groups: Sequence[Group], tag: str, notes: Sequence[str], out: Path, command: str
) -> list[Path]:
    """Write ``compare.csv``, ``compare.png`` and ``compare.html``; returns their paths."""
    require_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    provenance = Provenance(command, installed("sppo", "tensorboard", "numpy", "matplotlib"))
    plot = _figure(groups, tag)
    table = out / "compare.csv"
    _write_table(groups, tag, table, provenance)
    figures = write_sheet(plot, out, _footer(groups, provenance), formats=("png",))
    document = out / "compare.html"
    document.write_text(_document(groups, tag, notes, plot, provenance), encoding="utf-8")
    return [*figures, table, document]


def mean_curve(series: Sequence[Series]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps and values ``(runs, steps)`` over the range that all runs cover, interpolated."""
    first = max(int(one.steps[0]) for one in series)
    last = min(int(one.steps[-1]) for one in series)
    if last <= first:
        return np.empty(0), np.empty((len(series), 0))
    steps = np.linspace(first, last, _POINTS)
    return steps, np.array([np.interp(steps, one.steps, one.values) for one in series])


def _figure(groups: Sequence[Group], tag: str) -> Plot:
    look = assign_looks(group.algorithm for group in groups)
    tasks = list(dict.fromkeys(group.task for group in groups))
    panels = [_panel(task, [group for group in groups if group.task == task], look) for task in tasks]
    columns = min(3, len(panels))
    return Plot(
        name="compare",
        title=f"Learning curves: {tag}",
        caption=f"{tag}: each run as a thin line, the mean of each algorithm as a thick one with its 95 % "
        "Student-t interval, over the steps that all of its runs have.",
        rows=[panels[start : start + columns] for start in range(0, len(panels), columns)],
        keys=label_keys((group.algorithm for group in groups), look),
        x_label="environment steps",
        y_label=tag,
        seeds=(),
        panel_size=(5.0, 3.2) if len(panels) == 1 else (3.6, 2.6),
    )


def _panel(task: str, groups: Sequence[Group], look: Look) -> Panel:
    def draw(ax: Axes) -> None:
        for group in groups:
            if group.series:
                _draw_group(ax, group, look)
        format_steps(ax)

    spoken = "; ".join(
        f"{display_name(group.algorithm)} {group.mean.value:.4g} from {len(group.finals)} runs"
        for group in groups
    )
    return Panel(task or "all runs", f"Learning curves of {task or 'all runs'}. Final mean: {spoken}.", draw)


def _draw_group(ax: Axes, group: Group, look: Look) -> None:
    colour, marker = look.colours[group.algorithm], look.markers[group.algorithm]
    for one in group.series:
        ax.plot(one.steps, one.values, color=colour, linewidth=0.6, alpha=0.5)
    steps, values = mean_curve(group.series)
    if not len(steps):
        return
    mean, low, high = mean_interval(values)
    ax.plot(steps, mean, color=colour, marker=marker, markevery=_POINTS // 5, linewidth=2)
    if len(values) > 1:
        ax.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


def _write_table(groups: Sequence[Group], tag: str, path: Path, provenance: Provenance) -> None:
    header = ("task", "algorithm", "tag", "runs", "n", "last_step_lowest", "last_step_highest",
              "mean", "mean_low", "mean_high", "iqm", "iqm_low", "iqm_high",
              "difference", "difference_low", "difference_high",
              "probability", "probability_low", "probability_high",
              "run_names", "versions", "command")  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for group in groups:
            row = [group.task, group.algorithm, tag, len(group.runs), len(group.finals)]
            row += [min(group.last_steps), max(group.last_steps)] if group.last_steps else ["", ""]
            for estimate in (group.mean, group.iqm, group.gap, group.improvement):
                bounds = (estimate.value, estimate.low, estimate.high) if estimate else ()
                row += [f"{x:.10g}" if np.isfinite(x) else "" for x in bounds] or [""] * 3
            names = " ".join(run.name for run in group.runs)
            writer.writerow([*row, names, provenance.versions, provenance.command])


def _document(
    groups: Sequence[Group], tag: str, notes: Sequence[str], plot: Plot, provenance: Provenance
) -> str:
    tasks = list(dict.fromkeys(group.task for group in groups))
    body = [f"<header><h1>Comparison by {escape(tag)}</h1></header><main>"]
    header = [
        "algorithm",
        "final, 95 % interval",
        "minus baseline",
        "probability of improvement",
        "n",
        "last step",
    ]
    for task in tasks:
        rows = [_row(group) for group in groups if group.task == task]
        body.append(table_html(header, rows, task))
    if notes:
        body.append("<ul>" + "".join(f'<li class="alarm">{escape(note)}</li>' for note in notes) + "</ul>")
    body.append("<h2>Learning curves</h2>")
    body.append(figure_html(plot, _footer(groups, provenance)))
    body.append("</main>")
    return page(f"Comparison by {tag}", body, f"Comparison of algorithms by {tag}")


def _row(group: Group) -> list[str]:
    steps = f"{min(group.last_steps):,} to {max(group.last_steps):,}" if group.last_steps else "–"
    n = str(len(group.finals))
    if group.without_data:
        n = f'<span class="alarm">{n} of {len(group.runs)}</span>'
    return [
        escape(display_name(group.algorithm)),
        estimate_html(group.mean) if group.finals else '<span class="alarm">no value</span>',
        estimate_html(group.gap) if group.gap else "–",
        estimate_html(group.improvement, 2) if group.improvement else "–",
        n,
        steps,
    ]


def _footer(groups: Sequence[Group], provenance: Provenance) -> str:
    runs = sum(len(group.runs) for group in groups)
    return (
        f"Made by: {provenance.command} | {provenance.versions} | {runs} runs, seeds are not in event files"
    )
