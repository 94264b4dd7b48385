"""``python -m sppo study plan|run|status|report FILE``: grids of trainings from a TOML file."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from sppo.checkpoint.files import write_atomically
from sppo.envs.cores import cores
from sppo.parameters import COUNT, Parameter, reader
from sppo.records import run_files
from sppo.records.config import RunConfig
from sppo.records.published import completed_runs
from sppo.records.subset import Subset, add_subset
from sppo.study.definition import StudyError, StudyPlan, read_plan
from sppo.study.execution import Options, Outcome
from sppo.study.local import LocalPool
from sppo.study.overview import Found, calibration, duration, makespan, predicted_seconds, table, with_status
from sppo.study.runner import Stopper, run_all

Report = Callable[[Sequence[str]], int]
_CPUS = reader(Parameter("float", "", low=0, above=True))


def main(argv: Sequence[str] | None = None, report: Report | None = None) -> int:
    """Returns the process's exit code.

    :param report: the report's command, called with its arguments; this room knows nothing of reports
    """
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if rest and args.action != "report":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    actions = {"plan": _plan, "run": _run, "status": _status}
    try:
        study = read_plan(args.file)
        directory = args.out if args.out is not None else Path("runs", study.name)
        if args.action == "report":
            if report is None or not directory.is_dir():
                raise StudyError(f"{directory} does not exist: run the study first")
            write_study(study, directory)
            out = [] if args.report_dir is None else ["--out", args.report_dir]
            return report([str(directory), *out, *rest])
        found = with_status(select(study, args), directory)
        return actions[args.action](study, found, directory, args)
    except (StudyError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sppo study", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)

    def action(name: str, line: str) -> argparse.ArgumentParser:
        one = actions.add_parser(name, help=line, description=line)
        one.add_argument("file", metavar="FILE", help="the study, a TOML file")
        one.add_argument("--out", type=Path, help="study directory (default: runs/NAME)")
        return one

    plan = action("plan", "print the number of runs and a time estimate")
    run = action("run", "execute what is not done yet; may be interrupted, and started again, at any time")
    status = action("status", "print what is done, running, failed and waiting")
    report = action("report", "figures, tables and HTML; further options as of 'python -m sppo report'")
    report.add_argument("--report-dir", help="where to write (default: report/ in the study directory)")
    for one in (plan, run, status):
        only = "only this value of a parameter; may be repeated"
        add_subset(one).add_argument("--where", action="append", metavar="NAME=VALUE", help=only)
    status.add_argument("--json", action="store_true", help="print the counts as JSON")
    for one in (plan, run):
        jobs = cores()
        one.add_argument("--jobs", type=COUNT, default=jobs, help=f"processes (default: {jobs} cores)")
        known = "leave out the runs that a report of this study, made elsewhere, has completed"
        one.add_argument("--published", type=Path, metavar="DIR", help=known)
    run.add_argument("--retry-failed", action="store_true", help="also run again what has failed")
    run.add_argument("--checkpoint-every", type=COUNT, metavar="N", help="iterations; overrides the file")
    run.add_argument("--executor", choices=("local", "ray"), default="local")
    run.add_argument("--address", help="of the Ray cluster (default: start one on this machine)")
    run.add_argument("--cpus", type=_CPUS, default=1.0, help="CPUs per Ray task (default: 1)")
    return parser


def select(study: StudyPlan, args: argparse.Namespace) -> list[RunConfig]:
    """The runs that the subset flags leave."""
    try:
        runs = Subset(args.env, args.algorithm, args.seeds, args.where).choose(study.runs)
    except ValueError as error:
        raise StudyError(str(error)) from error
    if getattr(args, "published", None) is not None:
        done = completed_runs(args.published)
        runs = [run for run in runs if run.directory_name not in done]
    return runs


def _plan(study: StudyPlan, found: Found, directory: Path, args: argparse.Namespace) -> int:
    print(table(found))
    scale, measured = calibration(found, directory)
    left = [run for run, status in found if status not in ("completed", "failed")]
    costs = [scale * predicted_seconds(run) for run in left]
    source = f"from {measured} completed runs" if measured else "a rough guess from typical costs"
    print(
        f"{len(found)} runs, {len(left)} to do: about {duration(sum(costs))} of one core, "
        f"{duration(makespan(costs, args.jobs))} with --jobs {args.jobs} ({source})"
    )
    print(f"records: {directory}")
    return 0


def _status(study: StudyPlan, found: Found, directory: Path, args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps(dict(sorted(Counter(status for _, status in found).items()))))
        return 0
    print(table(found))
    for run, status in found:
        path = directory / run.directory_name
        if status == "running":
            progress = run_files.read_json(path / run_files.PROGRESS) or {}
            steps = f"{progress.get('timesteps', 0)} of {run.total_timesteps} steps"
            print(f"running: {run.describe(study.varied)}: {steps}")
        if status == "failed":
            file = path / run_files.FAILURE
            error = (run_files.read_json(file) or {}).get("error")
            print(f"failed: {run.describe(study.varied)}: {error} ({file})")
    return 0


def _run(study: StudyPlan, found: Found, directory: Path, args: argparse.Namespace) -> int:
    options = Options(args.checkpoint_every or study.checkpoint_every, args.retry_failed)
    leave = ("completed",) if args.retry_failed else ("completed", "failed")
    todo = [run for run, status in found if status not in leave]
    settled = [status for _, status in found if status in leave]
    if todo or directory.exists():
        write_study(study, directory)
    if not todo:
        done = settled.count("completed")
        where = f" in {directory}" + (f", the others in {args.published}" if args.published else "")
        print(f"nothing to do: {done} run{'s' * (done != 1)} completed before,{where}")
        return _conclude([], settled, directory, stopped=False)
    if args.executor == "ray":
        from sppo.study.ray_executor import RayPool

        pool: LocalPool | RayPool = RayPool(directory, options, args.address, args.cpus)
    else:
        pool = LocalPool(directory, options, args.jobs)
    with Stopper() as stopper:
        outcomes = run_all(todo, settled, pool, stopper, study.varied)
    return _conclude(outcomes, settled, directory, bool(stopper.requests))


def _conclude(outcomes: list[Outcome], settled: list[str], directory: Path, stopped: bool) -> int:
    """Say how it ended; the exit code is 0 if nothing failed, 1 if something did, 130 if interrupted."""
    counts = Counter(outcome.status for outcome in outcomes)
    if failed_before := settled.count("failed"):
        print(f"{failed_before} runs failed earlier and were left alone; --retry-failed runs them again")
    if counts["busy"]:
        print(f"{counts['busy']} runs are being trained by another runner")
    if counts["failed"]:
        where = f"{directory}/*/{run_files.FAILURE}"
        print(f"{counts['failed']} runs failed: see {where}; --retry-failed runs them again")
    if stopped:
        print("interrupted: run the same command again to go on")
        return 130
    return 1 if counts["failed"] or failed_before else 0


def write_study(study: StudyPlan, directory: Path) -> None:
    """Put the study's file and its plan into the study directory; another file found there is kept."""
    keep_file(study.text, directory)
    plan = json.dumps([{"hash": run.hash, "config": run.as_dict()} for run in study.runs])
    _write_if_new(directory / run_files.BOOKKEEPING / run_files.PLAN, plan)


def keep_file(text: str, directory: Path) -> None:
    """Put a study's file into its directory; another one found there is kept."""
    bookkeeping = directory / run_files.BOOKKEEPING
    bookkeeping.mkdir(parents=True, exist_ok=True)
    copy = directory / run_files.STUDY_FILE
    if copy.exists() and copy.read_text(encoding="utf-8") != text:
        number = 1 + sum(1 for _ in bookkeeping.glob("study-*.toml"))
        write_atomically(bookkeeping / f"study-{number}.toml", copy.read_bytes())
    _write_if_new(copy, text)


def _write_if_new(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text.encode())
