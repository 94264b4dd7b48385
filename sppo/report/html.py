"""The pages: one self-contained HTML file each, from the templates beside this module.

Nothing is fetched: style sheet and figures are inline, there is no script. Figures are SVG panels that
the browser arranges (four abreast on a desk, one on a phone) and colours for light or dark; tables
become cards on narrow screens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sppo.records.runs import STATUSES, Run
from sppo.records.studies import StudyRecords
from sppo.report.cells import not_there, order_environments, seeds_of, setting_of
from sppo.report.labels import Look, order_labels, title_of
from sppo.report.plots import INK, RULE, Plot, css_colour, panel_svgs
from sppo.report.provenance import Provenance, seeds_text
from sppo.report.rerun import rerun_command
from sppo.report.statistics import FEW_RUNS, Estimate
from sppo.report.summary import FinalReturn, Summary
from sppo.report.tables import interval, number

#: runs listed one by one in the page; a longer list is in runs.csv
LISTED_RUNS = 200

Cells = Sequence[str | Markup]


@dataclass(frozen=True)
class Shown:
    """A figure as a page has it."""

    plot: Plot
    svgs: Sequence[str]
    footer: str


def shown(plot: Plot, footer: str) -> Shown:
    return Shown(plot, panel_svgs(plot), footer)


def render(template: str, title: str, drawn: Iterable[Shown], **values: object) -> str:
    """A page from a template of this package; what is not :class:`Markup` is escaped."""
    environment = Environment(
        loader=PackageLoader("sppo.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["css"] = css_colour
    colours = {key.colour for figure in drawn for key in figure.plot.keys} - {INK, RULE}
    return environment.get_template(template).render(title=title, colours=sorted(colours), **values)


def report_page(
    study: StudyRecords,
    summary: Summary,
    looks: Mapping[str, Look],
    plots: Sequence[Plot],
    provenance: Provenance,
    programs: str,
    study_file: str,
) -> str:
    """The whole report of a study."""
    sections = {
        "curves": "Learning curves",
        "returns": "Final returns",
        "beyond": "Beyond the grid",
        "iqm": "Interquartile mean",
        "improvement": "Against the baseline",
        "profiles": "Performance profiles",
        "runs": "Runs that are not in the means",
        "made": "How this report was made",
    }
    figures = {
        {"grid": "curves"}.get(plot.name, plot.name): shown(plot, provenance.footer(plot.seeds))
        for plot in plots
    }
    finals = {
        name: (_finals(rows, looks, study_file), seeds_of(row.cell for row in rows))
        for name, on_grid in (("returns", True), ("beyond", False))
        if (rows := [row for row in summary.finals if row.cell.setting.on_grid == on_grid])
    }
    filled = {*figures, *finals, "runs", "made"}
    return render(
        "report.html",
        f"Study {study.name}",
        figures.values(),
        study=study,
        sections={name: heading for name, heading in sections.items() if name in filled},
        figures=figures,
        finals=finals,
        provenance=provenance,
        programs=programs,
        environments=order_environments(cell.env for cell in summary.cells),
        titles=[look.title for look in looks.values()],
        seeds=seeds_text(run.seed for run in study.runs if run.config),
        fewest=min((cell.n for cell in summary.cells if cell.n), default=0),
        few_runs=FEW_RUNS,
        notes=summary.notes,
        lost=list(_lost(study)),
        **_numbers(summary, looks),
    )


def estimate(value: Estimate | None, digits: int | None = None) -> Markup:
    """A number in bold and its interval; a dash if there is none."""
    if value is None:
        return Markup("–")
    bounds = interval(value, digits)
    text = Markup("<b>{}</b>").format(number(value.value, digits))
    return text + Markup(' <span class="nowrap">{}</span>').format(bounds) if bounds else text


def code(text: str) -> Markup:
    return Markup("<code>{}</code>").format(text)


def alarm(text: str) -> Markup:
    return Markup('<span class="alarm">{}</span>').format(text)


def _numbers(summary: Summary, looks: Mapping[str, Look]) -> dict[str, object]:
    """The tables below the figures of aggregates and comparisons."""
    aggregates = [
        (f"{row.where}: {looks[row.label].title}", estimate(row.iqm, 3), len(row.cells), row.n)
        for row in summary.aggregates
    ]
    comparisons = []
    for label, baseline in dict.fromkeys((row.label, row.baseline) for row in summary.comparisons):
        rows = [row for row in summary.comparisons if (row.label, row.baseline) == (label, baseline)]
        sides = {row: "{} : {}".format(*row.sides) for row in rows}
        comparisons.append({
            "heading": f"{looks[label].title} against {looks[baseline].title}",
            "pooled": [
                (row.setting, estimate(row.improvement, 2), row.tasks, sides[row])
                for row in rows if row.env is None
            ],
            "single": [
                (f"{r.env}, {r.setting}", estimate(r.difference), estimate(r.improvement, 2), sides[r])
                for r in rows if r.env is not None
            ],
            "seeds": seeds_of(cell for row in rows for cell in row.cells),
        })  # fmt: skip
    return {
        "aggregates": aggregates,
        "aggregate_seeds": seeds_of(cell for row in summary.aggregates for cell in row.cells),
        "bounds": [(env, number(low), number(high)) for env, (low, high) in summary.bounds.items()],
        "comparisons": comparisons,
    }


def _finals(
    finals: Sequence[FinalReturn], looks: Mapping[str, Look], study_file: str
) -> list[dict[str, object]]:
    """A table for each environment; one line for those that the study has not come to."""
    begun = {row.cell.env for row in finals if row.cell.n}
    tables: list[dict[str, object]] = []
    for env in order_environments(row.cell.env for row in finals):
        rows = [row for row in finals if row.cell.env == env]
        labels = order_labels(row.cell.label for row in rows)
        settings = dict.fromkeys(row.cell.setting for row in rows)
        at = {(row.cell.setting, row.cell.label): row for row in rows}
        steps = ", ".join(f"{count:,}" for count in sorted({row.cell.steps for row in rows}))
        tables.append({
            "caption": f"{env}, {steps} steps",
            "nothing": not_there(row.cell for row in rows) if begun and env not in begun else "",
            "header": ["setting", *(looks[label].title for label in labels)],
            "rows": [[s.text, *(_final(at.get((s, label))) for label in labels)] for s in settings],
            "reruns": [
                (f"{row.cell.setting.text}: {looks[row.cell.label].title}", code(command))
                for row in rows if (command := rerun_command(row.cell, study_file))
            ],
        })  # fmt: skip
    return tables


def _final(row: FinalReturn | None) -> Markup:
    if row is None:
        return Markup('<span class="faint">not in the study</span>')
    kind = "faint" if row.n == len(row.cell.runs) else "alarm"
    tally = Markup(' <span class="tally {}">n = {}</span>').format(kind, row.cell.tally())
    return (estimate(row.mean) if row.n else alarm("no completed run")) + tally


def _lost(study: StudyRecords) -> Iterable[tuple[str, list[Cells], int]]:
    """Status, a row for each run that is listed, and how many more there are."""
    order = ("failed", "damaged", "unfinished", "missing", "unplanned")
    for status in sorted(set(STATUSES) - {"completed"}, key=order.index):
        runs = [run for run in study.runs if run.status == status]
        if runs:
            yield status, [_lost_row(run) for run in runs[:LISTED_RUNS]], max(0, len(runs) - LISTED_RUNS)


def _lost_row(run: Run) -> Cells:
    name = "unknown"
    if run.config:
        title = title_of(run.algorithm, run.config)
        name = f"{run.env}, {title}, {setting_of(run.config).text}, seed {run.seed}"
    why: str | Markup = run.error
    if run.traceback:
        why = Markup("<details><summary>{}</summary><pre>{}</pre></details>").format(run.error, run.traceback)
    return name, code(run.hash or "none"), why
