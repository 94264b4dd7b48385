"""``python -m sppo compare LOGDIR --baseline ppo``: the algorithms in any TensorBoard log directory.

Runs are directories with event files. The last part of their path names the algorithm (``PPO_1``,
``PPO_2``: algorithm PPO; ``ppo/seed=0``: algorithm ppo), what stands before it names the task
(``Hopper-v5/PPO_1``). The final reward is the last ``eval/mean_reward`` if every run of the directory has
one, else the last ``rollout/ep_rew_mean``; ``--tag`` chooses another scalar.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sppo.report.cells import Cell, build_cells, looks_of
from sppo.report.curves import logged_figure
from sppo.report.extras import require
from sppo.report.logdir import find_runs, read_logged
from sppo.report.plots import write_sheet
from sppo.report.provenance import Provenance, installed, shown_path
from sppo.report.statistics import FEW_RUNS, Estimate
from sppo.report.summary import FinalReturn, summarise
from sppo.report.tables import estimate_columns, shown, text_table, write_csv

_HEADER = (
    "task", "algorithm", "tag", "runs", "n", "last_step_lowest", "last_step_highest",
    *(column for name in ("mean", "iqm", "difference", "probability") for column in estimate_columns(name)),
    "run_names", "versions", "command",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Compared:
    """The final values of one algorithm on one task, and how they compare with the baseline's."""

    cell: Cell
    final: FinalReturn
    gap: Estimate | None
    better: Estimate | None

    @property
    def ends(self) -> tuple[int, int] | tuple[None, None]:
        """The lowest and the highest last step of a run."""
        steps = [int(run.timesteps[-1]) for run in self.cell.completed]
        return (min(steps), max(steps)) if steps else (None, None)

    @property
    def tally(self) -> str:
        n, planned = self.cell.n, len(self.cell.runs)
        return str(n) if n == planned else f"{n} of {planned}"


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
        tag, runs, problems = read_logged(find_runs(args.logdir), args.tag, args.step)
        rows = compare_cells(build_cells(runs), args.baseline)
    except (FileNotFoundError, LookupError, ModuleNotFoundError) as error:
        print(f"error: {error.args[0] if error.args else error}", file=sys.stderr)
        return 2
    notes = [*problems, *_notes(rows, args.baseline, args.step)]
    print(f"{tag}, {'last value of each run' if args.step is None else f'at step {args.step}'}\n")
    print(_table(rows))
    for note in notes:
        print(f"note: {note}")
    if not args.no_files:
        command = f"python -m sppo compare {shown_path(args.logdir)} --baseline {args.baseline}"
        command += f" --tag {args.tag}" if args.tag else ""
        command += "" if args.step is None else f" --step {args.step}"
        for path in _write(rows, tag, notes, args.out or args.logdir, command):
            print(shown_path(path))
    return 0


def compare_cells(cells: Sequence[Cell], baseline: str) -> list[Compared]:
    """Each algorithm on each task, the baseline first.

    :param baseline: algorithm to compare with, whatever its case
    :raises LookupError: if there is no run of it
    """
    names = list(dict.fromkeys(cell.label.partition(" (")[0] for cell in cells))
    baselines = [name for name in names if name.lower() == baseline.lower()]
    if not baselines:
        raise LookupError(f"--baseline {baseline}: the runs are of {', '.join(names)}")
    summary = summarise(cells, baselines)
    against = {row.cells[0]: row for row in summary.comparisons if row.env is not None}
    rows = []
    for final in summary.finals:
        other = against.get(final.cell)
        gap, better = (other.difference, other.improvement) if other else (None, None)
        rows.append(Compared(final.cell, final, gap, better))
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    return sorted(rows, key=lambda row: (tasks.index(row.cell.task), not _is_baseline(row.cell, baseline)))


def _is_baseline(cell: Cell, baseline: str) -> bool:
    return cell.label.partition(" (")[0].lower() == baseline.lower()


def _table(rows: Sequence[Compared]) -> str:
    header = ["algorithm", "n", "final, 95 % interval", "minus baseline", "P(better)"]
    several = len({row.cell.task for row in rows}) > 1
    lines = []
    for row in rows:
        name = f"{row.cell.task}: {row.cell.label}" if several else row.cell.label
        lines.append([name, row.tally, shown(row.final.mean), shown(row.gap), shown(row.better, 2)])
    return text_table(header, lines)


def _notes(rows: Sequence[Compared], baseline: str, step: int | None) -> list[str]:
    notes: list[str] = []
    for task in dict.fromkeys(row.cell.task for row in rows):
        own = [row for row in rows if row.cell.task == task]
        where = f"{task}: " if task else ""
        if not any(_is_baseline(row.cell, baseline) for row in own):
            names = ", ".join(row.cell.label for row in own)
            notes.append(f"{where}no run of the baseline {baseline!r} (found: {names})")
        steps = [step for row in own for step in row.ends if step is not None]
        if step is None and steps and min(steps) < 0.95 * max(steps):
            text = f"{where}runs end between step {min(steps)} and {max(steps)}"
            notes.append(f"{text}; --step {min(steps)} compares them at the same one")
        single = [row.cell.label for row in own if row.cell.n == 1]
        if single:
            notes.append(f"{where}one run of {', '.join(single)}: no interval, a difference may be chance")
        elif any(1 < row.cell.n < FEW_RUNS for row in own):
            text = f"fewer than {FEW_RUNS} runs: the interval of P(better) is too narrow on average"
            notes.append(where + text)
        for row in own:
            lost = len(row.cell.runs) - row.cell.n
            if lost:
                text = f"{lost} of {len(row.cell.runs)} runs have no value and do not count"
                notes.append(f"{where}{row.cell.label}: {text}")
    return notes


def _write(rows: Sequence[Compared], tag: str, notes: Sequence[str], out: Path, command: str) -> list[Path]:
    """Write ``compare.csv``, ``compare.png`` and ``compare.html``; returns their paths."""
    from sppo.report import html

    out.mkdir(parents=True, exist_ok=True)
    provenance = Provenance(command, installed("sppo", "tensorboard", "numpy", "matplotlib"))
    looks = looks_of(row.cell for row in rows)
    plot = logged_figure([row.cell for row in rows], looks, tag)
    count = sum(len(row.cell.runs) for row in rows)
    footer = f"Made by: {command} | {provenance.versions} | {count} runs, seeds are not in event files"
    write_csv(out / "compare.csv", _HEADER, (_csv_row(row, tag, provenance) for row in rows))
    curves = html.shown(plot, footer)
    values = {"rows": rows, "looks": looks, "notes": notes, "curves": curves}
    page = html.render("compare.html", f"Comparison by {tag}", [curves], **values)
    (out / "compare.html").write_text(page, encoding="utf-8")
    return [*write_sheet(plot, out, footer, formats=("png",)), out / "compare.csv", out / "compare.html"]


def _csv_row(row: Compared, tag: str, provenance: Provenance) -> tuple[object, ...]:
    cell, nothing = row.cell, (None, None, None)
    return (
        cell.task, cell.label, tag, len(cell.runs), cell.n, *row.ends, *row.final.mean, *row.final.iqm,
        *(row.gap or nothing), *(row.better or nothing), " ".join(run.hash for run in cell.runs),
        provenance.versions, provenance.command,
    )  # fmt: skip
