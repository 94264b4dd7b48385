"""Files that would run code, take all memory or lie about themselves: no code runs, and errors name them."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv
from torch.fx import GraphModule

from sppo import SPPO, load_vec_normalize
from sppo.loading import LoadError, budget
from sppo.loading.inspection import report
from tests.loading.filecraft import FIXTURES, members, packed, with_entry, with_weights_pickle, witnessed
from tests.loading.payloads import PROTO, bombs, name, payloads, text

MODEL = FIXTURES / "sb3-2.9.2-discrete.zip"
STATISTICS = FIXTURES / "sb3-2.9.2-vecnormalize.pkl"
NAMES = sorted(payloads("/dev/null"))
ENTRIES = [
    "learning_rate",
    "policy_kwargs",
    "observation_space",
    "policy_class",
    "ep_info_buffer",
    "whatever",
]


def load(raw: bytes, **options: Any) -> Any:
    """Load, without the warning about what was left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SPPO.load(io.BytesIO(raw), device="cpu", **options)


def assert_harmless(raw: bytes, marker: Path) -> None:
    """Load and inspect: a model, or an error that says what is wrong, and nothing else happened."""
    with witnessed() as seen:
        with contextlib.suppress(LoadError):
            assert load(raw).predict(np.zeros(3, np.float32))[0] in range(3)
        with contextlib.suppress(LoadError):
            report(raw, "file")
    assert not marker.exists()
    assert not seen


@pytest.fixture(scope="module", autouse=True)
def _everything_imported() -> None:
    """Libraries import parts of themselves when they are first used: not the files' doing."""
    load(MODEL.read_bytes())
    report(MODEL.read_bytes(), "file")


@pytest.mark.parametrize("payload", NAMES)
@pytest.mark.parametrize("entry", ENTRIES)
def test_entries(payload: str, entry: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    assert_harmless(with_entry(MODEL, entry, payloads(str(marker))[payload]), marker)


def test_the_payloads_are_real(tmp_path: Path) -> None:
    """Otherwise the tests above would prove nothing: a trusting loader runs them."""
    for kind in (
        "reduce",
        "reduce-old-protocol",
        "nested",
        "exec",
        "popped",
        "instance",
        "object",
        "function-called",
    ):
        marker = tmp_path / kind
        pickle.loads(payloads(str(marker))[kind])
        assert marker.exists(), kind
    marker = tmp_path / "trusted"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SPPO.load(io.BytesIO(with_entry(MODEL, "whatever", payloads(str(marker))["reduce"])), trust=True)
    assert marker.exists()


@pytest.mark.parametrize("payload", NAMES)
@pytest.mark.parametrize("member", ["policy.pth", "policy.optimizer.pth", "pytorch_variables.pth"])
def test_weights(payload: str, member: str, tmp_path: Path) -> None:
    """In place of the pickle inside a torch file, and in place of the whole file."""
    marker = tmp_path / "marker"
    hostile = payloads(str(marker))[payload]
    assert_harmless(with_weights_pickle(MODEL, member, lambda _: hostile), marker)
    assert_harmless(packed({**members(MODEL), member: hostile}), marker)


def test_weights_in_other_members(tmp_path: Path) -> None:
    hostile = payloads(str(tmp_path / "marker"))["reduce"]
    for extra in ("data", "_stable_baselines3_version", "system_info.txt", "extra.pth", "notes"):
        assert_harmless(packed({**members(MODEL), extra: hostile}), tmp_path / "marker")


@pytest.mark.parametrize("payload", NAMES)
def test_vec_normalize(payload: str, tmp_path: Path) -> None:
    """As the whole file, and as an attribute of an otherwise genuine one."""
    marker = tmp_path / "marker"
    hostile = payloads(str(marker))[payload]
    genuine = STATISTICS.read_bytes()
    body = hostile[2:-1] if hostile[:1] == b"\x80" else hostile[:-1]
    inside = genuine[:-2] + b"}" + text("gamma") + body + b"sb."
    venv = DummyVecEnv([lambda: gym.make("CartPole-v1")])
    for raw in (hostile, inside):
        with witnessed() as seen, pytest.raises(LoadError, match="BytesIO"):
            load_vec_normalize(io.BytesIO(raw), venv)
        assert not seen
        assert not marker.exists()


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("env", "evil_module:Evil-v0"),
        ("_setup_model", {"a": 1}),
        ("set_parameters", "x"),
        ("__class__", "x"),
        ("predict", 3),
        ("logger", "x"),
        ("policy_aliases", {"MlpPolicy": "x"}),
        ("policy", "x"),
        ("a-b", 1),
        ("policy_class", "MlpPolicy"),
        ("n_steps", "many"),
        ("n_steps", -(10**30)),
        ("verbose", [1]),
        ("observation_space", {"n": 3}),
        ("learning_rate", "0.1"),
        ("policy_kwargs", {"activation_fn": "os.system"}),
        ("policy_kwargs", {"net_arch": "os.system"}),
        ("policy_kwargs", [1]),
    ],
)
def test_plain_values_of_the_wrong_kind(entry: str, value: Any, tmp_path: Path) -> None:
    """JSON alone can name modules, replace methods and break the construction."""
    raw = with_entry(MODEL, entry, value=value)
    assert_harmless(raw, tmp_path / "marker")
    try:
        model = load(raw)
    except LoadError:
        return
    assert type(model).predict is SPPO.predict
    assert entry not in vars(model) or vars(model)[entry] != value


def test_methods_are_not_replaced_by_classes(tmp_path: Path) -> None:
    """A class that may be named must not land where it would be called."""
    cls = PROTO + name("torch.nn.modules.linear", "Linear") + b"."
    for entry in ("_setup_model", "learning_rate", "clip_range", "eta", "seed", "whatever", "ent_coef"):
        assert_harmless(with_entry(MODEL, entry, cls), tmp_path / "marker")
        assert not isinstance(vars(load(with_entry(MODEL, entry, cls))).get(entry), type)


def test_user_classes_must_have_the_right_kind(tmp_path: Path) -> None:
    """An imported class is admitted only where its kind is asked for."""
    extractor = (
        PROTO + b"}" + text("features_extractor_class") + name("torch.nn.modules.linear", "Linear") + b"s."
    )
    with pytest.raises(LoadError, match="no subclass of BaseFeaturesExtractor"):
        load(with_entry(MODEL, "policy_kwargs", extractor))
    for module, attribute in (
        (__name__, "Path"),
        (__name__, "GraphModule"),
        ("subprocess", "Popen"),
        ("pickle", "Unpickler"),
    ):
        kwargs = PROTO + b"}" + text("features_extractor_class") + name(module, attribute) + b"s."
        with pytest.raises(LoadError):
            load(with_entry(MODEL, "policy_kwargs", kwargs))


@pytest.mark.parametrize("bomb", sorted(bombs()))
def test_bombs_in_entries(bomb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if bomb == "billion-laughs":
        # It uses up all steps, three times here; test_limits.py has it with as many as there are.
        monkeypatch.setattr(budget, "MAX_STEPS", budget.MAX_STEPS // 10)
    assert_harmless(with_entry(MODEL, "whatever", bombs()[bomb]), tmp_path / "marker")
    with pytest.raises(LoadError):
        load_vec_normalize(io.BytesIO(bombs()[bomb]), DummyVecEnv([lambda: gym.make("CartPole-v1")]))


def zip_bombs() -> dict[str, bytes]:
    genuine = members(MODEL)
    deflated = zipfile.ZIP_DEFLATED
    lying = bytearray(packed(genuine))
    at = lying.rindex(b"PK\x01\x02")
    lying[at + 24 : at + 28] = struct.pack("<I", 2**31)
    return {
        "zeros-in-data": packed({**genuine, "data": b" " * 10**7}, deflated),
        "zeros-in-weights": packed({**genuine, "policy.pth": bytes(10**7)}, deflated),
        "many-members": packed({**genuine, **{f"m{i}": b"" for i in range(20_000)}}),
        "declared-size": bytes(lying),
        "many-values": packed({**genuine, "data": b'{"a":[' + b"[]," * 1_000_000 + b"1]}"}, deflated),
        "deep-json": packed({**genuine, "data": b'{"a":' + b"[" * 200_000}),
        "long-number": packed({**genuine, "data": b'{"a":' + b"1" * 1_000_000 + b"}"}, deflated),
        "lzma": packed(genuine, zipfile.ZIP_LZMA),
    }


def test_zip_bombs() -> None:
    for kind, raw in zip_bombs().items():
        with witnessed() as seen, pytest.raises(LoadError, match="BytesIO"):
            load(raw)
        assert not seen, kind


@pytest.mark.parametrize("member", ["../evil.pth", "/etc/evil.pth", "a/../../b", "..\\evil", "C:/x", "x\ny"])
def test_member_names(member: str) -> None:
    with pytest.raises(LoadError, match="name"):
        load(packed({**members(MODEL), member: b"x"}))


@pytest.mark.parametrize(
    "member", ["policy.__class__.pth", "__init__.pth", "policy/optimizer.pth", "a b.pth", "9.pth"]
)
def test_weights_for_odd_attributes(member: str) -> None:
    with pytest.raises(LoadError, match="unexpected name"):
        load(packed({**members(MODEL), member: members(MODEL)["policy.pth"]}))


def test_aliases_of_closed_packages() -> None:
    """A program may have imported a dangerous class under a name of its own."""
    assert GraphModule.__module__.startswith("torch.")
    kwargs = PROTO + b"}" + text("activation_fn") + name(__name__, "GraphModule") + b"s."
    with pytest.raises(LoadError, match="another name of torch"):
        load(with_entry(MODEL, "policy_kwargs", kwargs))


def test_messages_do_not_rewrite_the_terminal() -> None:
    evil = "\x1b[2J\x1b[H"
    with pytest.warns(UserWarning, match="left out") as caught:
        SPPO.load(io.BytesIO(with_entry(MODEL, f"x{evil}", PROTO + name(f"os{evil}", "system") + b".")))
    assert "\x1b" not in str(caught[0].message)
    with pytest.raises(LoadError) as refused:
        load(with_entry(MODEL, "policy_class", PROTO + name(f"os{evil}", "system") + b"."))
    assert "\x1b" not in str(refused.value)


def test_duplicate_members() -> None:
    """Two members of one name: a checker and a loader could each see another one."""
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w") as archive:
        warnings.simplefilter("ignore")
        for _ in range(2):
            for member, content in members(MODEL).items():
                archive.writestr(member, content)
    with pytest.raises(LoadError, match="two members"):
        load(stream.getvalue())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # A tensor that starts outside its numbers, is larger than them, or repeats them for ever.
        (b"K\x00K\x04K\x03\x86", b"K\x7fK\x04K\x03\x86"),
        (b"K\x04K\x03\x86q", b"K\xffK\xff\x86q"),
        (b"FloatStorage", b"LongStorages"),
        (b"_rebuild_tensor_v2", b"_rebuild_tensor_v9"),
    ],
)
def test_tensors_that_lie(old: bytes, new: bytes) -> None:
    def change(raw: bytes) -> bytes:
        assert old in raw
        return raw.replace(old, new)

    with pytest.raises(LoadError, match=r"policy\.pth"):
        load(with_weights_pickle(MODEL, "policy.pth", change))


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("policy_kwargs", {"net_arch": [10**6, 10**6]}),
        ("policy_kwargs", {"net_arch": [2] * 100_000}),
        ("policy_kwargs", {"net_arch": [4], "features_extractor_kwargs": {"x": 1}}),
        ("n_steps", 10**12),
        ("n_envs", 10**12),
    ],
)
def test_networks_and_buffers_larger_than_the_file(entry: str, value: Any) -> None:
    with pytest.raises(LoadError, match="BytesIO"):
        load(with_entry(MODEL, entry, value=value))


def test_spaces_larger_than_the_file() -> None:
    box = name("gymnasium.spaces.box", "Box") + b")\x81}("
    dtype = name("numpy", "dtype") + text("f4") + b"\x89\x88\x87R"
    bound = (
        name("numpy._core.numeric", "_frombuffer")
        + b"(C\x04"
        + bytes(4)
        + dtype
        + b"K\x01\x85"
        + text("C")
        + b"tR"
    )
    huge = b"J\xff\xff\xff\x7f\x85"
    raw = (
        PROTO
        + box
        + text("low")
        + bound
        + text("high")
        + bound
        + text("_shape")
        + huge
        + text("dtype")
        + dtype
        + b"ub."
    )
    with pytest.raises(LoadError, match="another shape"):
        load(with_entry(MODEL, "observation_space", raw))
    coins = (
        PROTO
        + name("gymnasium.spaces.multi_binary", "MultiBinary")
        + b")\x81}"
        + text("n")
        + b"J\xff\xff\xff\x7fsb."
    )
    with pytest.raises(LoadError, match="more than"):
        load(with_entry(MODEL, "observation_space", coins))
    choices = (
        PROTO
        + name("gymnasium.spaces.discrete", "Discrete")
        + b")\x81}"
        + text("n")
        + b"J\xff\xff\xff\x7fsb."
    )
    with pytest.raises(LoadError):
        load(with_entry(MODEL, "observation_space", choices))


def test_errors_name_the_file_and_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "stranger.zip"
    for raw, reason in (
        (b"", "no zip archive"),
        (b"hello", "no zip archive"),
        (MODEL.read_bytes()[:-400], "the zip archive is cut short"),
        (MODEL.read_bytes()[:9000], "the zip archive is cut short"),
        (b"#!" + MODEL.read_bytes(), "2 bytes before the archive belong to no member"),
        (packed({"data": b"[]"}), "no JSON object"),
        (packed({"data": b"{}"}), "no policy_class"),
        (packed({k: v for k, v in members(MODEL).items() if k != "data"}), "no member 'data'"),
        (packed({k: v for k, v in members(MODEL).items() if k != "policy.pth"}), "Names of parameters"),
    ):
        path.write_bytes(raw)
        with pytest.raises(LoadError, match=reason) as caught:
            SPPO.load(path)
        assert str(path) in str(caught.value)


def test_inspect_shows_calls_whose_results_are_thrown_away() -> None:
    lines, complete = report(with_entry(MODEL, "seed", payloads("marker")["popped"]), "file")
    assert not complete
    assert "calls os.system('touch marker')" in "\n".join(lines)


def test_long_names_and_shared_arguments_are_not_copied() -> None:
    """Each of many calls would copy a name of a megabyte, or a list of 100,000 arguments."""
    long = b"X" + struct.pack("<I", 10**6) + b"a" * 10**6 + b"q\x00"
    named = PROTO + long + b"0(" + b"h\x00h\x00\x93)R" * 10_000 + b"l."
    arguments = b"(" + b"N" * 100_000 + b"tq\x000" + name("os", "system") + b"q\x010("
    shared = PROTO + arguments + b"h\x01h\x00R" * 50_000 + b"l."
    for pickle_, reason in ((named, "1000 characters"), (shared, "os.system")):
        lines, complete = report(with_entry(MODEL, "seed", pickle_), "file")
        assert not complete
        assert reason in "\n".join(lines)


def test_the_terminal_is_not_rewritten() -> None:
    raw = packed(
        {**members(MODEL), "_stable_baselines3_version": b"\x1b[2J2.9", "system_info.txt": b"\x1b]0;x\x07"}
    )
    lines, _ = report(with_entry_in(raw, "\x1b[31m", "\x1b[2J\x1b[H"), "file")
    assert "\x1b" not in "\n".join(lines)


def with_entry_in(raw: bytes, key: str, value: Any) -> bytes:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        parts = {member: archive.read(member) for member in archive.namelist()}
    parts["data"] = json.dumps({**json.loads(parts["data"]), key: value}).encode()
    return packed(parts)
