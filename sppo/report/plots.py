"""A figure and its two forms: one sheet (PNG, PDF) with caption and footer, or panel by panel as SVG.

In the HTML pages the browser arranges the panels for the width of the screen and gives them its colours.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sppo.report.cells import Value, order_key
from sppo.report.labels import Look, order_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: a name of matplotlib's, or where dashes begin and how long they and their gaps are
Dashes = Literal["-"] | tuple[float, tuple[float, ...]]

LINES: tuple[Dashes, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (8, 3)))
#: replaced by ``currentColor`` and by a CSS variable in the HTML pages, to follow light and dark
INK, RULE = "#1b1f24", "#c9ced6"
FAINT = "#6a737d"
_STYLE = Path(__file__).with_name("report.mplstyle")


@dataclass(frozen=True)
class Panel:
    """One pair of axes; ``alt`` says in words what ``draw`` puts there."""

    title: str
    alt: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    text: str
    colour: str = INK
    line: Dashes = "-"
    marker: str = ""


@dataclass(frozen=True)
class Plot:
    """A figure: rows of panels, what their lines mean, and a caption that says what is shown."""

    name: str
    title: str
    caption: str
    rows: Sequence[Sequence[Panel]]
    keys: Sequence[Key]
    x_label: str
    y_label: str
    seeds: tuple[int, ...] = ()
    panel_size: tuple[float, float] = (3.0, 2.2)


def in_rows(panels: Sequence[Panel], columns: int = 3) -> list[Sequence[Panel]]:
    return [panels[start : start + columns] for start in range(0, len(panels), columns)]


def line_styles(values: Iterable[Value]) -> dict[Value, Dashes]:
    """A line style per value of m (or η), the smallest one solid."""
    ordered = sorted(set(values), key=order_key)
    return {value: LINES[index % len(LINES)] for index, value in enumerate(ordered)}


def label_keys(labels: Iterable[str], looks: Mapping[str, Look]) -> list[Key]:
    ordered = (looks[label] for label in order_labels(labels))
    return [Key(look.title, look.colour, marker=look.marker) for look in ordered]


def write_sheet(plot: Plot, out: Path, footer: str, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Save the whole figure; caption and ``footer`` are printed in it and kept in its metadata."""
    import matplotlib.style as mpl_style

    about = f"{plot.title}. {plot.caption} {footer}"
    # without a creation date, the same records give the same bytes
    metadata: dict[str, dict[str, Any]] = {
        "png": {"Title": plot.title, "Description": about},
        "pdf": {"Title": plot.title, "Subject": about, "CreationDate": None},
    }
    paths = [out / f"{plot.name}.{ending}" for ending in formats]
    with mpl_style.context(_STYLE):
        figure = _sheet(plot, footer)
        # the layout is the expensive part: find it once, not for every format
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for path, ending in zip(paths, formats, strict=True):
            figure.savefig(path, dpi=150, metadata=metadata[ending])
    return paths


def panel_svgs(plot: Plot) -> list[tuple[str, str]]:
    """Each panel's title, and the panel as an SVG element that takes its colours from the page."""
    import matplotlib.style as mpl_style

    with mpl_style.context([_STYLE, {"svg.fonttype": "none", "svg.hashsalt": plot.name}]):
        return [(panel.title, _svg(plot, panel)) for row in plot.rows for panel in row]


def css_colour(colour: str) -> str:
    """What stands for a colour in a page, which has another shade of it for dark screens."""
    return {INK: "currentColor", RULE: "var(--rule)"}.get(colour, f"var(--c{colour[1:]})")


def _sheet(plot: Plot, footer: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = max(len(row) for row in plot.rows)
    width, height = plot.panel_size
    # what stands below the panels: size in points, colour, lines; a sans-serif letter is a good half as wide
    # as it is high
    inches = max(width * columns + 0.3, 5.5)
    texts = [
        (points, colour, textwrap.wrap(text, int(inches * 72 / (0.56 * points))))
        for points, colour, text in ((7.0, INK, plot.caption), (5.5, FAINT, footer))
    ]
    below = sum(1.35 * points / 72 * len(lines) + 0.06 for points, _, lines in texts)
    size = (inches, height * len(plot.rows) + 0.85 + below)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(plot.rows), columns, squeeze=False)
    for number, row in enumerate(plot.rows):
        for column, ax in enumerate(axes[number]):
            if column >= len(row):
                ax.set_axis_off()
                continue
            row[column].draw(ax)
            ax.set_title(row[column].title)
            if number == len(plot.rows) - 1 or column >= len(plot.rows[number + 1]):
                ax.set_xlabel(plot.x_label)
            if column == 0:
                ax.set_ylabel(plot.y_label)
    handles = [
        Line2D([], [], color=key.colour, linestyle=key.line, marker=key.marker or None, label=key.text)
        for key in plot.keys
    ]
    per_row = max(1, min(len(handles), int(size[0] / 1.3)))
    figure.legend(handles=handles, loc="outside upper center", ncols=per_row, frameon=False)
    top = below / size[1]
    figure.set_layout_engine("constrained", rect=(0, top, 1, 1 - top))
    for points, colour, lines in texts:
        style: dict[str, Any] = {"fontsize": points, "color": colour, "linespacing": 1.3}
        figure.text(0.06 / size[0], top - 0.04 / size[1], "\n".join(lines), va="top", ha="left", **style)
        top -= (1.35 * points / 72 * len(lines) + 0.06) / size[1]
    return figure


def _svg(plot: Plot, panel: Panel) -> str:
    from matplotlib.figure import Figure

    # a panel as wide as a phone's screen must not be scaled down until its labels cannot be read
    size = (min(plot.panel_size[0] + 0.6, 3.9), plot.panel_size[1] + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    figure.patch.set_alpha(0)
    ax = figure.subplots()
    ax.patch.set_alpha(0)
    panel.draw(ax)
    ax.set_xlabel(plot.x_label)
    ax.set_ylabel(plot.y_label)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), panel.alt, {INK, RULE, *(key.colour for key in plot.keys)})


def _inline(text: str, alt: str, colours: Iterable[str]) -> str:
    """Make matplotlib's SVG document an inline element: accessible, scalable, coloured by the page."""
    body = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    # only definitions are referred to by id; the groups' ids would repeat from panel to panel
    body = re.sub(r'<g id="[A-Za-z0-9_]+"', "<g", body)
    box = re.search(r'viewBox="([^"]+)"', body)
    opening = f'<svg viewBox="{box[1] if box else "0 0 300 200"}" xmlns="http://www.w3.org/2000/svg" '
    opening += f'role="img" aria-label="{escape(alt)}">'
    body = re.sub(r"<svg[^>]*>", lambda _: opening, body, count=1)
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body)
    for colour in colours:
        body = body.replace(colour, css_colour(colour))
    return re.sub(r">\s+<", "><", body).strip()
