"""Thousands of damaged files: bytes flipped, cut, doubled and swapped, at every layer of a file.

Flips of the outer file mostly meet a checksum. So the layers inside are damaged, too, and packed again
with fresh checksums: the JSON text, the pickles in it, the torch files and the pickles in those.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import random
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

from sppo import SPPO, load_vec_normalize
from sppo.loading import LoadError
from sppo.loading.budget import Budget
from sppo.loading.errors import NotRestorable, refused
from sppo.loading.inspection import report
from sppo.loading.pickletree import parse
from sppo.loading.rebuild import Rebuilder
from sppo.loading.tensors import read_tensors
from tests.loading.filecraft import FIXTURES, members, packed, with_weights_pickle, witnessed

MODEL = FIXTURES / "sb3-2.9.2-box-linear.zip"
OLD_MODEL = FIXTURES / "sb3-2.6.0-box-linear.zip"
STATISTICS = FIXTURES / "sb3-2.9.2-vecnormalize.pkl"


def damaged(raw: bytes, draw: random.Random) -> bytes:
    """One to four random changes."""
    data = bytearray(raw)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(len(data)) if data else 0
        kind = draw.randrange(6)
        if kind == 0 and data:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and data:
            data[at] = draw.randrange(256)
        elif kind == 2:
            del data[at : at + draw.choice((1, 2, 8, len(data)))]
        elif kind == 3:
            data[at:at] = data[at : at + draw.choice((1, 4, 64))]
        elif kind == 4:
            data[at:at] = bytes(draw.choice(b"\x93R\x81b\x85\x86t(])}h\x00\x940.Q\x82") for _ in range(3))
        elif len(data) > 8:
            other = draw.randrange(len(data) - 4)
            data[at : at + 4], data[other : other + 4] = data[other : other + 4], data[at : at + 4]
    return bytes(data)


def load(raw: bytes) -> None:
    """A file is restored, in part perhaps, or refused with a :class:`LoadError`; nothing else."""
    with warnings.catch_warnings(), contextlib.suppress(LoadError):
        warnings.simplefilter("ignore")
        SPPO.load(io.BytesIO(raw), device="cpu")
    with contextlib.suppress(LoadError):
        report(raw, "file")


def in_data(key: str) -> Callable[[random.Random], bytes]:
    parts = members(MODEL)
    data = json.loads(parts["data"])
    pickle = base64.b64decode(data[key][":serialized:"])

    def make(draw: random.Random) -> bytes:
        data[key][":serialized:"] = base64.b64encode(damaged(pickle, draw)).decode()
        return packed({**parts, "data": json.dumps(data).encode()})

    return make


LAYERS: dict[str, Callable[[random.Random], bytes]] = {
    "file": lambda draw: damaged(MODEL.read_bytes(), draw),
    "json": lambda draw: packed({**members(MODEL), "data": damaged(members(MODEL)["data"], draw)}),
    "torch-file": lambda draw: packed(
        {**members(MODEL), "policy.pth": damaged(members(MODEL)["policy.pth"], draw)}
    ),
    "torch-pickle": lambda draw: with_weights_pickle(MODEL, "policy.pth", lambda raw: damaged(raw, draw)),
    "optimizer-pickle": lambda draw: with_weights_pickle(
        MODEL, "policy.optimizer.pth", lambda raw: damaged(raw, draw)
    ),
    "space": in_data("observation_space"),
    "policy-kwargs": in_data("policy_kwargs"),
    "schedule": in_data("clip_range"),
}


def fuzz_models(layer: str, count: int) -> None:
    draw = random.Random(layer)
    make = LAYERS[layer]
    load(MODEL.read_bytes())
    for number in range(count):
        raw = make(draw)
        with witnessed() as seen:
            load(raw)
        assert not seen, (layer, number)


@pytest.mark.parametrize("layer", LAYERS)
def test_damaged_models(layer: str) -> None:
    fuzz_models(layer, 25)


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
def test_many_damaged_models(layer: str) -> None:
    fuzz_models(layer, 1000)


def fuzz_pickles(count: int) -> int:
    """Every pickle of an old and a new model; returns how many were still restored."""
    draw, restored = random.Random(0), 0
    originals = [
        base64.b64decode(item[":serialized:"])
        for path in (MODEL, OLD_MODEL)
        for item in json.loads(members(path)["data"]).values()
        if isinstance(item, dict) and ":serialized:" in item
    ]
    with witnessed() as seen:
        for _ in range(count):
            for raw in originals:
                with contextlib.suppress(ValueError, NotRestorable):
                    Rebuilder(parse(damaged(raw, draw), Budget(len(raw)))).root()
                    restored += 1
    assert not seen
    return restored


def test_damaged_pickles() -> None:
    assert fuzz_pickles(100) > 0, "the damage is always found at once: the builders were never reached"


@pytest.mark.slow
def test_many_damaged_pickles() -> None:
    fuzz_pickles(3000)


def test_damaged_tensors() -> None:
    draw, raw = random.Random(1), members(MODEL)["policy.optimizer.pth"]
    read_tensors(raw, Budget(len(raw)))
    for _ in range(200):
        with contextlib.suppress(LoadError), refused("file"):
            read_tensors(damaged(raw, draw), Budget(len(raw)))


def fuzz_statistics(count: int) -> None:
    class Room(gym.Env):
        observation_space = spaces.Box(-1.0, np.array([1.0, np.inf, 2.0], np.float32), (3,), np.float32)
        action_space = spaces.Box(-1, 1, (2,), np.float32)

    venv: Any = DummyVecEnv([Room])
    draw, raw = random.Random(2), STATISTICS.read_bytes()
    with witnessed() as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(count):
            changed = damaged(raw, draw)
            with contextlib.suppress(LoadError):
                load_vec_normalize(io.BytesIO(changed), venv)
            with contextlib.suppress(LoadError):
                report(changed, "file")
    assert not seen


def test_damaged_statistics() -> None:
    fuzz_statistics(300)


@pytest.mark.slow
def test_many_damaged_statistics() -> None:
    fuzz_statistics(20_000)


def test_cut_short() -> None:
    """A download that stopped, at any point."""
    raw = MODEL.read_bytes()
    for length in range(0, len(raw), 211):
        with pytest.raises(LoadError, match="BytesIO"):
            SPPO.load(io.BytesIO(raw[:length]))
