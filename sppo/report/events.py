"""TensorBoard event files: scalars out of them, with TensorBoard's own reader, and summaries into them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

EVENT_FILES = "*tfevents*"
#: the scalar that a report's log directory has a run's evaluations under
RETURN_TAG = "evaluation/mean_return"
#: marks a directory as made by a report, so that it may be replaced
MARKER = ".made-by-sppo-report"
#: ends the names of event files that belong to no run: layout, means
BOOKKEEPING_SUFFIX = ".bookkeeping"


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


def write_events(path: Path, summaries: Iterable[tuple[int, Summary]], wall_time: float) -> None:
    """Write an event file with one event per ``(step, summary)``."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=wall_time, file_version="brain.Event:2").SerializeToString())
        for step, summary in summaries:
            writer.write(Event(wall_time=wall_time, step=step, summary=summary).SerializeToString())


def scalar(tag: str, value: float) -> Summary:
    """A summary of one scalar, in the form that SB3's logger writes."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])
