"""``python -m sppo report DIR``: a study's records to tables, figures, TensorBoard directory and HTML."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from sppo.records.published import write_runs
from sppo.records.run_files import STUDY_FILE
from sppo.records.studies import StudyRecords, read_records
from sppo.records.subset import Subset, add_subset
from sppo.report.cells import build_cells
from sppo.report.figures import all_figures
from sppo.report.plots import write_sheet
from sppo.report.provenance import Provenance, collect, require, shown_path
from sppo.report.statistics import CONFIDENCE, RESAMPLES
from sppo.report.summary import DEFAULT_BASELINES, Summary, summarise
from sppo.report.tables import shown, text_table, write_tables
from sppo.report.tensorboard import build_logdir


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sppo report", description=__doc__)
    add = parser.add_argument
    add("study", type=Path, help="study directory, or a directory with a report's CSV files")
    add("--out", type=Path, help="where to write (default: report/ in the study directory)")
    add("--published", type=Path, metavar="DIR", help="an earlier report of the same study; its completed "
        "runs stand in for those that the study directory does not have")  # fmt: skip
    add("--baseline", action="append", dest="baselines", metavar="LABEL", help="algorithm to compare with; "
        f"may be given several times (default: {', '.join(DEFAULT_BASELINES)})")  # fmt: skip
    add("--tensorboard-seeds", type=_count, default=5, metavar="N", help="runs per cell beside the means "
        "in the TensorBoard directory; its pages get slow beyond 100s (default: %(default)s)")  # fmt: skip
    add("--tensorboard-thin", type=_count, default=0, metavar="N", help="instead of links to event files, "
        "write N points of the main curves of each run, small enough for git")  # fmt: skip
    add_subset(parser)
    args = parser.parse_args(argv)
    subset = Subset(args.env, args.algorithm, args.seeds)
    try:
        require("matplotlib", "jinja2", extra="plot")
        study = _read(args.study, args.published, subset, args.baselines or ())
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    out = args.out or args.study / "report"
    out.mkdir(parents=True, exist_ok=True)
    source, study_file = args.study / STUDY_FILE, out / STUDY_FILE
    if source.is_file() and source.resolve() != study_file.resolve():
        shutil.copyfile(source, study_file)
    copied = shown_path(study_file) if study_file.is_file() else ""
    words = ["python", "-m", "sppo", "report"]
    if args.published and args.published.resolve() == out.resolve():
        # It holds all that was reported from now on, and can be had without the study directory.
        words += [shown_path(out)]
    else:
        words += [shown_path(args.study), *subset.flags.split()]
        words += ["--published", shown_path(args.published)] if args.published else []
    words += [word for name in args.baselines or () for word in ("--baseline", name)]
    summary = summarise(build_cells(study.runs), args.baselines or DEFAULT_BASELINES)
    provenance = collect(shlex.join(words), study.runs, copied)
    _write_files(study, summary, out, provenance)
    print(_text(study, summary))
    print(f"\n{shown_path(out / 'report.html')}: figures, tables and the runs that are not in the means")
    logdir = shown_path(out / "tensorboard")
    try:
        build_logdir(summary.cells, out / "tensorboard", args.tensorboard_seeds, args.tensorboard_thin)
    except (FileExistsError, ModuleNotFoundError) as error:
        print(f"no TensorBoard directory: {error}", file=sys.stderr)
        return 0
    print(f"tensorboard --logdir {logdir}/means  # algorithms side by side: Custom Scalars")
    if args.tensorboard_seeds:
        print(f"tensorboard --logdir {logdir}/runs   # every run: Time Series, HParams")
    return 0


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def _read(directory: Path, published: Path | None, subset: Subset, baselines: Sequence[str]) -> StudyRecords:
    """The part of the study that is asked for.

    :raises ValueError: if there is nothing to report, or a flag names what the study does not have
    """
    study = read_records(directory)
    study = study.completed_from(published) if published is not None else study
    study = study.part(subset) if subset.flags else study
    if not study.runs:
        raise ValueError(f"{directory} holds no run and no plan")
    present = sorted({run.algorithm for run in study.runs if run.config})
    for name in baselines:
        if name not in present:
            raise ValueError(f"--baseline {name}: the study has {', '.join(present)}")
    return study


def _write_files(study: StudyRecords, summary: Summary, out: Path, provenance: Provenance) -> None:
    """Everything but the TensorBoard directory, and the list of it."""
    from sppo.report.html import report_page

    plots = all_figures(summary)
    report = out / "report.html"
    report.write_text(report_page(study, summary, plots, provenance), encoding="utf-8")
    written = [report, *write_runs(study.runs, out), *write_tables(summary, provenance, out)]
    for plot in plots:
        written += write_sheet(plot, out, provenance.footer(plot.seeds))
    about = {
        "command": provenance.command,
        "runs_with": provenance.versions,
        "report_with": provenance.programs,
        "bootstrap": {"resamples": RESAMPLES, "confidence": CONFIDENCE, "seed": 0, "method": "percentile"},
        "files": sorted(path.name for path in written),
    }
    text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
    (out / "provenance.json").write_text(text, encoding="utf-8")


def _text(study: StudyRecords, summary: Summary) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in study.counts().items() if count)
    lines = [f"{study.name}: {len(study.runs)} runs, {counts}"]
    rows = [
        [f"{row.label} vs {row.baseline}, {row.where}", str(row.tasks), shown(row.improvement, 2)]
        for row in summary.comparisons
        if row.env is None
    ]
    if rows:
        lines += ["", text_table(["probability of improvement", "tasks", "P, 95 % interval"], rows)]
    return "\n".join([*lines, *(f"note: {note}" for note in summary.notes)])
