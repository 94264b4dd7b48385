"""What a figure is: numbers first (named tables), a picture drawn from nothing but those tables.

A figure module exposes ``FIGURES``. ``compute`` does all the work and returns plain tables; ``draw`` must not
compute results, so that a picture can be redrawn from its committed CSV files.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture
else:  # matplotlib is imported when something is drawn
    Axes = Picture = object

Row = dict[str, Any]
#: A structured array: a column of numbers or of strings for every name.
Table = np.ndarray
Tables = Mapping[str, Table]


@dataclass(frozen=True)
class Figure:
    """One figure: how to compute its tables and how to draw them.

    :param name: command-line name, also the stem of every file written
    :param title: one line for ``--help`` and the picture's metadata
    :param compute: ``compute(quick, progress)`` -> named tables; ``quick`` shrinks the experiment
    :param draw: ``draw(tables)`` -> matplotlib figure
    """

    name: str
    title: str
    compute: Callable[[bool, bool], dict[str, Table]]
    draw: Callable[[Tables], Picture]


def panels(
    rows: int, columns: int, width: float, height: float, width_ratios: Sequence[float] | None = None
) -> tuple[Picture, np.ndarray]:
    """A picture and its axes, an array of shape (rows, columns)."""
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(width, height), layout="constrained")
    return picture, picture.subplots(rows, columns, squeeze=False, width_ratios=width_ratios)


def rows(base: Row, **columns: Iterable[object]) -> list[Row]:
    """A record per entry of the columns, each with ``base``."""
    entries = zip(*columns.values(), strict=True)
    return [{**base, **dict(zip(columns, entry, strict=True))} for entry in entries]


def stack(rows: Sequence[Row]) -> Table:
    """A table from records with the same keys."""
    return _table({name: np.array([row[name] for row in rows]) for name in rows[0]})


def _table(columns: dict[str, np.ndarray]) -> Table:
    dtype = [(name, column.dtype) for name, column in columns.items()]
    return np.rec.fromarrays(columns.values(), dtype=dtype)


def where(table: Table, **equals: object) -> Table:
    """Rows of ``table`` whose columns equal the given values."""
    return table[np.logical_and.reduce([table[name] == value for name, value in equals.items()])]


def write_table(table: Table, path: Path) -> None:
    """Write a table as CSV; floats with every digit, so that reading it back gives the same numbers."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([table.dtype.names or (), *table.tolist()])


def read_table(path: Path) -> Table:
    """Read what :func:`write_table` wrote: integer, float and string columns keep their kind."""
    with path.open(newline="") as file:
        header, *body = csv.reader(file)
    return _table(dict(zip(header, map(_parse, zip(*body, strict=True)), strict=True)))


def _parse(column: Sequence[str]) -> np.ndarray:
    for kind in (int, float):
        try:
            return np.array([kind(cell) for cell in column], dtype=kind)
        except ValueError:
            continue
    return np.array(column)
