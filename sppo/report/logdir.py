"""The runs in a TensorBoard log directory: their tasks, algorithms and scalars."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sppo.records import run_files
from sppo.report.cells import setting_of
from sppo.report.events import Series, read_scalars

#: the scalar that a report's log directory has a run's evaluations under
RETURN_TAG = "evaluation/mean_return"
#: marks a directory as made by a report, so that it may be replaced
MARKER = ".made-by-sppo-report"
#: ends the names of event files that belong to no run: layout, means
BOOKKEEPING_SUFFIX = ".bookkeeping"
#: best first: evaluations are of the deterministic policy, rollouts of the one that explores
REWARD_TAGS = ("eval/mean_reward", RETURN_TAG, "rollout/ep_rew_mean")
_SEED = re.compile(r"(seed|run|trial)?[=_-]?\d+", re.IGNORECASE)
_NUMBERED = re.compile(r"(?P<algorithm>.+?)[_-]\d+")


@dataclass(frozen=True)
class LoggedRun:
    """A directory with event files."""

    name: str
    task: str
    algorithm: str
    path: Path


def find_runs(logdir: Path) -> list[LoggedRun]:
    """All runs below a directory, by name; a study's runs get the names of their configurations."""
    if not logdir.is_dir():
        raise FileNotFoundError(f"no log directory {logdir}")
    runs = []
    for folder, below, files in os.walk(logdir, followlinks=True):
        # a report inside the directory repeats its runs
        below[:] = [name for name in below if not Path(folder, name, MARKER).exists()]
        if any("tfevents" in file and not file.endswith(BOOKKEEPING_SUFFIX) for file in files):
            runs.append(_logged_run(logdir, Path(folder)))
    if not runs:
        raise FileNotFoundError(f"no TensorBoard event files in {logdir}")
    if len({run.task for run in runs}) > 1 and all("/" in run.task for run in runs):
        shared = os.path.commonpath([run.task for run in runs])
        runs = [replace(run, task=run.task.removeprefix(shared).lstrip("/")) for run in runs]
    return sorted(runs, key=lambda run: _natural(run.name))


def split_name(name: str) -> tuple[str, str]:
    """Task and algorithm of a run's path: ``Hopper-v5/PPO_2`` -> ``("Hopper-v5", "PPO")``."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) > 1 and _SEED.fullmatch(parts[-1]):
        parts.pop()
    if not parts:
        return "", "run"
    numbered = _NUMBERED.fullmatch(parts[-1])
    return "/".join(parts[:-1]), numbered["algorithm"] if numbered else parts[-1]


def choose_tag(runs: Sequence[LoggedRun], wanted: str | None) -> tuple[str, dict[str, Series], list[str]]:
    """The scalar that is compared, its series by run name, and problems with the files.

    All runs are compared by one scalar: the first of :data:`REWARD_TAGS` that all of them have, or that
    most of them have.
    """
    tags = (wanted,) if wanted else REWARD_TAGS
    found: dict[str, dict[str, Series]] = {tag: {} for tag in tags}
    problems = []
    for run in runs:
        series, faults = read_scalars(run.path, tags)
        problems += [f"{run.name}/{fault}" for fault in faults]
        for tag, values in series.items():
            found[tag][run.name] = values
    best = max(tags, key=lambda tag: len(found[tag]))
    if not found[best]:
        raise LookupError(f"no run has the scalar {' or '.join(tags)}; --tag names another one")
    return best, found[best], problems


def _logged_run(logdir: Path, path: Path) -> LoggedRun:
    name = path.relative_to(logdir).as_posix()
    for parent in (path, *path.parents[:2]):
        config = run_files.read_config(parent) or {}
        if {"env", "algorithm", "seed"} <= config.keys():
            return LoggedRun(
                name, f"{config['env']}, {setting_of(config).text}", str(config["algorithm"]), path
            )
    task, algorithm = split_name(name)
    if name == ".":
        algorithm = split_name(path.resolve().name)[1]
    return LoggedRun(name, task, algorithm, path)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts PPO_2 before PPO_10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
