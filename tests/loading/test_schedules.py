"""Schedules that are functions: restored by value or from the program's own code, never from the file's."""

from __future__ import annotations

import math
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import PPO

from sppo import SPPO
from sppo.loading.inspection import report
from sppo.loading.schedules import StoredSchedule, stored

SMALL: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "device": "cpu", "seed": 1}
CALLED: list[float] = []


def linear_schedule(initial_value: float) -> Callable[[float], float]:
    """As Stable-Baselines3's documentation has it."""

    def func(progress_remaining: float) -> float:
        return progress_remaining * initial_value

    return func


def clipped_line(start: float, end: float) -> Callable[[float], float]:
    return lambda progress: max(end, start * progress)


def cosine(progress: float) -> float:
    return 1e-3 * (1 + math.cos(math.pi * (1 - progress)))


def above_zero(progress: float) -> float:
    return 1 + progress**2


def noisy(progress: float) -> float:
    CALLED.append(progress)
    return 1e-3


def two_arguments(progress: float, other: float) -> float:
    return progress * other


def test_documented_closures_survive(tmp_path: Path) -> None:
    options = {"learning_rate": linear_schedule(3e-4), "clip_range": linear_schedule(0.2)}
    options["clip_range_vf"], options["eta"] = (lambda left: 0.1 + 0.3 * left), (lambda left: 2)
    model = SPPO("MlpPolicy", "CartPole-v1", **SMALL, **options).learn(16)
    model.save(tmp_path / "model")
    loaded = SPPO.load(tmp_path / "model", env=model.get_env(), device="cpu")
    draw = random.Random(0)
    for progress in [1.0, 0.0, *(draw.random() for _ in range(1000))]:
        for key in ("lr_schedule", "clip_range", "clip_range_vf", "eta"):
            assert getattr(loaded, key)(progress) == getattr(model, key)(progress), key
    loaded.learn(16)

    # Saved again by us it is the same; upstream's loader and a trusting one find the function itself.
    loaded.save(tmp_path / "again")
    SPPO.load(tmp_path / "again", env=model.get_env(), device="cpu").learn(16)
    assert PPO.load(tmp_path / "model").clip_range(0.3) == model.clip_range(0.3)
    trusted = SPPO.load(tmp_path / "model", trust=True)
    assert isinstance(trusted.learning_rate, types.FunctionType)


@pytest.mark.parametrize(
    ("function", "form"),
    [
        (lambda p: 3e-4, "constant"),
        (lambda p: p * 3e-4, "linear"),
        (lambda p: 0.3 + 0.6 * p, "linear"),
        (lambda p: 3e-4 - (1 - p) * 3e-4, "falling"),
        (lambda p: p * 0.3 + (1 - p) * 0.1, "mixed"),
        (lambda p: p**2, None),
        (clipped_line(0.5, 0.1), None),
        (cosine, None),
        (lambda p: 1.0 if p > 0.0005 else 0.999, None),
        (lambda p: math.nan, None),
        (lambda p: 1 / (p - 0.5), None),
    ],
)
def test_only_what_is_exactly_reproduced_is_stored(function: Any, form: str | None) -> None:
    found = stored(function)
    assert (found and found["form"]) == form
    if found:
        draw = random.Random(1)
        restored = StoredSchedule(**found)
        assert all(restored(p) == function(p) for p in (draw.random() for _ in range(10_000)))


def test_functions_with_effects_are_not_sampled() -> None:
    count = 0

    def counting(progress: float) -> float:
        nonlocal count
        count += 1
        return 1e-3

    assert stored(noisy) is None
    assert stored(counting) is None
    assert stored(print) is None
    assert (CALLED, count) == ([], 0)


@pytest.fixture
def main_module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A program's ``__main__``, whose functions cloudpickle writes with their code."""
    module = types.ModuleType("__main__")
    source = (
        "import math\n"
        "def cosine(progress):\n"
        "    return 1e-3 * (1 + math.cos(math.pi * (1 - progress)))\n"
        "def power(value, exponent):\n"
        "    def func(progress):\n"
        "        return value * progress ** exponent\n"
        "    return func\n"
    )
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def test_functions_of_the_program(tmp_path: Path, main_module: types.ModuleType) -> None:
    """A plain function and a closure in ``__main__``, and one of an imported module."""
    options = {
        "learning_rate": main_module.cosine,
        "clip_range": main_module.power(0.2, 2),
        "eta": above_zero,
    }
    model = SPPO("MlpPolicy", "CartPole-v1", **SMALL, **options)
    model.save(tmp_path / "model")
    loaded = SPPO.load(tmp_path / "model", env=model.get_env(), device="cpu")
    assert loaded.learning_rate is main_module.cosine
    assert loaded.eta.value_schedule is above_zero
    assert loaded.clip_range(0.3) == model.clip_range(0.3)
    assert loaded.clip_range.value_schedule.__code__ in main_module.power.__code__.co_consts
    loaded.learn(16)


def test_a_program_without_the_function_leaves_it_out(tmp_path: Path, main_module: types.ModuleType) -> None:
    """Another program's closure, or one that has changed its variables, is not taken for the file's."""
    power = main_module.power
    options = {"learning_rate": main_module.cosine, "clip_range": power(0.2, 2)}
    model = SPPO("MlpPolicy", "CartPole-v1", **SMALL, **options)
    model.save(tmp_path / "model")
    del main_module.cosine  # type: ignore[attr-defined]
    exec(
        "def power(value, other):\n def func(progress): return value * other\n return func\n",
        vars(main_module),
    )
    with pytest.warns(UserWarning, match="comes with its code, which is not run"):
        loaded = SPPO.load(tmp_path / "model", env=model.get_env(), device="cpu")
    with pytest.raises(ValueError, match=r'custom_objects=\{"learning_rate": \.\.\., "clip_range": \.\.\.\}'):
        loaded.learn(16)
    lines, complete = report((tmp_path / "model.zip").read_bytes(), "model.zip")
    assert not complete
    assert "__main__.power.<locals>.func, with its code" in "\n".join(lines)


@pytest.mark.parametrize("name", ["two_arguments", "linear_schedule.func", "CALLED.append", "os.system"])
def test_only_functions_of_one_argument_and_only_as_schedules(name: str, tmp_path: Path) -> None:
    from tests.loading.filecraft import FIXTURES, with_entry
    from tests.loading.payloads import PROTO
    from tests.loading.payloads import name as named

    module, _, last = name.rpartition(".")
    found = named("os", last) if module == "os" else named(__name__, name)
    raw = with_entry(FIXTURES / "sb3-2.9.2-discrete.zip", "learning_rate", PROTO + found + b".")
    (tmp_path / "model.zip").write_bytes(raw)
    with pytest.warns(UserWarning, match="learning_rate"):
        loaded = SPPO.load(tmp_path / "model")
    assert not isinstance(loaded.learning_rate, types.FunctionType)
    raw = with_entry(
        FIXTURES / "sb3-2.9.2-discrete.zip", "target_kl", PROTO + named(__name__, "cosine") + b"."
    )
    (tmp_path / "model.zip").write_bytes(raw)
    with pytest.warns(UserWarning, match="target_kl: it holds an unexpected function"):
        SPPO.load(tmp_path / "model")
