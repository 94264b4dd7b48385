"""The runs in a TensorBoard log directory: their tasks, algorithms and scalars."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sppo.records.run_files import read_config
from sppo.records.runs import Run
from sppo.report.events import read_scalars

#: the scalar that a report's log directory has a run's evaluations under
RETURN_TAG = "evaluation/mean_return"
#: marks a directory as made by a report, so that it may be replaced
MARKER = ".made-by-sppo-report"
#: ends the names of event files that belong to no run: layout, means
BOOKKEEPING_SUFFIX = ".bookkeeping"
#: best first: evaluations are of the deterministic policy, rollouts of the one that explores
REWARD_TAGS = ("eval/mean_reward", RETURN_TAG, "rollout/ep_rew_mean")


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
    for name, path in sorted(paths.items()):
        config = _study_config(path)
        if config is None:
            task, algorithm = split_name(name if path != logdir else path.resolve().name)
            seed = counts[task, algorithm]
            config = {"env": task.removeprefix(shared).lstrip("/"), "algorithm": algorithm, "seed": seed}
            counts[task, algorithm] += 1
        runs.append(Run(name, config, "missing", path=path))
    return runs


def split_name(name: str) -> tuple[str, str]:
    """Task and algorithm of a run's path: ``Hopper-v5/PPO_2`` -> ``("Hopper-v5", "PPO")``."""
    parts = [part for part in name.split("/") if part not in ("", ".")] or ["run"]
    if len(parts) > 1 and re.fullmatch(r"(seed|run|trial)?[=_-]?\d+", parts[-1], re.IGNORECASE):
        parts.pop()
    return "/".join(parts[:-1]), re.sub(r"(?<=.)[_-]\d+$", "", parts[-1])


def read_logged(runs: Sequence[Run], wanted: str | None, step: int | None) -> tuple[str, list[Run]]:
    """The scalar that is compared, and the runs with their values of it.

    All runs are compared by one scalar: the first of :data:`REWARD_TAGS` that all of them have, or that
    most of them have. A run that has a value, and one at ``step``, is ``completed``.
    """
    tags = (wanted,) if wanted else REWARD_TAGS
    logged = [read_scalars(run.path or Path(), tags) for run in runs]
    best = max(tags, key=lambda tag: sum(tag in series for series in logged))
    ends = [int(series[best].steps[-1]) for series in logged if best in series]
    if not ends:
        raise LookupError(f"no run has the scalar {' or '.join(tags)}; --tag names another one")
    if step is not None and step > max(ends):
        raise LookupError(f"--step {step}: the runs end between step {min(ends)} and {max(ends)}")
    found = []
    for run, series in zip(runs, logged, strict=True):
        if best in series and (step is None or series[best].steps[0] <= step <= series[best].steps[-1]):
            steps, values = series[best]
            kept = len(steps) if step is None else int((steps <= step).sum())
            run = replace(run, status="completed", timesteps=steps[:kept], returns=values[:kept])
        found.append(run)
    return best, found


def _study_config(path: Path) -> Mapping[str, object] | None:
    """The configuration of the study's run that a directory lies in."""
    for parent in (path, *path.parents[:2]):
        config = read_config(parent)
        if config is not None and {"env", "algorithm"} <= config.keys() and type(config.get("seed")) is int:
            return config
    return None
