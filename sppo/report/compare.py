"""``python -m sppo compare LOGDIR --baseline ppo``: the algorithms in any TensorBoard log directory.

Runs are directories with event files. The last part of their path names the algorithm (``PPO_1``,
``PPO_2``: algorithm PPO; ``ppo/seed=0``: algorithm ppo), what stands before it names the task
(``Hopper-v5/PPO_1``). The final reward is the last ``eval/mean_reward`` if every run of the directory has
one, else the last ``rollout/ep_rew_mean``; ``--tag`` chooses another scalar.
"""

from __future__ import annotations

import argparse
import glob
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sppo.records.run_files import run_directories
from sppo.records.runs import Run
from sppo.report.cells import Cell, build_cells, grouped, looks_of
from sppo.report.figures import curves_figure
from sppo.report.plots import write_sheet
from sppo.report.provenance import installed, require, shown_path
from sppo.report.statistics import FEW_RUNS, Estimate
from sppo.report.summary import summarise
from sppo.report.tables import shown, text_table, write_csv
from sppo.report.tensorboard import BOOKKEEPING_SUFFIX, EVENT_FILES, RETURN_TAG, read_scalars

#: best first: evaluations are of the deterministic policy, rollouts of the one that explores
REWARD_TAGS = ("eval/mean_reward", RETURN_TAG, "rollout/ep_rew_mean")
#: an algorithm on a task, its difference from the baseline and its probability of improvement over it
Compared = Sequence[tuple[Cell, Estimate, Estimate]]

_HEADER = (
    "task algorithm tag runs n last_step_lowest last_step_highest mean mean_low mean_high iqm iqm_low "
    "iqm_high difference difference_low difference_high probability probability_low probability_high "
    "run_names versions command"
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sppo compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("logdir", type=Path, help="TensorBoard log directory")
    parser.add_argument("--baseline", default="ppo", help="algorithm to compare with (default: %(default)s)")
    parser.add_argument("--tag", help="scalar to compare (default: eval/mean_reward or rollout/ep_rew_mean)")
    parser.add_argument("--step", type=int, help="compare at this step instead of at the end of each run")
    parser.add_argument("--out", type=Path, help="where to write compare.png, .csv, .html (default: LOGDIR)")
    parser.add_argument("--no-files", action="store_true", help="print the table only")
    args = parser.parse_args(argv)
    try:
        require("tensorboard", extra="tensorboard")
        if not args.no_files:
            require("matplotlib", "jinja2", extra="plot")
        tag, runs = read_runs(args.logdir, args.tag, args.step)
        cells = build_cells(runs)
        rows = compare_cells(cells, args.baseline)
    except (FileNotFoundError, LookupError, ModuleNotFoundError) as error:
        print(f"error: {error.args[0] if error.args else error}", file=sys.stderr)
        return 2
    notes = list(_notes(cells, args.baseline, args.step))
    print(f"{tag}, {'last value of each run' if args.step is None else f'at step {args.step}'}\n")
    print(_table(rows), *(f"note: {note}" for note in notes), sep="\n")
    if not args.no_files:
        words = ["python", "-m", "sppo", "compare", shown_path(args.logdir), "--baseline", args.baseline]
        words += ["--tag", args.tag] if args.tag else []
        words += [] if args.step is None else ["--step", str(args.step)]
        for path in _write(rows, tag, notes, args.out or args.logdir, shlex.join(words)):
            print(shown_path(path))
    return 0


def read_runs(logdir: Path, wanted: str | None = None, step: int | None = None) -> tuple[str, list[Run]]:
    """The scalar that is compared, and the runs below a directory with their values of it.

    All runs are compared by one scalar: the first of :data:`REWARD_TAGS` that all of them have, or that
    most of them have. A run that has a value, and one at ``step``, is ``completed``; ``hash`` is its path.
    """
    tags = (wanted,) if wanted else REWARD_TAGS
    logged = {folder: read_scalars(folder, tags) for folder in _folders(logdir)}
    best = max(tags, key=lambda tag: sum(tag in series for series in logged.values()))
    ends = [int(series[best].steps[-1]) for series in logged.values() if best in series]
    if not ends:
        raise LookupError(f"no run has the scalar {' or '.join(tags)}; --tag names another one")
    if step is not None and step > max(ends):
        raise LookupError(f"--step {step}: the runs end between step {min(ends)} and {max(ends)}")
    counts = Counter[tuple[str, str]]()
    runs = []
    for folder, series in logged.items():
        name = folder.relative_to(logdir).as_posix()
        task, algorithm = split_name(name if folder != logdir else logdir.resolve().name)
        config = {"env": task, "algorithm": algorithm, "seed": counts[task, algorithm]}
        counts[task, algorithm] += 1
        run = Run(name, config, "missing", path=folder)
        if best in series and (step is None or series[best].steps[0] <= step <= series[best].steps[-1]):
            steps, values = series[best]
            kept = len(steps) if step is None else int((steps <= step).sum())
            run = replace(run, status="completed", timesteps=steps[:kept], returns=values[:kept])
        runs.append(run)
    return best, runs


def _folders(logdir: Path) -> list[Path]:
    """With event files of runs."""
    if not logdir.is_dir():
        raise FileNotFoundError(f"no log directory {logdir}")
    if run_directories(logdir):
        raise FileNotFoundError(f"{logdir} is a study: python -m sppo report {logdir}")
    # unlike pathlib's, this pattern follows links to directories
    found = map(Path, glob.glob(f"{glob.escape(str(logdir))}/**/{EVENT_FILES}", recursive=True))
    folders = sorted({file.parent for file in found if not file.name.endswith(BOOKKEEPING_SUFFIX)})
    if not folders:
        raise FileNotFoundError(f"no TensorBoard event files in {logdir}")
    return folders


def split_name(name: str) -> tuple[str, str]:
    """Task and algorithm of a run's path: ``Hopper-v5/PPO_2`` -> ``("Hopper-v5", "PPO")``."""
    parts = [part for part in name.split("/") if part not in ("", ".")] or ["run"]
    if len(parts) > 1 and re.fullmatch(r"(seed|run|trial)?[=_-]?\d+", parts[-1], re.IGNORECASE):
        parts.pop()
    return "/".join(parts[:-1]), re.sub(r"(?<=.)[_-]\d+$", "", parts[-1])


def compare_cells(cells: Sequence[Cell], baseline: str) -> Compared:
    """Each algorithm on each task.

    :param baseline: algorithm to compare with, whatever its case
    :raises LookupError: if there is no run of it
    """
    names = list(dict.fromkeys(cell.label for cell in cells))
    baselines = [name for name in names if name.lower() == baseline.lower()]
    if not baselines:
        raise LookupError(f"--baseline {baseline}: the runs are of {', '.join(names)}")
    rows = [row for row in summarise(cells, baselines).comparisons if row.env is not None]
    found = {row.cells[0]: (row.difference, row.improvement) for row in rows}
    return [(cell, *found.get(cell, (Estimate(), Estimate()))) for cell in cells]


def _table(rows: Compared) -> str:
    lines = []
    for cell, gap, better in rows:
        name = f"{cell.env}: {cell.label}" if cell.env else cell.label
        lines.append([name, cell.tally(), shown(cell.mean), shown(gap), shown(better, 2)])
    return text_table(["algorithm", "n", "final, 95 % interval", "minus baseline", "P(better)"], lines)


def last_steps(*cells: Cell) -> list[int]:
    """At which the completed runs end, in order."""
    return sorted(int(run.timesteps[-1]) for cell in cells for run in cell.completed)


def _notes(cells: Sequence[Cell], baseline: str, step: int | None) -> Iterator[str]:
    for task, own in grouped(cells, lambda cell: cell.env).items():
        where = f"{task}: " if task else ""
        names = [cell.label for cell in own]
        if baseline.lower() not in map(str.lower, names):
            yield f"{where}no run of the baseline {baseline!r} (found: {', '.join(names)})"
        ends = last_steps(*own)
        if step is None and ends and ends[0] < 0.95 * ends[-1]:
            text = f"{where}runs end between step {ends[0]} and {ends[-1]}"
            yield f"{text}; --step {ends[0]} compares them at the same one"
        single = ", ".join(cell.label for cell in own if cell.n == 1)
        if single:
            yield f"{where}one run of {single}: no interval, a difference may be chance"
        elif any(1 < cell.n < FEW_RUNS for cell in own):
            yield f"{where}fewer than {FEW_RUNS} runs: the interval of P(better) is too narrow on average"


def _write(rows: Compared, tag: str, notes: Sequence[str], out: Path, command: str) -> list[Path]:
    """Write ``compare.csv``, ``compare.png`` and ``compare.html``; returns their paths."""
    from sppo.report.html import render

    out.mkdir(parents=True, exist_ok=True)
    versions = installed("sppo", "tensorboard", "numpy", "matplotlib")
    cells = [cell for cell, _, _ in rows]
    ends: Mapping[Cell, Sequence[int | None]] = {cell: last_steps(cell) or [None] for cell in cells}
    lines = (
        (
            cell.env, cell.label, tag, len(cell.runs), cell.n, ends[cell][0], ends[cell][-1], *cell.mean,
            *cell.iqm, *gap, *better, " ".join(run.hash for run in cell.runs), versions, command,
        )
        for cell, gap, better in rows
    )  # fmt: skip
    write_csv(out / "compare.csv", _HEADER.split(), lines)
    looks = looks_of(cells)
    plot = curves_figure("compare", f"Learning curves: {tag}", cells, looks, tag)
    count = sum(len(cell.runs) for cell in cells)
    footer = f"Made by: {command} | {versions} | {count} runs, seeds are not in event files"
    values = {"rows": rows, "looks": looks, "notes": notes, "plot": plot, "footer": footer, "ends": ends}
    page = render("compare.html", f"Comparison by {tag}", [plot], **values)
    (out / "compare.html").write_text(page, encoding="utf-8")
    return [*write_sheet(plot, out, footer, formats=("png",)), out / "compare.csv", out / "compare.html"]
