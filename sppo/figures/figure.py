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
#: A table: column name -> equal-length one-dimensional column (numbers or strings).
Table = Mapping[str, np.ndarray | Sequence[Any]]
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
    import matplotlib.pyplot as plt

    size, ratios = (width, height), width_ratios
    return plt.subplots(rows, columns, squeeze=False, width_ratios=ratios, figsize=size, layout="constrained")


def write_table(table: Table, path: Path) -> None:
    """Write a table as CSV; floats with every digit, so that reading it back gives the same numbers."""
    columns = {name: np.asarray(column) for name, column in table.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns of a table have one length, not {lengths}")
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))


def read_table(path: Path) -> dict[str, np.ndarray]:
    """Read what :func:`write_table` wrote: integer, float and string columns keep their kind."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    header, body = rows[0], rows[1:]
    columns = zip(*body, strict=True) if body else ((),) * len(header)
    return {name: _parse(column) for name, column in zip(header, columns, strict=True)}


def _parse(column: Sequence[str]) -> np.ndarray:
    for kind in (int, float):
        try:
            return np.array([kind(cell) for cell in column], dtype=kind)
        except ValueError:
            continue
    return np.array(column)


def where(table: Table, **equals: object) -> dict[str, np.ndarray]:
    """Rows of ``table`` whose columns equal the given values."""
    columns = {name: np.asarray(column) for name, column in table.items()}
    keep = np.ones(len(next(iter(columns.values()))), dtype=bool)
    for name, value in equals.items():
        keep &= columns[name] == value
    return {name: column[keep] for name, column in columns.items()}


def rows(base: Row, **columns: Iterable[object]) -> list[Row]:
    """A record per entry of the columns, each with ``base``."""
    entries = zip(*columns.values(), strict=True)
    return [{**base, **dict(zip(columns, entry, strict=True))} for entry in entries]


def stack(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """A table from a list of records with the same keys."""
    if not rows:
        raise ValueError("a table needs at least one row")
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
