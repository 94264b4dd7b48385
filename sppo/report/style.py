"""How every figure looks: colours, line styles, the sheet with its footer, and themeable SVG.

A :class:`Plot` is a table of :class:`Panel`; it is rendered either as one sheet (PNG, PDF) or panel by
panel as SVG for the HTML report, where the browser arranges the panels for the width of the screen.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sppo.report.cells import display_name, order_key, order_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colour-blind-safe palette; blue PPO and orange sPPO as in the paper
COLOURS = {
    "ppo": "#0072b2",
    "sppo": "#e69f00",
    "sppo-one-sided": "#009e73",
    "mdpo": "#56b4e9",
    "smdpo": "#d55e00",
    "trpo": "#7f7f7f",
}
SPARE_COLOURS = ("#cc79a7", "#d55e00", "#56b4e9", "#7f7f7f", "#b8a800", "#009e73")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (8, 3)))
#: replaced by ``currentColor`` and by a CSS variable in the HTML report, to follow light and dark
INK, RULE, ALARM = "#1b1f24", "#c9ced6", "#b3261e"


@dataclass(frozen=True)
class Look:
    """Colour and marker of each algorithm label."""

    colours: dict[str, str]
    markers: dict[str, str]


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
    line: Any = "-"
    marker: str = ""


@dataclass(frozen=True)
class Plot:
    """A figure: rows of panels, what their lines mean, and a caption.

    ``absent`` says what has no panel; the caption and the saved sheet's footer show it.
    """

    name: str
    title: str
    caption: str
    rows: Sequence[Sequence[Panel]]
    keys: Sequence[Key]
    x_label: str
    y_label: str
    seeds: tuple[int, ...]
    panel_size: tuple[float, float] = (3.0, 2.2)
    y_labels: Sequence[str] = field(default_factory=tuple)
    absent: str = ""


def assign_looks(labels: Iterable[str]) -> Look:
    """A stable choice for known algorithms; the spare colours in order for the rest."""
    colours: dict[str, str] = {}
    markers: dict[str, str] = {}
    spare = 0
    for index, label in enumerate(order_labels(labels)):
        markers[label] = MARKERS[index % len(MARKERS)]
        wanted = COLOURS.get(label.lower())
        if wanted is None or wanted in colours.values():
            free = [c for c in SPARE_COLOURS if c not in colours.values()] or [SPARE_COLOURS[spare % 6]]
            wanted, spare = free[0], spare + 1
        colours[label] = wanted
    return Look(colours, markers)


def line_styles(values: Iterable[Any]) -> dict[Any, Any]:
    """A line style per value of m (or η), the smallest one solid."""
    ordered = sorted(set(values), key=order_key)
    return {value: LINES[index % len(LINES)] for index, value in enumerate(ordered)}


def label_keys(labels: Iterable[str], look: Look) -> list[Key]:
    return [
        Key(display_name(label), look.colours[label], marker=look.markers[label])
        for label in order_labels(labels)
    ]


def write_sheet(plot: Plot, out: Path, footer: str, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Save the whole figure; ``footer`` is printed in it and kept in its metadata."""
    import matplotlib as mpl

    footer = f"{plot.absent} | {footer}" if plot.absent else footer
    about = f"{plot.title}. {footer}"
    # without a creation date, the same records give the same bytes
    metadata: dict[str, dict[str, Any]] = {
        "png": {"Title": plot.title, "Description": about},
        "pdf": {"Title": plot.title, "Subject": about, "CreationDate": None},
    }
    paths = [out / f"{plot.name}.{ending}" for ending in formats]
    with mpl.rc_context(_RC):
        figure = _sheet(plot, footer)
        # the layout is the expensive part: find it once, not for every format
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for path, ending in zip(paths, formats, strict=True):
            figure.savefig(path, dpi=150, metadata=metadata[ending])
    return paths


def panel_svgs(plot: Plot) -> list[list[str]]:
    """Each panel as an SVG element that takes its colours from the page's style sheet."""
    import matplotlib as mpl

    with mpl.rc_context({**_RC, "svg.fonttype": "none", "svg.hashsalt": plot.name}):
        return [[_svg(plot, panel) for panel in row] for row in plot.rows]


_RC: Any = {
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "lines.markersize": 3.5,
    "axes.formatter.useoffset": False,
    "pdf.fonttype": 42,
}


def require_matplotlib() -> None:
    """Raise an error that names the extra, before minutes are spent on reading records."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError('figures need matplotlib: pip install "sppo[plot]"') from error


def _sheet(plot: Plot, footer: str) -> Figure:
    from matplotlib.figure import Figure

    columns = max(len(row) for row in plot.rows)
    width, height = plot.panel_size
    size = (max(width * columns + 0.3, 5.5), height * len(plot.rows) + 1.15)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(plot.rows), columns, squeeze=False)
    for number, row in enumerate(plot.rows):
        for column in range(columns):
            ax = axes[number][column]
            if column >= len(row):
                ax.set_axis_off()
                continue
            row[column].draw(ax)
            ax.set_title(row[column].title)
            if number == len(plot.rows) - 1:
                ax.set_xlabel(plot.x_label)
            if column == 0:
                ax.set_ylabel(plot.y_labels[number] if plot.y_labels else plot.y_label)
    handles = [_handle(key) for key in plot.keys]
    per_row = max(1, min(len(handles), int(size[0] / 1.3)))
    figure.legend(handles=handles, loc="outside upper center", ncols=per_row, frameon=False)
    _write_footer(figure, size, footer)
    return figure


def _write_footer(figure: Figure, size: tuple[float, float], footer: str) -> None:
    import textwrap

    # 5.5 pt sans-serif: about 24 characters an inch
    lines = textwrap.wrap(footer, int(size[0] * 24))
    height = 0.1 * len(lines) / size[1]
    figure.set_layout_engine("constrained", rect=(0, height, 1, 1 - height))
    figure.text(0.01, 0.003, "\n".join(lines), fontsize=5.5, color="#6a737d", va="bottom", ha="left")


def _handle(key: Key) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=key.colour, linestyle=key.line, marker=key.marker or None, label=key.text)


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
    return theme_svg(buffer.getvalue(), panel.alt)


def theme_svg(text: str, alt: str) -> str:
    """Make matplotlib's SVG document an inline element: accessible, scalable, coloured by the page."""
    from html import escape

    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    # only definitions are referred to by id; the groups' ids would repeat from panel to panel
    body = re.sub(r'<g id="[A-Za-z0-9_]+"', "<g", body)
    view_box = re.search(r'viewBox="([^"]+)"', body)
    box = view_box.group(1) if view_box else "0 0 300 200"
    opening = (
        f'<svg viewBox="{box}" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(alt)}">'
    )
    body = re.sub(r"<svg[^>]*>", lambda _: opening, body, count=1)
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body)
    body = body.replace(INK, "currentColor").replace(RULE, "var(--rule)").replace(ALARM, "var(--alarm)")
    for colour in dict.fromkeys((*COLOURS.values(), *SPARE_COLOURS)):
        body = body.replace(colour, f"var(--c{colour[1:]})")
    return re.sub(r">\s+<", "><", body).strip()
