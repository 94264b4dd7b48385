"""TensorBoard event files: scalars out of them, summaries into them.

An event file is a sequence of records, each a length (8 bytes), its checksum (4), a serialised ``Event``
and its checksum (4). TensorBoard's own reader parses every record; here only those that contain a wanted
tag are, which makes reading hundreds of runs a matter of seconds.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

EVENT_FILES = "*tfevents*"
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
#: a scalar takes some hundred bytes; larger records are images or histograms
_LARGEST = 1 << 16


class Series(NamedTuple):
    """One scalar over training: increasing steps and their values."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]


def read_scalars(directory: Path, tags: Collection[str]) -> tuple[dict[str, Series], list[str]]:
    """The wanted scalars of all event files in a directory, and what was wrong with the files.

    A file that ends in the middle of a record (a run that is being written, or was killed) is read up to
    there; one with a wrong checksum likewise. Where a step occurs twice the later record counts, as after
    a resume.
    """
    points: dict[str, dict[int, float]] = defaultdict(dict)
    problems = []
    for path in sorted(directory.glob(EVENT_FILES)):
        try:
            for event in _wanted_events(path.read_bytes(), [tag.encode() for tag in tags]):
                for value in event.summary.value:
                    number = _number(value) if value.tag in tags else None
                    if number is not None:
                        points[value.tag][event.step] = number
        except (OSError, ValueError) as error:
            problems.append(f"{path.name}: {error}")
    ordered = {tag: sorted(found.items()) for tag, found in points.items()}
    series = {
        tag: Series(np.array([step for step, _ in found]), np.array([value for _, value in found]))
        for tag, found in ordered.items()
    }
    return series, problems


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


def _wanted_events(data: bytes, tags: list[bytes]) -> Iterator[Event]:
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import masked_crc32c

    at, size = 0, len(data)
    while at < size:
        start = at + _HEADER.size
        damaged = f"damaged at byte {at} of {size}, the rest is left out"
        length, checksum = _HEADER.unpack_from(data, at) if start <= size else (size, 0)
        if start <= size and masked_crc32c(data[at : at + 8]) != checksum:
            raise ValueError(damaged)
        end = start + length
        if end + _FOOTER.size > size:
            raise ValueError(f"ends in the middle of a record, {size - at} bytes left out")
        payload = data[start:end] if length <= _LARGEST else b""
        if any(tag in payload for tag in tags):
            if masked_crc32c(payload) != _FOOTER.unpack_from(data, end)[0]:
                raise ValueError(damaged)
            try:
                yield Event.FromString(payload)
            except DecodeError as error:
                raise ValueError(damaged) from error
        at = end + _FOOTER.size


def _number(value: Summary.Value) -> float | None:
    """A scalar as SB3 and torch write it, or as TensorFlow 2 and ``tensorboard.summary`` do."""
    from tensorboard.util.tensor_util import make_ndarray

    if value.HasField("simple_value"):
        return float(value.simple_value)
    content = make_ndarray(value.tensor) if value.HasField("tensor") else np.empty(0)
    return float(content.item()) if content.size == 1 and content.dtype.kind in "fiu" else None
