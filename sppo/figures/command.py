"""``python -m sppo figures NAME [--quick] [--out DIR]``: tables as CSV, picture as PNG and PDF."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sppo.figures import bandit, lqr, per_state, tabular
from sppo.figures.figure import Figure, Tables, read_table, write_table

FIGURES: dict[str, Figure] = {
    figure.name: figure for module in (tabular, bandit, lqr, per_state) for figure in module.FIGURES
}


def save(figure: Figure, tables: Tables, out: Path) -> None:
    """Write ``out/NAME.png``, ``out/NAME.pdf`` and one ``out/NAME-TABLE.csv`` per table."""
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write_table(table, out / f"{figure.name}-{name}.csv")
    picture, metadata = figure.draw(tables), {"Title": figure.title}
    picture.savefig(out / f"{figure.name}.png", dpi=150, metadata=metadata)
    # a date in the file would make every run a different file
    picture.savefig(out / f"{figure.name}.pdf", metadata={**metadata, "CreationDate": None})


def load(figure: Figure, out: Path) -> Tables:
    """The tables that :func:`save` wrote."""
    prefix = f"{figure.name}-"
    paths = sorted(out.glob(f"{prefix}*.csv"))
    if not paths:
        raise SystemExit(f"no tables of {figure.name} in {out}: run without --redraw first")
    return {path.stem.removeprefix(prefix): read_table(path) for path in paths}


def main(argv: Sequence[str] | None = None) -> int:
    """Make the figures asked for; returns the exit code."""
    listing = "\n".join(f"  {name:<24} {figure.title}" for name, figure in FIGURES.items())
    parser = argparse.ArgumentParser(
        prog="python -m sppo figures",
        description="The figures of the exact experiments: PNG, PDF, and the data as CSV.",
        epilog=f"figures:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*FIGURES, "all"]
    parser.add_argument("name", choices=names, metavar="NAME", help="one of the figures below, or 'all'")
    parser.add_argument("--quick", action="store_true", help="smaller grids and fewer iterations")
    out = Path("figures")
    parser.add_argument("--out", type=Path, default=out, help="directory to write to (%(default)s)")
    parser.add_argument("--redraw", action="store_true", help="draw again from the CSV files in --out")
    parser.add_argument("--no-progress", action="store_true", help="no progress bars")
    args = parser.parse_args(argv)
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit('figures need matplotlib: pip install ".[plot]"')
    for name in FIGURES if args.name == "all" else [args.name]:
        begun = time.perf_counter()
        figure = FIGURES[name]
        tables = load(figure, args.out) if args.redraw else figure.compute(args.quick, not args.no_progress)
        save(figure, tables, args.out)
        print(f"{name}: {args.out / name}.png ({time.perf_counter() - begun:.1f} s)", file=sys.stderr)
    return 0
