"""The runs in a TensorBoard log directory: their tasks, algorithms and scalars."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sppo.records.run_files import read_config
from sppo.records.runs import Run
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


def find_runs(logdir: Path) -> list[Run]:
    """All runs below a directory, by name and without values as yet.

    Their ``hash`` is their path; a study's runs have their configurations, others what their path says.
    """
    if not logdir.is_dir():
        raise FileNotFoundError(f"no log directory {logdir}")
    paths = {}
    for folder, below, files in os.walk(logdir, followlinks=True):
        # a report inside the directory repeats its runs
        below[:] = [name for name in below if not Path(folder, name, MARKER).exists()]
        if any("tfevents" in file and not file.endswith(BOOKKEEPING_SUFFIX) for file in files):
            paths[Path(folder).relative_to(logdir).as_posix()] = Path(folder)
    if not paths:
        raise FileNotFoundError(f"no TensorBoard event files in {logdir}")
    tasks = {split_name(name)[0] for name in paths}
    shared = os.path.commonpath(tasks) if len(tasks) > 1 and all("/" in task for task in tasks) else ""
    counts = Counter[tuple[str, str]]()
    runs = []
    for name, path in sorted(paths.items(), key=lambda item: _natural(item[0])):
        config = _study_config(path)
        if config is None:
            task, algorithm = split_name(name if path != logdir else path.resolve().name)
            config = {"env": task.removeprefix(shared).lstrip("/"), "algorithm": algorithm}
            config["seed"] = counts[task, algorithm]
            counts[task, algorithm] += 1
        runs.append(Run(name, config, "missing", path=path))
    return runs


def split_name(name: str) -> tuple[str, str]:
    """Task and algorithm of a run's path: ``Hopper-v5/PPO_2`` -> ``("Hopper-v5", "PPO")``."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) > 1 and _SEED.fullmatch(parts[-1]):
        parts.pop()
    if not parts:
        return "", "run"
    numbered = _NUMBERED.fullmatch(parts[-1])
    return "/".join(parts[:-1]), numbered["algorithm"] if numbered else parts[-1]


def read_logged(
    runs: Sequence[Run], wanted: str | None, step: int | None
) -> tuple[str, list[Run], list[str]]:
    """The scalar that is compared, the runs with their values of it, and problems with the files.

    All runs are compared by one scalar: the first of :data:`REWARD_TAGS` that all of them have, or that
    most of them have. A run that has a value, and one at ``step``, is ``completed``.
    """
    tags = (wanted,) if wanted else REWARD_TAGS
    found: dict[str, dict[str, Series]] = {tag: {} for tag in tags}
    problems = []
    for run in runs:
        series, faults = read_scalars(run.path or Path(), tags)
        problems += [f"{run.hash}/{fault}" for fault in faults]
        for tag, values in series.items():
            found[tag][run.hash] = values
    best = max(tags, key=lambda tag: len(found[tag]))
    if not found[best]:
        raise LookupError(f"no run has the scalar {' or '.join(tags)}; --tag names another one")
    ends = [int(series.steps[-1]) for series in found[best].values()]
    if step is not None and step > max(ends):
        raise LookupError(f"--step {step}: the runs end between step {min(ends)} and {max(ends)}")
    return best, [_completed(run, found[best].get(run.hash), step) for run in runs], problems


def _completed(run: Run, series: Series | None, step: int | None) -> Run:
    if series is None or not (step is None or series.steps[0] <= step <= series.steps[-1]):
        return run
    kept = len(series.steps) if step is None else int((series.steps <= step).sum())
    return replace(run, status="completed", timesteps=series.steps[:kept], returns=series.values[:kept])


def _study_config(path: Path) -> dict[str, Any] | None:
    """The configuration of the study's run that a directory lies in."""
    for parent in (path, *path.parents[:2]):
        config = read_config(parent)
        if config is not None and {"env", "algorithm"} <= config.keys() and type(config.get("seed")) is int:
            return config
    return None


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts PPO_2 before PPO_10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
