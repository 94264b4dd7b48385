"""The report as one self-contained HTML file.

Nothing is fetched: style sheet and figures are inline, there is no script. Figures are SVG panels that
the browser arranges (four abreast on a desk, one on a phone) and colours for light or dark; tables
become cards on narrow screens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from sppo.records.runs import Run
from sppo.records.studies import StudyRecords
from sppo.report.cells import display_name, not_there, order_environments, order_labels, setting_of
from sppo.report.provenance import Provenance, seeds_text
from sppo.report.rerun import rerun_command
from sppo.report.statistics import FEW_RUNS, Estimate
from sppo.report.style import INK, RULE, Key, Plot, panel_svgs
from sppo.report.summary import Comparison, FinalReturn, Summary
from sppo.report.tables import interval, number

#: runs listed one by one in the page; a longer list is in runs.csv
LISTED_RUNS = 200
#: longer lists start folded
UNFOLDED_RUNS = 12


def page(title: str, body: Iterable[str], description: str) -> str:
    """A complete document around sections."""
    style = resources.files("sppo.report").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="description" content="{escape(description)}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def report_page(
    study: StudyRecords,
    summary: Summary,
    plots: Sequence[Plot],
    provenance: Provenance,
    programs: str,
    study_file: str = "",
) -> str:
    """The whole report of a study."""
    sections: list[tuple[str, str, str]] = []
    by_name = {plot.name: plot for plot in plots}

    def add(name: str, heading: str, *parts: str) -> None:
        if any(parts):
            sections.append((name, heading, "\n".join(part for part in parts if part)))

    def figure(name: str) -> str:
        return figure_html(by_name[name], provenance.footer(by_name[name].seeds)) if name in by_name else ""

    add("curves", "Learning curves", figure("grid"))
    grid = [row for row in summary.finals if row.cell.setting.on_grid]
    others = [row for row in summary.finals if not row.cell.setting.on_grid]
    add("returns", "Final returns", _finals_html(grid, provenance, study_file))
    add("beyond", "Beyond the grid", figure("beyond"), _finals_html(others, provenance, study_file))
    add("iqm", "Interquartile mean", figure("iqm"), _aggregates_html(summary, provenance))
    add("improvement", "Against the baseline", figure("improvement"), _comparisons_html(summary, provenance))
    add("profiles", "Performance profiles", figure("profiles"))
    add("runs", "Runs that are not in the means", _runs_html(study))
    add("made", "How this report was made", _made_html(study, summary, provenance, programs))
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading, _ in sections)
    body = [f"<header><h1>Study {escape(study.name)}</h1>", _overview(study, summary), "</header>"]
    body.append(f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main>')
    body += [f'<section id="{name}"><h2>{heading}</h2>\n{text}</section>' for name, heading, text in sections]
    body.append("</main>")
    return page(f"Study {study.name}", body, f"Comparison of the runs of the study {study.name}")


def figure_html(plot: Plot, footer: str) -> str:
    """Legend, panels, caption and provenance of one figure."""
    titles = [panel.title for row in plot.rows for panel in row]
    svgs = [svg for row in panel_svgs(plot) for svg in row]
    panels = "\n".join(
        f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"
        for title, svg in zip(titles, svgs, strict=True)
    )
    keys = "".join(f"<li>{_key_svg(key)}{escape(key.text)}</li>" for key in plot.keys)
    wide = " four" if max(len(row) for row in plot.rows) == 4 else ""
    caption = f"{plot.caption} {plot.absent}".rstrip()
    return (
        f'<p>{escape(caption)}</p>\n<div><ul class="legend sticky" aria-label="Legend">{keys}</ul>\n'
        f'<div class="panels{wide}">\n{panels}\n</div></div>\n<p class="made">{escape(footer)}</p>'
    )


def table_html(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table whose rows become cards on a phone; the cells are HTML."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    lines = []
    for first, *rest in rows:
        cells = "".join(
            f'<td data-label="{escape(name)}"><span>{value}</span></td>'
            for name, value in zip(header[1:], rest, strict=True)
        )
        lines.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "\n".join(lines)
    return f'<table class="cards">{title}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>'


def estimate_html(estimate: Estimate, digits: int | None = None) -> str:
    bounds = interval(estimate, digits)
    return f"<b>{number(estimate.value, digits)}</b>" + (
        f' <span class="nowrap">{bounds}</span>' if bounds else ""
    )


def _overview(study: StudyRecords, summary: Summary) -> str:
    counts = study.counts()
    chips = "".join(
        f"<li{'' if status == 'completed' else ' class=alarm'}><b>{count}</b> {status}</li>"
        for status, count in counts.items()
        if count or status == "completed"
    )
    environments = order_environments(cell.env for cell in summary.cells)
    labels = [display_name(label) for label in order_labels(cell.label for cell in summary.cells)]
    lines = [
        f"<p>{len(study.runs)} runs: {len(environments)} environments, {escape(', '.join(labels))}, "
        f"seeds {seeds_text(run.seed for run in study.runs if run.config)}.</p>",
        f'<ul class="chips" aria-label="Runs by status">{chips}</ul>',
    ]
    if len(study.runs) > counts["completed"]:
        lines.append(
            '<p class="alarm">Means, intervals and figures are over completed runs only. '
            'The others are counted beside each number and <a href="#runs">listed below</a>.</p>'
        )
    few = min((cell.n for cell in summary.cells if cell.n), default=0)
    if 0 < few < FEW_RUNS:
        lines.append(
            f"<p>The smallest cells have {few} completed run{'s' if few > 1 else ''}. One run has no "
            f"interval; with fewer than {FEW_RUNS}, bootstrap intervals are too narrow on average and "
            "Student-t intervals wide.</p>"
        )
    if not study.planned:
        lines.append(
            "<p>The plan of this study is not on record: a run counts as missing if other settings of "
            "its environment have its seed.</p>"
        )
    return "\n".join(lines)


def _finals_html(finals: Sequence[FinalReturn], provenance: Provenance, study_file: str) -> str:
    if not finals:
        return ""
    parts = [
        "<p>Mean return of the last evaluation over completed runs, 95 % Student-t interval, n runs.</p>"
    ]
    begun = {row.cell.env for row in finals if row.cell.n}
    for env in order_environments(row.cell.env for row in finals):
        rows = [row for row in finals if row.cell.env == env]
        steps = ", ".join(f"{count:,}" for count in sorted({row.cell.steps for row in rows}))
        if begun and env not in begun:
            parts.append(_nothing_yet(f"{env}, {steps} steps", rows))
            continue
        labels = order_labels(row.cell.label for row in rows)
        settings = list(dict.fromkeys(row.cell.setting for row in rows))
        at = {(row.cell.setting, row.cell.label): row for row in rows}
        body = [
            [escape(setting.text), *(_final_html(at.get((setting, label))) for label in labels)]
            for setting in settings
        ]
        header = ["setting", *(display_name(label) for label in labels)]
        parts.append(table_html(header, body, f"{env}, {steps} steps"))
        parts.append(_reruns_html(rows, study_file))
    seeds = {seed for row in finals for seed in row.seeds}
    return "\n".join([*parts, _made_line(provenance, seeds)])


def _nothing_yet(title: str, rows: Sequence[FinalReturn]) -> str:
    """One line for an environment that the study has not come to."""
    lost = not_there(row.cell for row in rows)
    return f'<p><strong>{escape(title)}</strong>: <span class="alarm">no completed run, {lost}</span></p>'


def _reruns_html(rows: Sequence[FinalReturn], study_file: str) -> str:
    """Folded: the command of each cell."""
    found = [
        [
            escape(f"{row.cell.setting.text}: {display_name(row.cell.label)}"),
            f"<code>{escape(command)}</code>",
        ]
        for row in rows
        if (command := rerun_command(row.cell, study_file))
    ]
    if not found:
        return ""
    return (
        f"<details><summary>Run any of these again ({len(found)} commands)</summary>"
        + table_html(["cell", "command"], found)
        + "</details>"
    )


def _final_html(row: FinalReturn | None) -> str:
    if row is None:
        return '<span class="faint">not in the study</span>'
    cell = row.cell
    complete = cell.n == len(cell.runs)
    tally = f'<span class="tally {"faint" if complete else "alarm"}">n = {escape(cell.tally())}</span>'
    if not cell.n:
        return f'<span class="alarm">no completed run</span> {tally}'
    return f"{estimate_html(row.mean)} {tally}"


def _aggregates_html(summary: Summary, provenance: Provenance) -> str:
    if not summary.aggregates:
        return ""
    rows = [
        [
            escape(f"{row.setting.text if row.setting else 'all settings'}: {display_name(row.label)}"),
            estimate_html(row.iqm, 3),
            str(row.tasks),
            str(row.runs),
        ]
        for row in summary.aggregates
    ]
    bounds = [[escape(env), number(low), number(high)] for env, (low, high) in summary.bounds.items()]
    seeds = {seed for row in summary.aggregates for seed in row.seeds}
    return (
        f"<details><summary>The numbers ({len(rows)})</summary>"
        + table_html(["setting", "IQM, 95 % interval", "tasks", "runs"], rows)
        + "</details><details><summary>What 0 and 1 stand for</summary>"
        + table_html(["environment", "score 0", "score 1"], bounds)
        + "</details>"
        + _made_line(provenance, seeds)
    )


def _comparisons_html(summary: Summary, provenance: Provenance) -> str:
    parts = []
    pairs = dict.fromkeys((row.label, row.baseline) for row in summary.comparisons)
    for label, baseline in pairs:
        rows = [r for r in summary.comparisons if (r.label, r.baseline) == (label, baseline)]
        heading = f"{display_name(label)} against {display_name(baseline)}"
        pooled = [
            [escape(r.setting), estimate_html(r.improvement, 2), str(r.tasks), f"{r.n} : {r.n_baseline}"]
            for r in rows
            if not r.env
        ]
        single = [_comparison_row(row) for row in rows if row.env]
        parts.append(f"<h3>{escape(heading)}</h3>")
        header = ["setting", "probability of improvement", "tasks", "runs"]
        parts.append(table_html(header, pooled, "Pooled over environments"))
        parts.append(
            f"<details><summary>Each environment and setting ({len(single)})</summary>"
            + table_html(
                ["task", "difference of means", "probability of improvement", "runs"],
                single,
                "Difference with 95 % Welch interval",
            )
            + "</details>"
        )
        parts.append(_made_line(provenance, {seed for row in rows for seed in row.seeds}))
    return "\n".join(parts)


def _comparison_row(row: Comparison) -> list[str]:
    gap = estimate_html(row.difference) if row.difference else ""
    name = escape(f"{row.env}, {row.setting}")
    return [name, gap, estimate_html(row.improvement, 2), f"{row.n} : {row.n_baseline}"]


def _runs_html(study: StudyRecords) -> str:
    others = [run for run in study.runs if run.status != "completed"]
    if not others:
        return "<p>None: every planned run is completed.</p>"
    parts = []
    for status in ("failed", "damaged", "unfinished", "missing", "unplanned"):
        runs = [run for run in others if run.status == status]
        if not runs:
            continue
        rows = [
            [escape(_run_name(run)), f"<code>{escape(run.hash or 'none')}</code>", _error_html(run)]
            for run in runs[:LISTED_RUNS]
        ]
        more = len(runs) - len(rows)
        unfold = " open" if len(runs) <= UNFOLDED_RUNS else ""
        parts.append(
            f'<details{unfold}><summary><span class="alarm">{len(runs)} {status}</span></summary>'
            + table_html(["run", "record", "why"], rows)
            + (f"<p>And {more} more, listed in <code>runs.csv</code>.</p>" if more else "")
            + "</details>"
        )
    return "\n".join(parts)


def _run_name(run: Run) -> str:
    if not run.config:
        return "unknown"
    return f"{run.env}, {display_name(run.algorithm)}, {setting_of(run.config).text}, seed {run.seed}"


def _error_html(run: Run) -> str:
    text = escape(run.error)
    if not run.traceback:
        return text
    return f"<details><summary>{text}</summary><pre>{escape(run.traceback)}</pre></details>"


def _made_html(study: StudyRecords, summary: Summary, provenance: Provenance, programs: str) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in summary.notes)
    return (
        f"<p>Command: <code>{escape(provenance.command)}</code></p>"
        f"<p>Runs made with: {escape(provenance.versions)}.</p>"
        f"<p>Report made with: {escape(programs)}. Bootstrap: 2000 resamples from a fixed seed, percentile "
        "intervals. The figures are beside this file as PNG and PDF, the tables as CSV, every evaluation in "
        "<code>evaluations.csv</code>, every run with its configuration in <code>runs.csv</code>.</p>"
        + (f"<h3>Notes</h3><ul>{notes}</ul>" if notes else "")
    )


def _made_line(provenance: Provenance, seeds: Iterable[int]) -> str:
    return f'<p class="made">{escape(provenance.footer(seeds))}</p>'


def _key_svg(key: Key) -> str:
    colour = {INK: "currentColor", RULE: "var(--rule)"}.get(key.colour, f"var(--c{key.colour[1:]})")
    dashes = "" if key.line == "-" else f' stroke-dasharray="{" ".join(str(2 * d) for d in key.line[1])}"'
    dot = f'<circle cx="18" cy="6" r="3.5" fill="{colour}"/>' if key.marker else ""
    return (
        '<svg viewBox="0 0 36 12" aria-hidden="true">'
        f'<line x1="0" y1="6" x2="36" y2="6" stroke="{colour}" stroke-width="2"{dashes}/>{dot}</svg>'
    )
