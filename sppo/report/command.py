"""``python -m sppo report DIR``: a study's records to tables, figures, TensorBoard directory and HTML."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sppo.records.published import write_runs
from sppo.records.studies import StudyRecords, read_records
from sppo.records.subset import Subset, add_subset
from sppo.report.cells import build_cells
from sppo.report.figures import all_figures
from sppo.report.html import report_page
from sppo.report.provenance import collect, installed, shown_path
from sppo.report.rerun import publish_study_file
from sppo.report.statistics import CONFIDENCE, RESAMPLES
from sppo.report.style import require_matplotlib, write_sheet
from sppo.report.summary import BASELINES, Summary, summarise
from sppo.report.tables import interval, number, text_table, write_tables

#: runs per cell in the TensorBoard directory; its pages get slow beyond some hundred runs
TENSORBOARD_SEEDS = 5


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sppo report", description=__doc__)
    parser.add_argument("study", type=Path, help="study directory, or a directory with a report's CSV files")
    _add_arguments(parser)
    add_subset(parser)
    args = parser.parse_args(argv)
    return report_study(
        args.study,
        args.out,
        selection=Subset(args.env, args.algorithm, args.seeds),
        baselines=args.baseline or BASELINES,
        tensorboard_seeds=args.tensorboard_seeds,
        tensorboard_copy=args.tensorboard_copy,
        tensorboard_thin=args.tensorboard_thin,
        published=args.published,
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="where to write (default: report/ in the study directory)")
    parser.add_argument(
        "--published",
        type=Path,
        metavar="DIR",
        help="an earlier report of the same study; its completed runs stand in for those that the study "
        "directory does not have",
    )
    parser.add_argument(
        "--baseline",
        action="append",
        help=f"algorithm to compare with; may be given several times (default: {', '.join(BASELINES)})",
    )
    parser.add_argument(
        "--tensorboard-seeds",
        type=int,
        default=TENSORBOARD_SEEDS,
        help="runs per cell in the TensorBoard directory, 0 for none of it (default: %(default)s)",
    )
    parser.add_argument(
        "--tensorboard-copy",
        action="store_true",
        help="copy event files into the TensorBoard directory instead of linking them, to publish it",
    )
    parser.add_argument(
        "--tensorboard-thin",
        type=int,
        default=0,
        metavar="N",
        help="instead, write N points of the main curves of each run, small enough for git",
    )


def report_study(
    study_dir: Path,
    out: Path | None = None,
    *,
    command: str | None = None,
    selection: Subset | None = None,
    baselines: Sequence[str] = BASELINES,
    tensorboard_seeds: int = TENSORBOARD_SEEDS,
    tensorboard_copy: bool = False,
    tensorboard_thin: int = 0,
    published: Path | None = None,
) -> int:
    """Write the report of a study directory and print what is in it.

    :param study_dir: a study directory, or one with ``runs.csv`` and ``evaluations.csv``
    :param out: directory to write to, ``report`` in the study directory if not given
    :param command: the command line to print in every figure and table
    :param selection: the part of the study to report
    :param baselines: algorithms that the others are compared with
    :param tensorboard_seeds: runs per cell in the TensorBoard directory; 0 leaves it out
    :param tensorboard_copy: copy event files instead of linking them
    :param tensorboard_thin: instead, write so many points of the main curves of each run
    :param published: an earlier report, for runs that the study directory does not have
    :return: exit code: 0, or 2 if there is nothing to report
    """
    selection = selection or Subset()
    try:
        require_matplotlib()
        study = read_records(study_dir)
        study = study.completed_from(published) if published is not None else study
        study = study.part(selection) if selection.flags else study
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not study.runs:
        print(f"error: {study_dir} holds no run and no plan", file=sys.stderr)
        return 2
    out = out if out is not None else study_dir / "report"
    out.mkdir(parents=True, exist_ok=True)
    command = command or f"python -m sppo report {shown_path(study_dir)}"
    provenance = collect(command + selection.flags, study.runs)
    summary = summarise(build_cells(study), baselines)
    plots = all_figures(summary, baselines[0])
    study_file = publish_study_file(study_dir, out)
    written = write_runs(study.runs, out) + write_tables(summary, provenance, out, study_file)
    for plot in plots:
        written += write_sheet(plot, out, provenance.footer(plot.seeds))
    programs = installed("sppo", "numpy", "matplotlib")
    report = out / "report.html"
    report.write_text(report_page(study, summary, plots, provenance, programs, study_file), encoding="utf-8")
    _write_provenance(out, provenance.command, provenance.versions, programs, [*written, report])
    print(_text(study, summary))
    print(f"\n{shown_path(report)}: figures, tables and the runs that are not in the means")
    if tensorboard_seeds:
        _build_tensorboard(
            study, summary, out / "tensorboard", tensorboard_seeds, tensorboard_copy, tensorboard_thin
        )
    return 0


def _build_tensorboard(
    study: StudyRecords, summary: Summary, out: Path, seeds: int, copy: bool, thin: int
) -> None:
    from sppo.report.tensorboard import build_logdir

    try:
        build_logdir(study, summary.cells, out, seeds, copy, thin)
    except (FileExistsError, ModuleNotFoundError) as error:
        print(f"no TensorBoard directory: {error}", file=sys.stderr)
        return
    print(f"tensorboard --logdir {shown_path(out)}/means  # algorithms side by side: Custom Scalars")
    print(f"tensorboard --logdir {shown_path(out)}/runs   # every run: Time Series, HParams")


def _write_provenance(out: Path, command: str, versions: str, programs: str, written: list[Path]) -> None:
    about = {
        "command": command,
        "runs_with": versions,
        "report_with": programs,
        "bootstrap": {"resamples": RESAMPLES, "confidence": CONFIDENCE, "seed": 0, "method": "percentile"},
        "files": sorted(path.name for path in written),
    }
    (out / "provenance.json").write_text(
        json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _text(study: StudyRecords, summary: Summary) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in study.counts().items() if count)
    lines = [f"{study.name}: {len(study.runs)} runs, {counts}"]
    pooled = [row for row in summary.comparisons if not row.env]
    if pooled:
        rows = [
            [f"{row.label} vs {row.baseline}, {row.setting}", str(row.tasks), f"{row.n}:{row.n_baseline}",
             number(row.improvement.value, 2), interval(row.improvement, 2) or "none"]
            for row in pooled
        ]  # fmt: skip
        lines += ["", text_table(["probability of improvement", "tasks", "n", "P", "95 % interval"], rows)]
    if summary.notes:
        lines += ["", *(f"note: {note}" for note in summary.notes)]
    return "\n".join(lines)
