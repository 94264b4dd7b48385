"""A figure and its two forms: one sheet (PNG, PDF) with caption and footer, or panel by panel as SVG.

In the HTML pages the browser arranges the panels for the width of the screen and gives them its colours.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from sppo.report.labels import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: what is drawn in one pair of axes
Draw = Callable[["Axes"], None]

#: replaced by ``currentColor`` and by a CSS variable in the HTML pages, to follow light and dark
INK, RULE = "#1b1f24", "#c9ced6"
_STYLE = Path(__file__).with_name("report.mplstyle")


@dataclass(frozen=True)
class Plot:
    """A figure: panels by title, in rows, what their lines mean, and a caption that says what is shown."""

    name: str
    title: str
    caption: str
    panels: Mapping[str, Draw]
    keys: Sequence[Look]
    x_label: str = "environment steps"
    y_label: str = "return"
    seeds: tuple[int, ...] = ()
    panel_size: tuple[float, float] = (3.0, 2.2)
    columns: int = 3


def write_sheet(plot: Plot, out: Path, footer: str, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Save the whole figure; caption and ``footer`` are printed in it and kept in its metadata."""
    import matplotlib.style as mpl_style

    about = f"{plot.title}. {plot.caption} {footer}"
    # without a creation date, the same records give the same bytes
    metadata: dict[str, dict[str, str | None]] = {
        "png": {"Title": plot.title, "Description": about},
        "pdf": {"Title": plot.title, "Subject": about, "CreationDate": None},
    }
    with mpl_style.context(_STYLE):
        figure = _sheet(plot, footer)
        # the layout is the expensive part: find it once, not for every format
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for ending in formats:
            figure.savefig(out / f"{plot.name}.{ending}", dpi=150, metadata=metadata[ending])
    return [out / f"{plot.name}.{ending}" for ending in formats]


def panel_svgs(plot: Plot) -> dict[str, str]:
    """Each panel by its title, as an SVG element that takes its colours from the page."""
    import matplotlib.style as mpl_style

    with mpl_style.context([_STYLE, {"svg.fonttype": "none", "svg.hashsalt": plot.name}]):
        return {title: _svg(plot, title) for title in plot.panels}


def css_colour(colour: str) -> str:
    """What stands for a colour in a page, which has another shade of it for dark screens."""
    return {INK: "currentColor", RULE: "var(--rule)"}.get(colour, f"var(--c{colour[1:]})")


def _sheet(plot: Plot, footer: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    # as few rows as hold all panels, and as even as they come: four panels are two and two
    rows = -(-len(plot.panels) // plot.columns)
    columns = -(-len(plot.panels) // rows)
    inches = max(plot.panel_size[0] * columns + 0.3, 5.5)
    # 18 letters of 7 points to the inch
    below = [line for text in (plot.caption, footer) for line in textwrap.wrap(text, int(inches * 18))]
    height = plot.panel_size[1] * rows + 0.85 + 0.13 * len(below)
    figure = Figure(figsize=(inches, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for number, (ax, (title, draw)) in enumerate(zip(axes, plot.panels.items(), strict=False)):
        draw(ax)
        lowest = number + columns >= len(plot.panels)
        ax.set(title=title, xlabel=plot.x_label if lowest else "")
        ax.set_ylabel("" if number % columns else plot.y_label)
    for ax in axes[len(plot.panels) :]:
        ax.set_axis_off()
    handles = [
        Line2D([], [], color=key.colour, linestyle=key.line, marker=key.marker or None, label=key.title)
        for key in plot.keys
    ]
    # an entry of the legend takes 0.6 inches, and 0.07 for each letter
    per_row = max(1, int(inches / (0.6 + 0.07 * max(len(key.title) for key in plot.keys))))
    # to be read row by row: matplotlib fills columns
    by_column = [handle for first in range(per_row) for handle in handles[first::per_row]]
    figure.legend(handles=by_column, loc="outside upper center", ncols=per_row, frameon=False)
    figure.supxlabel("\n".join(below), x=0.01, ha="left", fontsize=7, linespacing=1.3)
    return figure


def _svg(plot: Plot, title: str) -> str:
    """Matplotlib's SVG document as an inline element: accessible, scalable, coloured by the page."""
    from matplotlib.figure import Figure

    # a panel as wide as a phone's screen must not be scaled down until its labels cannot be read
    size = (min(plot.panel_size[0] + 0.6, 3.9), plot.panel_size[1] + 0.3)
    figure = Figure(figsize=size, layout="constrained", facecolor="none")
    ax = figure.subplots()
    ax.patch.set_alpha(0)
    plot.panels[title](ax)
    ax.set(xlabel=plot.x_label, ylabel=plot.y_label)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    box = re.findall(r'viewBox="[^"]+"', text)[0]
    alt = escape(f"{plot.title}: {title}")
    opening = f'<svg {box} xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{alt}">'
    body = opening + re.sub(r"^.*?<svg[^>]*>|<metadata>.*?</metadata>", "", text, flags=re.S)
    # only definitions are referred to by id; the groups' ids would repeat from panel to panel
    body = re.sub(r'<g id="[A-Za-z0-9_]+"', "<g", body)
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body)
    for colour in {INK, RULE, *(key.colour for key in plot.keys)}:
        body = body.replace(colour, css_colour(colour))
    return re.sub(r">\s+<", "><", body).strip()
