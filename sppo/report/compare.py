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

from sppo.report.compare_output import write_outputs
from sppo.report.events import Series, require_tensorboard
from sppo.report.logdir import LoggedRun, choose_tag, find_runs
from sppo.report.provenance import shown_path
from sppo.report.statistics import (
    FEW_RUNS,
    Estimate,
    difference,
    interquartile_mean,
    mean_interval,
    probability_of_improvement,
)
from sppo.report.tables import interval, number, text_table


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one algorithm on one task, and how they compare with the baseline's."""

    task: str
    algorithm: str
    runs: tuple[LoggedRun, ...]
    series: tuple[Series, ...]
    finals: tuple[float, ...]
    last_steps: tuple[int, ...]
    without_data: int
    mean: Estimate
    iqm: Estimate
    gap: Estimate | None
    improvement: Estimate | None


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
        require_tensorboard()
        runs = find_runs(args.logdir)
        tag, data, problems = choose_tag(runs, args.tag)
        groups = compare_runs(runs, data, args.baseline, args.step)
    except (FileNotFoundError, LookupError, ModuleNotFoundError) as error:
        print(f"error: {error.args[0] if error.args else error}", file=sys.stderr)
        return 2
    notes = [*problems, *_notes(groups, args.baseline, args.step)]
    print(f"{tag}, {f'at step {args.step}' if args.step else 'last value of each run'}\n")
    print(_table(groups))
    for note in notes:
        print(f"note: {note}")
    if not args.no_files:
        command = f"python -m sppo compare {shown_path(args.logdir)} --baseline {args.baseline}"
        command += f" --tag {args.tag}" if args.tag else ""
        command += f" --step {args.step}" if args.step else ""
        for path in write_outputs(groups, tag, notes, args.out or args.logdir, command):
            print(shown_path(path))
    return 0


def compare_runs(
    runs: Sequence[LoggedRun], data: dict[str, Series], baseline: str, step: int | None = None
) -> list[Group]:
    """Final values of each algorithm on each task, the baseline first.

    :param data: run name -> its scalar; runs without one are counted, not averaged
    :param baseline: algorithm to compare with, whatever its case
    :param step: take the last value up to this step; runs that did not get there do not count
    """
    cells: dict[tuple[str, str], list[LoggedRun]] = {}
    for run in runs:
        cells.setdefault((run.task, run.algorithm), []).append(run)
    finals = {key: _finals(members, data, step) for key, members in cells.items()}
    groups = []
    tasks = sorted({task for task, _ in cells})
    for task in tasks:
        names = sorted(name for other, name in cells if other == task)
        names.sort(key=lambda name: name.lower() != baseline.lower())
        reference = finals[task, names[0]][0] if names[0].lower() == baseline.lower() else []
        for name in names:
            own = reference if name.lower() != baseline.lower() else []
            groups.append(_group(task, name, cells[task, name], data, finals[task, name], own))
    return groups


def _finals(
    runs: Sequence[LoggedRun], data: dict[str, Series], step: int | None
) -> tuple[list[float], list[int]]:
    values, steps = [], []
    for run in runs:
        series = data.get(run.name)
        if series is None or (step is not None and series.steps[-1] < step):
            continue
        at = len(series) - 1 if step is None else int((series.steps <= step).sum()) - 1
        if at >= 0:
            values.append(float(series.values[at]))
            steps.append(int(series.steps[at]))
    return values, steps


def _group(
    task: str,
    name: str,
    runs: Sequence[LoggedRun],
    data: dict[str, Series],
    finals: tuple[list[float], list[int]],
    reference: Sequence[float],
) -> Group:
    values, steps = finals
    nothing = Estimate(float("nan"))
    compared = bool(values and reference)
    return Group(
        task=task,
        algorithm=name,
        runs=tuple(runs),
        series=tuple(data[run.name] for run in runs if run.name in data),
        finals=tuple(values),
        last_steps=tuple(steps),
        without_data=len(runs) - len(values),
        mean=Estimate(*(float(bound) for bound in mean_interval(values))) if values else nothing,
        iqm=interquartile_mean([values]) if values else nothing,
        gap=difference(values, reference) if compared else None,
        improvement=probability_of_improvement([values], [reference]) if compared else None,
    )


def _table(groups: Sequence[Group]) -> str:
    header = ["algorithm", "n", "final, 95 % interval", "minus baseline", "P(better)"]
    several = len({group.task for group in groups}) > 1
    rows = []
    for group in groups:
        n = str(len(group.finals)) + (f" of {len(group.runs)}" if group.without_data else "")
        name = f"{group.task}: {group.algorithm}" if several else group.algorithm
        rows.append([name, n, _text(group.mean), _text(group.gap), _text(group.improvement, 2)])
    return text_table(header, rows)


def _text(estimate: Estimate | None, digits: int | None = None) -> str:
    if estimate is None:
        return ""
    return f"{number(estimate.value, digits)} {interval(estimate, digits)}".rstrip()


def _notes(groups: Sequence[Group], baseline: str, step: int | None) -> list[str]:
    notes: list[str] = []
    for task in dict.fromkeys(group.task for group in groups):
        own = [group for group in groups if group.task == task]
        where = f"{task}: " if task else ""
        if not any(group.algorithm.lower() == baseline.lower() for group in own):
            names = ", ".join(group.algorithm for group in own)
            notes.append(f"{where}no run of the baseline {baseline!r} (found: {names})")
        steps = [value for group in own for value in group.last_steps]
        if step is None and steps and min(steps) < 0.95 * max(steps):
            text = f"{where}runs end between step {min(steps)} and {max(steps)}"
            notes.append(f"{text}; --step {min(steps)} compares them at the same one")
        single = [group.algorithm for group in own if len(group.finals) == 1]
        if single:
            notes.append(f"{where}one run of {', '.join(single)}: no interval, a difference may be chance")
        elif any(1 < len(group.finals) < FEW_RUNS for group in own):
            text = f"fewer than {FEW_RUNS} runs: the interval of P(better) is too narrow on average"
            notes.append(where + text)
    for group in groups:
        if group.without_data:
            name = f"{group.task}: {group.algorithm}" if group.task else group.algorithm
            notes.append(
                f"{name}: {group.without_data} of {len(group.runs)} runs have no value and do not count"
            )
    return notes
