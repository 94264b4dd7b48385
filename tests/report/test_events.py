"""Event files are read as TensorBoard reads them, and broken ones as far as they are whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto

from sppo.report.tensorboard import read_scalars, scalar, write_events

TAG = "rollout/ep_rew_mean"


def write(path: Path, values: list[float], start: int = 0, step: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    events = []
    for number, value in enumerate(values):
        at = start + step * number
        events += [(at, scalar(TAG, value)), (at, scalar("train/loss", -value))]
    write_events(path, events)


def test_same_points_as_tensorboards_reader(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=300).tolist()
    write(tmp_path / "events.out.tfevents.1", values)
    theirs = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload().Scalars(TAG)
    ours = read_scalars(tmp_path, [TAG])[TAG]
    assert ours.steps.tolist() == [event.step for event in theirs]
    np.testing.assert_array_equal(ours.values, [event.value for event in theirs])


def test_only_the_wanted_scalar_is_returned(tmp_path: Path) -> None:
    write(tmp_path / "events.out.tfevents.1", [1.0])
    assert set(read_scalars(tmp_path, ["train/loss"])) == {"train/loss"}
    # a tag that contains the wanted one is another scalar
    assert read_scalars(tmp_path, ["rollout/ep_rew"]) == {}


def test_files_of_a_resumed_run_are_one_series(tmp_path: Path) -> None:
    """The second file repeats two steps of the first; the later record counts."""
    write(tmp_path / "events.out.tfevents.1", [0.0, 1.0, 2.0, 3.0])
    write(tmp_path / "events.out.tfevents.2", [20.0, 30.0, 40.0], start=200)
    series = read_scalars(tmp_path, [TAG])[TAG]
    assert series.steps.tolist() == [0, 100, 200, 300, 400]
    assert series.values.tolist() == [0, 1, 20, 30, 40]


@pytest.mark.parametrize("cut", [1, 5, 13, 20])
def test_truncated_file_is_read_up_to_its_last_whole_record(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.out.tfevents.1"
    write(path, [1.0, 2.0, 3.0])
    path.write_bytes(path.read_bytes()[:-cut])
    scalars = read_scalars(tmp_path, [TAG])
    assert scalars[TAG].values.tolist() == [1, 2, 3]


def test_wrong_checksum_ends_the_file(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    write(path, [1.0, 2.0, 3.0])
    data = bytearray(path.read_bytes())
    last = data.rindex(TAG.encode())
    data[last + len(TAG) + 2] ^= 0xFF
    path.write_bytes(bytes(data))
    scalars = read_scalars(tmp_path, [TAG])
    assert scalars[TAG].values.tolist() == [1, 2]


@pytest.mark.parametrize("content", [b"", b"no event file at all, but long enough for a header"])
def test_file_without_events(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(content)
    scalars = read_scalars(tmp_path, [TAG])
    assert scalars == {}


def test_scalars_written_as_tensors(tmp_path: Path) -> None:
    """As TensorFlow 2 and tensorboard.summary write them."""
    values = [
        TensorProto(dtype=1, float_val=[1.5]),
        TensorProto(dtype=1, tensor_content=np.float32(2.5).tobytes()),
        TensorProto(dtype=2, tensor_content=np.float64(3.5).tobytes()),
    ]
    summaries = [(i, Summary(value=[Summary.Value(tag=TAG, tensor=v)])) for i, v in enumerate(values)]
    write_events(tmp_path / "events.out.tfevents.1", summaries)
    assert read_scalars(tmp_path, [TAG])[TAG].values.tolist() == [1.5, 2.5, 3.5]
