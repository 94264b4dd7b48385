"""Table rows as CSV files and as text for a terminal."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from pathlib import Path

from sppo.records.runs import STATUSES
from sppo.report.cells import seeds_of
from sppo.report.provenance import Provenance, rerun_command, seeds_text
from sppo.report.statistics import Estimate
from sppo.report.summary import THRESHOLDS, Summary

#: a header and rows of plain values; a missing estimate and NaN are empty
Table = tuple[Sequence[str], Iterable[Sequence[object]]]
#: what stands in the columns of an estimate that there is not
NOTHING = (None, None, None)


def write_tables(summary: Summary, provenance: Provenance, out: Path) -> list[Path]:
    """One CSV file per table; the last three columns of each row say where it comes from."""
    tables = {
        "final_returns.csv": _finals(summary, provenance.study_file),
        "comparisons.csv": _comparisons(summary),
        "iqm.csv": _aggregates(summary),
        "profiles.csv": _profiles(summary),
    }
    for name, (header, rows) in tables.items():
        sourced = ((*row, provenance.versions, provenance.command) for row in rows)
        write_csv(out / name, (*header, "seeds", "versions", "command"), sourced)
    return [out / name for name in tables]


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([_plain(value) for value in row] for row in rows)


def estimate_columns(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned with spaces, the first one to the left, the others to the right."""
    widths = [max(len(str(row[i])) for row in (header, *rows)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first = str(row[0]).ljust(widths[0])
        rest = (str(value).rjust(width) for value, width in zip(row[1:], widths[1:], strict=True))
        return "  ".join((first, *rest)).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def number(value: float, digits: int | None = None) -> str:
    """A return with as many digits as help: 3412, 87.3, 0.412."""
    if value != value:
        return "–"
    if digits is None:
        digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 3
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) else text.replace("-", "")


def interval(estimate: Estimate, digits: int | None = None) -> str:
    """``[low, high]``, or nothing where there is none."""
    if not estimate.has_interval:
        return ""
    return f"[{number(estimate.low, digits)}, {number(estimate.high, digits)}]"


def shown(estimate: Estimate | None, digits: int | None = None) -> str:
    """The number and its interval, as far as there are any."""
    if estimate is None:
        return ""
    return f"{number(estimate.value, digits)} {interval(estimate, digits)}".rstrip()


def _finals(summary: Summary, study_file: str) -> Table:
    header = ("env", "algorithm", "m", "epsilon", "eta", "steps", "planned", *STATUSES,
              *estimate_columns("mean"), *estimate_columns("iqm"), "lowest", "highest", "rerun")  # fmt: skip
    return header, (
        (
            cell.env, cell.label, *astuple(cell.setting), cell.steps, len(cell.runs), *cell.counts().values(),
            *cell.mean, *cell.iqm, *((cell.finals.min(), cell.finals.max()) if cell.n else (None, None)),
            rerun_command(cell, study_file), seeds_text(seeds_of([cell])),
        )
        for cell in summary.cells
    )  # fmt: skip


def _comparisons(summary: Summary) -> Table:
    header = ("algorithm", "baseline", "env", "setting", "tasks", "n", "n_baseline",
              *estimate_columns("difference"), *estimate_columns("probability"))  # fmt: skip
    return header, (
        (
            row.label, row.baseline, "all" if row.env is None else row.env, row.setting, row.tasks,
            *row.sides, *(row.difference or NOTHING), *row.improvement, seeds_text(row.seeds),
        )
        for row in summary.comparisons
    )  # fmt: skip


def _aggregates(summary: Summary) -> Table:
    bounds = "; ".join(f"{env}: {low!r} to {high!r}" for env, (low, high) in summary.bounds.items())
    return ("algorithm", "setting", "tasks", "runs", *estimate_columns("iqm"), "normalisation"), (
        (row.label, row.where, len(row.cells), row.n, *row.iqm, bounds, seeds_text(row.seeds))
        for row in summary.aggregates
    )


def _profiles(summary: Summary) -> Table:
    return ("algorithm", "m", "tasks", "runs", "score", "fraction_above", "low", "high"), (
        (row.label, row.n_epochs, len(row.cells), row.n, round(float(tau), 4), *bounds, seeds_text(row.seeds))
        for row in summary.profiles
        for tau, *bounds in zip(THRESHOLDS, row.value, row.low, row.high, strict=True)
    )


def _plain(value: object) -> object:
    """Empty for nothing; floats with ten digits, beyond which resampling noise begins long before."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    return f"{value:.10g}" if isinstance(value, float) else value
