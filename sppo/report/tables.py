"""Table rows as CSV files and as text for a terminal."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from sppo.records.runs import STATUSES
from sppo.report.cells import Cell, seeds_of
from sppo.report.provenance import Provenance, rerun_command, seeds_text
from sppo.report.statistics import Estimate
from sppo.report.summary import THRESHOLDS, Summary


def write_tables(summary: Summary, provenance: Provenance, out: Path) -> list[Path]:
    """One CSV file per table; the last three columns of each row say where it comes from."""
    bounds = "; ".join(f"{env}: {low!r} to {high!r}" for env, (low, high) in summary.bounds.items())

    def source(*cells: Cell) -> tuple[str, str, str]:
        return seeds_text(seeds_of(cells)), provenance.versions, provenance.command

    tables: dict[str, tuple[str, Iterable[Sequence[object]]]] = {
        "final_returns.csv": (
            f"env algorithm m epsilon eta steps planned {' '.join(STATUSES)} mean mean_low mean_high "
            "iqm iqm_low iqm_high lowest highest rerun",
            ((*_final(cell, provenance.study_file), *source(cell)) for cell in summary.cells),
        ),
        "comparisons.csv": (
            "algorithm baseline env setting tasks n n_baseline difference difference_low difference_high "
            "probability probability_low probability_high",
            (
                (row.label, row.baseline, "all" if row.env is None else row.env, row.where, row.tasks,
                 *row.sides, *row.difference, *row.improvement, *source(*row.cells))
                for row in summary.comparisons
            ),
        ),
        "iqm.csv": (
            "algorithm setting tasks runs iqm iqm_low iqm_high normalisation",
            (
                (row.label, row.where, len(row.cells), row.n, *row.iqm, bounds, *source(*row.cells))
                for row in summary.aggregates
            ),
        ),
        "profiles.csv": (
            "algorithm m tasks runs score fraction_above low high",
            (
                (row.label, row.cells[0].setting.n_epochs, len(row.cells), row.n, round(float(tau), 4),
                 *found, *source(*row.cells))
                for row in summary.profiles
                for tau, *found in zip(THRESHOLDS, *row.profile, strict=True)
            ),
        ),
    }  # fmt: skip
    for name, (header, rows) in tables.items():
        write_csv(out / name, f"{header} seeds versions command".split(), rows)
    return [out / name for name in tables]


def _final(cell: Cell, study_file: str) -> Sequence[object]:
    counts = Counter(run.status for run in cell.runs)
    return (
        cell.env, cell.label, *cell.setting, cell.steps, len(cell.runs),
        *(counts[status] for status in STATUSES), *cell.mean, *cell.iqm,
        *((cell.finals.min(), cell.finals.max()) if cell.n else (None, None)),
        rerun_command(cell, study_file),
    )  # fmt: skip


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Empty for nothing; floats with ten digits, beyond which resampling noise begins long before."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            plain = (f"{value:.10g}" if isinstance(value, float) else value for value in row)
            writer.writerow("" if value in (None, "nan") else value for value in plain)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned with spaces, the first one to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    form = "  ".join(f"{{:{'>' if number else '<'}{width}}}" for number, width in enumerate(widths))
    return "\n".join(form.format(*line).rstrip() for line in lines)


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


def shown(estimate: Estimate, digits: int | None = None) -> str:
    """The number and its interval, as far as there are any."""
    return f"{number(estimate.value, digits)} {interval(estimate, digits)}".rstrip()
