"""What a file may cost: the memory and the work that SECURITY.md promises, with the attacks on them."""

from __future__ import annotations

import base64
import io
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from sppo import SPPO, MaskableSPPO
from sppo.loading import LoadError
from sppo.loading.budget import FREE_BYTES, MAX_STEPS, SIZE_FACTOR
from sppo.loading.inspection import report
from tests.loading.filecraft import FIXTURES, members, packed, with_entry
from tests.loading.payloads import PROTO, name, text

MODEL = FIXTURES / "sb3-2.9.2-discrete.zip"
MASKABLE = FIXTURES / "sb3-2.9.2-maskable.zip"
MIB = 2**20


def serialized(pickle: bytes) -> dict[str, str]:
    return {":type:": "harmless", ":serialized:": base64.b64encode(pickle).decode()}


def deflated(parts: dict[str, bytes]) -> bytes:
    return packed(parts, zipfile.ZIP_DEFLATED)


def torch_file(values: Any) -> bytes:
    stream = io.BytesIO()
    th.save(values, stream)
    return stream.getvalue()


def inner_parts(raw: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return {member: archive.read(member) for member in archive.namelist()}


def data_with(**entries: Any) -> bytes:
    return json.dumps({**json.loads(members(MODEL)["data"]), **entries}).encode()


def array(shape: tuple[int, ...], code: str) -> bytes:
    """The instructions that push an array of zeros."""
    size = int(np.prod(shape)) * np.dtype(code).itemsize
    dtype = name("numpy", "dtype") + text(code) + b"\x89\x88\x87R"
    lengths = b"(" + b"".join(b"J" + struct.pack("<i", length) for length in shape) + b"t"
    contents = b"B" + struct.pack("<I", size) + bytes(size)
    return name("numpy._core.numeric", "_frombuffer") + b"(" + contents + dtype + lengths + text("C") + b"tR"


def box(shape: tuple[int, ...], code: str, bound: bytes) -> bytes:
    """The instructions that push a Box with the same array as both bounds."""
    dtype = name("numpy", "dtype") + text(code) + b"\x89\x88\x87R"
    lengths = b"(" + b"".join(b"J" + struct.pack("<i", length) for length in shape) + b"t"
    parts = ((b"low", bound), (b"high", bound), (b"_shape", lengths), (b"dtype", dtype))
    state = b"".join(text(key.decode()) + value for key, value in parts)
    return name("gymnasium.spaces.box", "Box") + b")\x81}(" + state + b"ub"


def doubly_deflated() -> bytes:
    """10 torch files of zeros, deflated inside and outside."""
    inner = deflated(inner_parts(torch_file({"x": th.zeros(64 * MIB // 4)})))
    return deflated({**members(MODEL), **{f"part{i}.pth": inner for i in range(10)}})


def boxes_that_share() -> bytes:
    shape = (2 * MIB,)
    start = PROTO + array(shape, "i1") + b"q\x000"
    parts = b"".join(text(f"k{i}") + box(shape, "i1", b"h\x00") for i in range(400))
    space = (
        start + name("gymnasium.spaces.dict", "Dict") + b")\x81}" + text("spaces") + b"}(" + parts + b"usb."
    )
    return deflated({**members(MODEL), "data": data_with(observation_space=serialized(space))})


def shared_texts(count: int = 1000, length: int = 9 * MIB) -> bytes:
    """A list of one long text, many times: the instructions that push it."""
    long = b"X" + struct.pack("<I", length) + b"a" * length + b"q\x000"
    return long + b"](" + b"h\x00" * count + b"e"


def dtype_of_texts() -> bytes:
    pickle = PROTO + name("numpy", "dtype") + shared_texts() + b"\x85R."
    return deflated({**members(MODEL), "data": data_with(seed=serialized(pickle))})


def list_that_is_called() -> bytes:
    pickle = PROTO + shared_texts() + b")R."
    return deflated({**members(MODEL), "data": data_with(seed=serialized(pickle))})


def huge_left_out() -> bytes:
    pickle = PROTO + b"}" + text("learning_rate") + shared_texts() + b"s."
    return deflated({**members(MODEL), "data": data_with(_left_out=serialized(pickle))})


def text_in_inspect() -> bytes:
    pickle = PROTO + shared_texts() + b"."
    return deflated({**members(MODEL), "data": data_with(tensorboard_log="x", seed=serialized(pickle))})


def optimizer_views() -> bytes:
    state = th.load(io.BytesIO(members(MODEL)["policy.optimizer.pth"]), weights_only=True)
    numbers = th.zeros(10 * MIB, dtype=th.uint8)
    views = {f"v{i}": numbers.view(-1) for i in range(250)}
    state["state"][0] = {**state["state"].get(0, {}), **views}
    inner = deflated(inner_parts(torch_file(state)))
    return deflated({**members(MODEL), "policy.optimizer.pth": inner})


def large_image() -> bytes:
    shape = (1, 6600, 6600)
    pickle = PROTO + array(shape, "u1") + b"q\x000" + box(shape, "u1", b"h\x00") + b"."
    policy = PROTO + name("stable_baselines3.common.policies", "ActorCriticCnnPolicy") + b"."
    return deflated(
        {
            **members(MODEL),
            "data": data_with(observation_space=serialized(pickle), policy_class=serialized(policy)),
        }
    )


def masks() -> bytes:
    """Action masks are arrays of ones, which take their memory at once."""
    parts = members(MASKABLE)
    data = {**json.loads(parts["data"]), "n_steps": 2**28}
    return deflated({**parts, "data": json.dumps(data).encode()})


def values_in_json() -> bytes:
    return deflated({**members(MODEL), "data": b'{"a":[' + b"[]," * 5_000_000 + b"1]}"})


ATTACKS = {
    "doubly-deflated": doubly_deflated,
    "boxes-that-share": boxes_that_share,
    "dtype-of-texts": dtype_of_texts,
    "list-that-is-called": list_that_is_called,
    "huge-left-out": huge_left_out,
    "text-in-inspect": text_in_inspect,
    "optimizer-views": optimizer_views,
    "large-image": large_image,
    "masks": masks,
    "values-in-json": values_in_json,
}

#: Forks for every file, so that each peak is the file's own.
_MEASURE = """
import os, pathlib, resource, sys, warnings
from sppo import SPPO, MaskableSPPO
from sppo.loading import LoadError
from sppo.loading.inspection import report
warnings.simplefilter("ignore")
directory = pathlib.Path(sys.argv[1])
SPPO.load(sys.argv[2], device="cpu")
report(pathlib.Path(sys.argv[2]).read_bytes(), "file")
def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
for path in sorted(directory.glob("*.zip")):
    for action in ("load", "inspect"):
        child = os.fork()
        if not child:
            outcome, before = "loaded", peak()
            try:
                cls = MaskableSPPO if path.stem == "masks" else SPPO
                cls.load(path, device="cpu") if action == "load" else report(path.read_bytes(), str(path))
            except LoadError as error:
                outcome = "refused" if str(path) in str(error) else "unnamed"
            except BaseException as error:
                outcome = type(error).__name__
            print(path.stem, action, outcome, peak() - before, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
"""


def test_memory_is_bounded_by_the_size_of_the_file(tmp_path: Path) -> None:
    """Each attack, loaded and inspected: refused, or read within 32 times its size and 512 MiB."""
    promised = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    assert f"{SIZE_FACTOR} times the size of the file plus\n  {FREE_BYTES // MIB} MiB" in promised
    assert f"{MAX_STEPS:,}".replace(",", " ") in promised
    for kind, make in ATTACKS.items():
        (tmp_path / f"{kind}.zip").write_bytes(make())
    run = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(tmp_path), str(MODEL)],
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    outcomes = [line.split() for line in run.stdout.splitlines()]
    assert len(outcomes) == 2 * len(ATTACKS), run.stderr
    for kind, action, outcome, peak in outcomes:
        size = (tmp_path / f"{kind}.zip").stat().st_size
        assert outcome in ("loaded", "refused"), (kind, action, outcome)
        assert int(peak) <= SIZE_FACTOR * size + FREE_BYTES, (kind, action, int(peak) / MIB)
        if kind in ("doubly-deflated", "boxes-that-share", "optimizer-views", "large-image", "masks"):
            assert action == "inspect" or outcome == "refused", (kind, action)


def calls_made(raw: bytes) -> int:
    """How many Python functions an inspection calls."""
    count = 0

    def tally(*_: Any) -> None:
        nonlocal count
        count += 1

    sys.setprofile(tally)
    try:
        report(raw, "file")
    finally:
        sys.setprofile(None)
    return count


def functions(count: int) -> bytes:
    """A pickle that makes that many functions with their code."""
    make = name("cloudpickle.cloudpickle", "_make_function")
    return PROTO + b"](" + b"".join(make + b"N" + text(f"f{i}") + b"\x86R" for i in range(count)) + b"e."


def test_inspection_is_linear_in_the_calls() -> None:
    few, many = (calls_made(with_entry(MODEL, "seed", functions(count))) for count in (200, 2000))
    assert many < 15 * few
    assert "function f7" in "\n".join(report(with_entry(MODEL, "seed", functions(20)), "file")[0])


@pytest.mark.parametrize("end", [b"", b"."])
def test_one_budget_of_work_for_all_pickles(end: bytes) -> None:
    """Unfinished pickles count as well; what one entry may have, 200 may not."""
    pickle = PROTO + b"N0" * (MAX_STEPS // 100) + b"N" + end
    data = data_with(**{f"extra{i}": serialized(pickle) for i in range(200)})
    with pytest.raises(LoadError, match="steps"):
        report(packed({**members(MODEL), "data": data}), "file")


def test_shared_parts_count_each_time() -> None:
    """30 lists, each of ten times the one before."""
    laughs = PROTO + b"]q\x00" + b"".join(b"0(" + b"h\x00" * 10 + b"lq\x00" for _ in range(30)) + b"."
    with pytest.raises(LoadError, match="steps"):
        SPPO.load(io.BytesIO(with_entry(MODEL, "ep_info_buffer", laughs)))


def test_texts_that_are_shared_count_each_time() -> None:
    """Upstream writes out both policies' arguments where they differ."""
    pickle = PROTO + b"}" + text("net_arch") + shared_texts(1000, 10**6) + b"s."
    raw = deflated({**members(MODEL), "data": data_with(policy_kwargs=serialized(pickle))})
    with pytest.raises(LoadError, match="more memory than"):
        SPPO.load(io.BytesIO(raw), policy_kwargs={"net_arch": [4]})


def test_spaces_that_are_shared_count_each_time() -> None:
    """Upstream writes out both spaces where they differ."""
    shape = (5, 5, 5, 6, 9)
    start = PROTO + box(shape, "f4", array(shape, "f4") + b"q\x00") + b"q\x010"
    parts = b"".join(text(f"k{i}") + b"h\x01" for i in range(5000))
    space = (
        start + name("gymnasium.spaces.dict", "Dict") + b")\x81}" + text("spaces") + b"}(" + parts + b"usb."
    )
    raw = deflated({**members(MODEL), "data": data_with(observation_space=serialized(space))})
    with pytest.raises(LoadError, match=r"more memory than|steps"):
        SPPO.load(io.BytesIO(raw), env=gym.make("CartPole-v1"))


def test_honest_rollouts_of_two_million_samples(tmp_path: Path) -> None:
    """Only recurrent models keep LSTM states."""
    SPPO("MlpPolicy", "CartPole-v1", n_steps=4, batch_size=4, n_epochs=1, device="cpu").save(
        tmp_path / "model"
    )
    raw = with_entry(tmp_path / "model.zip", "n_steps", value=2048)
    (tmp_path / "model.zip").write_bytes(raw)
    raw = with_entry(tmp_path / "model.zip", "n_envs", value=1024)
    assert SPPO.load(io.BytesIO(raw), device="cpu").rollout_buffer.buffer_size == 2048


def test_honest_images(tmp_path: Path) -> None:
    class Camera(gym.Env):
        observation_space = spaces.Box(0, 255, (96, 96, 3), np.uint8)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros((96, 96, 3), np.uint8), {}

        def step(self, action: Any) -> Any:
            return np.zeros((96, 96, 3), np.uint8), 0.0, True, False, {}

    venv = make_vec_env(Camera, 1)
    model = SPPO("CnnPolicy", venv, n_steps=4, batch_size=4, n_epochs=1, device="cpu").learn(4)
    model.save(tmp_path / "model")
    SPPO.load(tmp_path / "model", env=venv, device="cpu").learn(4)


def test_honest_networks_of_many_layers(tmp_path: Path) -> None:
    """Four hundred layers with an optimizer's state for each."""
    small: dict[str, Any] = {"n_steps": 4, "batch_size": 4, "n_epochs": 1, "device": "cpu"}
    model = SPPO("MlpPolicy", "CartPole-v1", **small, policy_kwargs={"net_arch": [4] * 200}).learn(4)
    model.save(tmp_path / "model")
    SPPO.load(tmp_path / "model", device="cpu")


def test_honest_masks() -> None:
    MaskableSPPO.load(io.BytesIO(with_entry(MASKABLE, "n_steps", value=2048)), device="cpu")


@pytest.mark.parametrize("depth", [600, 20_000])
@pytest.mark.parametrize("kind", ["tuples", "calls", "lists", "number"])
def test_inspect_shows_no_traceback(kind: str, depth: int, tmp_path: Path) -> None:
    """Deep and odd values: a report or a reason, from the command as from the function."""
    from sppo.cli import main

    system = name("os", "system")
    pickle = {
        "tuples": PROTO + b")" + b"\x85" * depth + b".",
        "calls": PROTO + system + b")R" * depth + b".",
        "lists": PROTO + b"]" * depth + b"a" * (depth - 1) + b".",
        "number": PROTO + b"\x8b" + struct.pack("<i", depth) + b"\x7f" * depth + b".",
    }[kind]
    (tmp_path / "file.pkl").write_bytes(pickle)
    assert main(["inspect", str(tmp_path / "file.pkl")]) == 1
    (tmp_path / "file.zip").write_bytes(with_entry(MODEL, "seed", pickle))
    assert main(["inspect", str(tmp_path / "file.zip")]) == 1


def test_inspect_tells_why_a_file_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sppo.cli import main

    assert main(["inspect", str(tmp_path / "nothere.zip")]) == 1
    printed = capsys.readouterr().out
    assert "nothere.zip: it cannot be read: No such file or directory" in printed
    assert "Errno" not in printed
    (tmp_path / "torn.zip").write_bytes(MODEL.read_bytes()[:9000])
    assert main(["inspect", str(tmp_path / "torn.zip")]) == 1
    assert "cut short" in capsys.readouterr().out


def polyglots() -> dict[str, bytes]:
    """A pickle that runs code, with a genuine model behind it, and what hides that."""
    runs = b"cos\nsystem\n(S'echo evil'\ntR."
    genuine = MODEL.read_bytes()
    moved = io.BytesIO(runs)
    with zipfile.ZipFile(moved, "a") as archive:
        for member, content in members(MODEL).items():
            archive.writestr(member, content)
    shifted = bytearray(moved.getvalue())
    # A directory that says its first member begins at the file's first byte.
    entry = shifted.index(b"PK\x01\x02")
    struct.pack_into("<I", shifted, entry + 42, 0)
    hidden = io.BytesIO()
    with zipfile.ZipFile(hidden, "w") as archive:
        for member, content in members(MODEL).items():
            archive.writestr(member, content)
            hidden.write(runs)
            archive.start_dir = hidden.tell()
    return {
        "in-front": runs + genuine,
        "in-front-adjusted": moved.getvalue(),
        "first-member-elsewhere": bytes(shifted),
        "between-members": hidden.getvalue(),
    }


@pytest.mark.parametrize("kind", sorted(polyglots()))
def test_polyglots_are_named_and_refused(kind: str) -> None:
    raw = polyglots()[kind]
    assert zipfile.is_zipfile(io.BytesIO(raw))
    reason = "belong to no member|does not lie where its directory says"
    with pytest.raises(LoadError, match=reason):
        report(raw, "file")
    with pytest.raises(LoadError, match=reason):
        SPPO.load(io.BytesIO(raw))
