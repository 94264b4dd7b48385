"""Where a study stands, as far as its files tell: counts, tables, estimates."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sppo.records import run_files
from sppo.records.config import RunConfig
from sppo.records.parameters import surrogate_of
from sppo.study.lock import is_locked
from sppo.surrogates import TRAINING

Found = Sequence[tuple[RunConfig, str]]
#: In the order in which tables show them.
STATUSES = ("completed", "running", "interrupted", "failed", "pending")

# Seconds per transition collected, per minibatch update and per evaluation step, on one core of the
# machine that the repository's numbers were made on. They set the proportions between runs; the scale
# is taken from the runs that are done.
_COLLECT = 150e-6
_UPDATE = {"fast": 100e-6, "reference": 2000e-6}
_EVALUATE = 200e-6
_EPISODE = 700


def with_status(runs: Sequence[RunConfig], directory: Path) -> Found:
    """Each run with its status; looks at file names only, so that thousands take a moment."""
    return [(run, _status(os.path.join(directory, run.directory_name))) for run in runs]


def _status(run: str) -> str:
    try:
        names = set(os.listdir(run))
    except OSError:
        return "pending"
    if run_files.RESULT in names:
        return "completed"
    if run_files.FAILURE in names:
        return "failed"
    if run_files.CONFIG not in names:
        return "pending"
    return "running" if is_locked(run) else "interrupted"


def predicted_seconds(run: RunConfig) -> float:
    """A rough guess at a run's duration on one core, from typical costs."""
    parameters = run.parameters
    iterations = -(-run.total_timesteps // run.batch)
    passes = int(parameters.get("n_epochs", parameters.get("n_critic_updates", 10)))
    minibatches = passes * run.batch / int(parameters["batch_size"])
    slow = run.cls != "sppo" or parameters.get("engine") == "reference"
    if not slow:
        surrogate = surrogate_of(parameters)
        # As the algorithm decides: "auto" keeps upstream's own surrogate on upstream's loop.
        upstreams = surrogate.label == "ppo" and parameters.get("eta") is None
        upstreams = upstreams and not any(parameters.get(name) for name in TRAINING)
        slow = surrogate.compiled() is None or (parameters.get("engine") == "auto" and upstreams)
    update = _UPDATE["reference" if slow else "fast"]
    evaluation = run.evaluations * run.eval_episodes * _EPISODE * _EVALUATE
    return iterations * (run.batch * _COLLECT + minibatches * update) + evaluation


def makespan(costs: Sequence[float], jobs: int) -> float:
    """When the last of these is done, ``jobs`` at a time: the work shared, but no run shared by two."""
    return max(sum(costs) / jobs, *costs, 0.0)


def calibration(found: Found, directory: Path) -> tuple[float, int]:
    """Measured over predicted seconds of (a sample of) the completed runs, and how many those were."""
    done = [run for run, status in found if status == "completed"]
    seconds: list[tuple[float, float]] = []
    for run in done[:: max(1, len(done) // 200)]:
        result = run_files.read_json(directory / run.directory_name / run_files.RESULT) or {}
        if result.get("wall_seconds"):
            seconds.append((float(result["wall_seconds"]), predicted_seconds(run)))
    measured, predicted = map(sum, zip(*seconds, strict=True)) if seconds else (1.0, 1.0)
    return measured / predicted, len(seconds)


def table(found: Found) -> str:
    """Counts by environment and algorithm."""
    cells: dict[tuple[str, str], Counter[str]] = {}
    for run, status in found:
        cells.setdefault((run.env, run.algorithm), Counter())[status] += 1
    cells["total", ""] = Counter(status for _, status in found)
    rows = [["environment", "algorithm", "runs", *STATUSES]]
    for labels, counts in cells.items():
        rows.append([*labels, str(counts.total()), *(str(counts[status] or "-") for status in STATUSES)])
    return aligned(rows, left=2)


def aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """Rows of words as columns, the first ``left`` of them flush left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = [text.rjust(width) for text, width in zip(row, widths, strict=True)]
        padded[:left] = [text.ljust(width) for text, width in zip(row[:left], widths, strict=False)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """``93784`` as ``1 d 2 h``; two units are enough."""
    minutes, hours = seconds / 60, seconds / 3600
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes:.0f} min"
    if hours < 36:
        return f"{int(hours)} h {int(minutes % 60):02d} min"
    return f"{int(hours // 24)} d {int(hours % 24)} h"
