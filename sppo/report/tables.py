"""Table rows as CSV files and as text for a terminal."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sppo.records.runs import STATUSES
from sppo.report.cells import Setting
from sppo.report.provenance import Provenance, seeds_text
from sppo.report.rerun import rerun_command
from sppo.report.statistics import Estimate
from sppo.report.summary import THRESHOLDS, Summary

AXES = ("m", "epsilon", "eta")


def write_tables(summary: Summary, provenance: Provenance, out: Path, study_file: str = "") -> list[Path]:
    """One CSV file per table; the last three columns of each row say where it comes from."""
    tables: dict[str, Callable[[Summary], tuple[Sequence[str], Iterable[Sequence[Any]]]]] = {
        "final_returns.csv": lambda summary: _finals(summary, study_file),
        "comparisons.csv": _comparisons,
        "iqm.csv": _aggregates,
        "profiles.csv": _profiles,
    }
    paths = []
    for name, build in tables.items():
        header, rows = build(summary)
        path = out / name
        write_csv(path, header, rows, provenance)
        paths.append(path)
    return paths


def write_csv(
    path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]], provenance: Provenance
) -> None:
    """Rows end with their seeds; versions and command are added to each."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*header, "seeds", "versions", "command"])
        for *values, seeds in rows:
            plain = [_cell(value) for value in values]
            writer.writerow([*plain, seeds_text(seeds), provenance.versions, provenance.command])


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


def _finals(summary: Summary, study_file: str) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
    header = ("env", "algorithm", *AXES, "steps", "planned", *STATUSES,
              "mean", "mean_low", "mean_high", "iqm", "iqm_low", "iqm_high", "lowest", "highest",
              "rerun")  # fmt: skip
    rows = (
        (
            row.cell.env, row.cell.label, *_axes(row.cell.setting), row.cell.steps, len(row.cell.runs),
            *row.cell.counts().values(), *_estimate(row.mean), *_estimate(row.iqm), row.low, row.high,
            rerun_command(row.cell, study_file), row.seeds,
        )
        for row in summary.finals
    )  # fmt: skip
    return header, rows


def _comparisons(summary: Summary) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
    header = (
        "algorithm", "baseline", "env", "setting", "tasks", "n", "n_baseline",
        "difference", "difference_low", "difference_high",
        "probability", "probability_low", "probability_high",
    )  # fmt: skip
    nothing = Estimate(float("nan"))
    rows = (
        (
            row.label, row.baseline, row.env or "all", row.setting, row.tasks, row.n, row.n_baseline,
            *_estimate(row.difference or nothing), *_estimate(row.improvement), row.seeds,
        )
        for row in summary.comparisons
    )  # fmt: skip
    return header, rows


def _aggregates(summary: Summary) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
    header = ("algorithm", "setting", "tasks", "runs", "iqm", "iqm_low", "iqm_high", "normalisation")
    bounds = "; ".join(f"{env}: {low!r} to {high!r}" for env, (low, high) in summary.bounds.items())
    rows = (
        (
            row.label, row.setting.text if row.setting else "all settings", row.tasks, row.runs,
            *_estimate(row.iqm), bounds, row.seeds,
        )
        for row in summary.aggregates
    )  # fmt: skip
    return header, rows


def _profiles(summary: Summary) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
    header = ("algorithm", "m", "tasks", "runs", "score", "fraction_above", "low", "high")
    rows = (
        (row.label, row.n_epochs, row.tasks, row.runs, round(float(tau), 4), value, low, high, row.seeds)
        for row in summary.profiles
        for tau, value, low, high in zip(THRESHOLDS, row.value, row.low, row.high, strict=True)
    )
    return header, rows


def _axes(setting: Setting) -> tuple[Any, ...]:
    return (setting.n_epochs, setting.clip_range, setting.eta)


def _estimate(estimate: Estimate) -> tuple[float, float, float]:
    return (estimate.value, estimate.low, estimate.high)


def _cell(value: Any) -> Any:
    """Empty for nothing; floats with ten digits, beyond which resampling noise begins long before."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    return f"{value:.10g}" if isinstance(value, float) else value
