"""Small trainings, and what has to be equal after two of them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import torch as th

CLOCKS = {"time/fps"}
SETTINGS: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "seed": 3}


def points(directory: Path) -> list[tuple[str, int, bytes]]:
    from tensorboard.compat.proto.event_pb2 import Event

    found = []
    for path in directory.iterdir():
        data, offset = path.read_bytes(), 0
        while offset < len(data):
            (length,) = struct.unpack_from("<Q", data, offset)
            event = Event.FromString(data[offset + 12 : offset + 12 + length])
            offset += length + 16
            found += [
                (value.tag, event.step, value.SerializeToString())
                for value in event.summary.value
                if value.tag not in CLOCKS
            ]
    return sorted(found)


def assert_same_weights(first: Any, second: Any) -> None:
    ours, theirs = first.policy.state_dict(), second.policy.state_dict()
    assert [name for name in ours if not th.equal(ours[name], theirs[name])] == []
    ours, theirs = first.policy.optimizer.state_dict()["state"], second.policy.optimizer.state_dict()["state"]
    for index, state in ours.items():
        assert all(th.equal(th.as_tensor(state[key]), th.as_tensor(theirs[index][key])) for key in state)
