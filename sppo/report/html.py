"""The pages: one self-contained HTML file each, from the templates beside this module.

Nothing is fetched: style sheet and figures are inline, there is no script. Figures are SVG panels that
the browser arranges (four abreast on a desk, one on a phone) and colours for light or dark; tables
become cards on narrow screens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from sppo.records.runs import STATUSES, Run
from sppo.records.studies import StudyRecords
from sppo.report.cells import Cell, grouped, not_there, order_environments, seeds_of, setting_of
from sppo.report.labels import Look, order_labels, title_of
from sppo.report.plots import INK, Plot, css_colour, marker_outline, panel_svgs
from sppo.report.provenance import Provenance, rerun_command, seeds_text
from sppo.report.statistics import FEW_RUNS
from sppo.report.summary import Summary
from sppo.report.tables import interval, number

#: section -> heading
SECTIONS = {
    "grid": "Learning curves",
    "beyond": "Beyond the grid",
    "returns": "Final returns",
    "iqm": "Interquartile mean",
    "improvement": "Against the baseline",
    "profiles": "Performance profiles",
    "runs": "Runs that are not in the means",
    "made": "How this report was made",
}
ALWAYS = ("returns", "runs", "made")


def render(template: str, title: str, plots: Sequence[Plot], **values: object) -> str:
    """A page from a template of this package; values are escaped."""
    environment = Environment(
        loader=PackageLoader("sppo.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"css": css_colour, "number": number, "interval": interval}
    environment.filters |= {"svgs": panel_svgs, "outline": marker_outline}
    colours = {key.colour for plot in plots for key in plot.keys} - {INK}
    return environment.get_template(template).render(title=title, colours=sorted(colours), **values)


def report_page(
    study: StudyRecords,
    summary: Summary,
    looks: Mapping[str, Look],
    plots: Sequence[Plot],
    provenance: Provenance,
) -> str:
    """The whole report of a study."""
    cells = summary.cells
    figures = {plot.name: plot for plot in plots}
    by_status = grouped(study.runs, lambda run: run.status)
    return render(
        "report.html",
        f"Study {study.name}",
        plots,
        study=study,
        summary=summary,
        looks=looks,
        sections={name: heading for name, heading in SECTIONS.items() if name in {*figures, *ALWAYS}},
        figures=figures,
        finals=_finals(cells, looks, provenance.study_file),
        pairs=grouped(summary.comparisons, lambda row: (row.label, row.baseline)),
        provenance=provenance,
        environments=order_environments(cell.env for cell in cells),
        seeds=seeds_text(run.seed for run in study.runs if run.config),
        fewest=min((cell.n for cell in cells if cell.n), default=0),
        few_runs=FEW_RUNS,
        lost={status: by_status[status] for status in STATUSES[1:] if status in by_status},
        run_name=_run_name,
    )


def _finals(cells: Sequence[Cell], looks: Mapping[str, Look], study_file: str) -> list[dict[str, object]]:
    """A table for each environment; one line for those that the study has not come to."""
    begun = {cell.env for cell in cells if cell.n}
    tables: list[dict[str, object]] = []
    for env, own in grouped(cells, lambda cell: cell.env).items():
        labels = order_labels(cell.label for cell in own)
        at = {(cell.setting, cell.label): cell for cell in own}
        steps = ", ".join(f"{count:,}" for count in sorted({cell.steps for cell in own}))
        names = {f"{cell.setting.text}: {looks[cell.label].title}": cell for cell in own if cell.n}
        tables.append({
            "caption": f"{env}, {steps} steps",
            "nothing": not_there(own) if begun and env not in begun else "",
            "titles": [looks[label].title for label in labels],
            "rows": {s.text: [at.get((s, label)) for label in labels] for s, _ in at},
            "reruns": {n: rerun_command(cell, study_file) for n, cell in names.items() if study_file},
            "seeds": seeds_of(cells),
        })  # fmt: skip
    return tables


def _run_name(run: Run) -> str:
    if not run.config:
        return "unknown"
    title = title_of(run.algorithm, run.config)
    return f"{run.env}, {title}, {setting_of(run).text}, seed {run.seed}"
