"""The pages: one self-contained HTML file each, from the templates beside this module.

Nothing is fetched: style sheet and figures are inline, there is no script. Figures are SVG panels that
the browser arranges (four abreast on a desk, one on a phone) and colours for light or dark; tables
become cards on narrow screens.
"""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from sppo.records.studies import StudyRecords
from sppo.report.cells import grouped, not_there, seeds_of, setting_of
from sppo.report.plots import INK, Plot, css_colour, panel_svgs
from sppo.report.provenance import Provenance, rerun_command, seeds_text
from sppo.report.statistics import FEW_RUNS
from sppo.report.summary import Summary
from sppo.report.tables import interval, number


def render(template: str, title: str, plots: Sequence[Plot], **values: object) -> str:
    """A page from a template of this package; values are escaped."""
    environment = Environment(
        loader=PackageLoader("sppo.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"css": css_colour, "number": number, "interval": interval, "svgs": panel_svgs}
    colours = {key.colour for plot in plots for key in plot.keys} - {INK}
    return environment.get_template(template).render(title=title, colours=sorted(colours), **values)


def report_page(study: StudyRecords, summary: Summary, plots: Sequence[Plot], provenance: Provenance) -> str:
    """The whole report of a study."""
    cells = summary.cells
    return render(
        "report.html",
        f"Study {study.name}",
        plots,
        study=study,
        summary=summary,
        looks=summary.looks,
        figures={plot.name: plot for plot in plots},
        by_env=grouped(cells, lambda cell: cell.env),
        at={(cell.env, cell.setting, cell.label): cell for cell in cells},
        pairs=grouped(summary.comparisons, lambda row: (row.label, row.baseline)),
        provenance=provenance,
        few_runs=FEW_RUNS,
        not_there=not_there,
        rerun_command=rerun_command,
        seeds_of=seeds_of,
        seeds_text=seeds_text,
        setting_of=setting_of,
    )
