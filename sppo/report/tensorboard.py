"""TensorBoard: event files read and written, a study as a log directory with layout and hyperparameters.

::

    runs/Hopper-v5/m=10,eps=0.3/ppo/seed=0     the run's own event files, as links, and its evaluations
    runs/Hopper-v5/m=10,eps=0.3/sppo/seed=0
    means/ppo, means/sppo                      mean return and 95 % bounds of every cell's completed runs

*Time series*: the run filter ``Hopper-v5/m=10,eps=0.3/(ppo|sppo)/`` compares the two. *Custom scalars*:
one chart per environment and setting with all algorithms on it. *HParams*: one row per run, with its
status and final return. The whole directory can be opened, or ``runs`` or ``means`` alone: with more than 40
runs, TensorBoard starts with none selected on the custom-scalars page, so the means stand apart. The records
themselves are not touched.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sppo.records.run_files import TENSORBOARD
from sppo.records.runs import Run
from sppo.report.cells import Cell, Setting, grouped
from sppo.report.provenance import require
from sppo.report.statistics import mean_interval

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

EVENT_FILES = "*tfevents*"
#: the scalar that a report's log directory has a run's evaluations under
RETURN_TAG = "evaluation/mean_return"
#: marks a directory as made by a report, so that it may be replaced
MARKER = ".made-by-sppo-report"
#: ends the names of event files that belong to no run: layout, means
BOOKKEEPING_SUFFIX = ".bookkeeping"
#: TensorBoard reads a directory's files in the order of their names and stays at the last one, which
#: must be the run's own while it is still being written
_OWN_FILE = "events.out.tfevents.0000000000.report"
_BOOKKEEPING_FILE = f"events.out.tfevents.0000000000{BOOKKEEPING_SUFFIX}"
_THINNED_FILE = "events.out.tfevents.0000000001.thinned"
#: what a thinned run keeps beside its evaluations
THINNED_TAGS = (
    "rollout/ep_rew_mean", "rollout/ep_len_mean", "train/approx_kl", "train/clip_fraction",
    "train/entropy_loss", "train/explained_variance", "train/policy_gradient_loss", "train/value_loss",
    "train/std",
)  # fmt: skip
#: of a mean curve: what ends its tags
_BOUNDS = ("return", "low", "high")


class Series(NamedTuple):
    """One scalar over training: increasing steps and their values."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]


def read_scalars(directory: Path, tags: Collection[str]) -> dict[str, Series]:
    """The wanted scalars of all event files in a directory.

    A file is read up to its first record that is not whole: of a run that is being written or was killed, or
    damaged. Where a step occurs twice the later record counts, as after a resume.
    """
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    points: dict[str, dict[int, float]] = defaultdict(dict)
    for path in sorted(directory.glob(EVENT_FILES)):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                # a scalar as SB3 and torch write it, or as TensorFlow 2 and tensorboard.summary do
                kind = value.WhichOneof("value")
                if value.tag not in tags or kind not in ("simple_value", "tensor"):
                    continue
                number = make_ndarray(value.tensor) if kind == "tensor" else np.array(value.simple_value)
                if number.size == 1 and number.dtype.kind in "fiu":
                    points[value.tag][event.step] = float(number.item())
    return {
        tag: Series(np.array(sorted(found)), np.array([found[step] for step in sorted(found)]))
        for tag, found in points.items()
    }


def write_events(path: Path, summaries: Iterable[tuple[int, Summary]]) -> None:
    """Write an event file with one event per ``(step, summary)``; no clock, so that git sees no change."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(file_version="brain.Event:2").SerializeToString())
        for step, summary in summaries:
            writer.write(Event(step=step, summary=summary).SerializeToString())


def scalar(tag: str, value: float) -> Summary:
    """A summary of one scalar, in the form that SB3's logger writes."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])


def build_logdir(cells: Sequence[Cell], out: Path, seeds_per_cell: int, thin: int = 0) -> None:
    """Build the log directory; an earlier one made by this function is replaced.

    :param seeds_per_cell: how many runs of each cell are linked; the means are over all completed runs
    :param thin: instead of links, write so many points of each of :data:`THINNED_TAGS`, for git
    """
    require("tensorboard", extra="tensorboard")
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).exists():
            raise FileExistsError(f"{out} is not empty and was not made by a report; choose another place")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("Made from a study's records; replaced by the next report.\n")
    for cell in cells:
        for run in cell.runs[:seeds_per_cell]:
            if run.status != "missing":
                _write_run(run, out / "runs", run_name(cell, run), thin)
    for label, own in grouped((cell for cell in cells if cell.n), lambda cell: cell.label).items():
        write_events(out / "means" / _safe(label) / _BOOKKEEPING_FILE, _mean_summaries(own))
    write_events(out / "means" / _BOOKKEEPING_FILE, [(0, _layout(cells))])


def run_name(cell: Cell, run: Run) -> str:
    """``Hopper-v5/m=10,eps=0.3/sppo/seed=0``."""
    return f"{_safe(cell.env)}/{_safe(cell.setting.slug)}/{_safe(cell.label)}/seed={run.seed}"


def _layout(cells: Iterable[Cell]) -> Summary:
    """Custom-scalars layout: a category per environment, a chart with bounds per setting."""
    from torch.utils.tensorboard.summary import custom_scalars

    categories = {}
    for env, own in grouped((cell for cell in cells if cell.n), lambda cell: cell.env).items():
        # the page draws the charts of a category from the last to the first
        settings = reversed(grouped(own, lambda cell: cell.setting))
        categories[env] = {f"{env}, {s.text}": ["Margin", _chart_tags(env, s)] for s in settings}
    return custom_scalars(categories)


def _chart_tags(env: str, setting: Setting) -> list[str]:
    """The tags of a cell's mean and bounds; a chart selects by tag, so they hold all but the algorithm."""
    return [f"{env}/{setting.slug}/{what}" for what in _BOUNDS]


def _hparams(run: Run) -> dict[str, bool | float | str]:
    """The numbers, texts and switches of a run's configuration, the parameters beside the rest."""
    flat = {**run.config, **run.parameters, "status": run.status}
    plain = {name: value for name, value in flat.items() if isinstance(value, bool | int | float | str)}
    return {name: float(value) if type(value) is int else value for name, value in plain.items()}


def _write_run(run: Run, root: Path, name: str, thin: int) -> None:
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    folder = root / name
    summaries = [(0, hparams_pb(_hparams(run), trial_id=name, start_time_secs=0))]
    points = zip(run.timesteps.tolist(), run.returns.tolist(), strict=True)
    summaries += [(int(step), scalar(RETURN_TAG, value)) for step, value in points]
    write_events(folder / _OWN_FILE, summaries)
    if run.path is not None and thin:
        write_events(folder / _THINNED_FILE, _thinned(run.path / TENSORBOARD, thin))
    elif run.path is not None:
        sources = {path.name: path.resolve() for path in (run.path / TENSORBOARD).rglob(EVENT_FILES)}
        for file, source in sources.items():
            (folder / file).symlink_to(os.path.relpath(source, folder.resolve()))


def _thinned(directory: Path, points: int) -> Iterator[tuple[int, Summary]]:
    """At most ``points`` points of each curve, evenly spaced, the last one among them."""
    for tag, (steps, values) in read_scalars(directory, THINNED_TAGS).items():
        for index in np.linspace(len(steps) - 1, 0, min(points, len(steps))).round().astype(int)[::-1]:
            yield int(steps[index]), scalar(tag, values[index])


def _mean_summaries(cells: Iterable[Cell]) -> Iterator[tuple[int, Summary]]:
    for cell in cells:
        steps, returns = cell.curves
        mean, low, high = mean_interval(returns)
        # a chart with bounds draws nothing without them: one run has its own value as both
        curves = (mean, low, high) if len(returns) > 1 else (mean, mean, mean)
        for tag, values in zip(_chart_tags(cell.env, cell.setting), curves, strict=True):
            for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                yield round(step), scalar(tag, value)


def _safe(name: str) -> str:
    """Without separators, which would add levels to TensorBoard's run names."""
    return re.sub(r"[\\/\s]+", "_", name)
