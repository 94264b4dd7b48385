"""What is recorded as a training's conditions tells apart what makes its numbers differ."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from sppo.records.conditions import conditions, processor_name

CORE = "processor\t: {core}\ncpu family\t: {family}\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n"


def told(monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path, **_: text)
        return processor_name()


def test_generations_under_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As virtual machines have them: their BLAS picks different kernels, and training parts."""
    of = [
        told(monkeypatch, "\n".join(CORE.format(core=core, family=family) for core in (0, 1)))
        for family in (25, 26)
    ]
    assert of == ["AMD EPYC (family 25, model 2)", "AMD EPYC (family 26, model 2)"]


def test_what_is_not_told_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """ARM's file has no name; other systems have no file."""
    usual = platform.processor() or platform.machine()
    assert told(monkeypatch, "processor\t: 0\nBogoMIPS\t: 50.00\n") == usual

    def missing(path: Path, **_: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert processor_name() == usual


def test_what_the_engine_computes_with_is_among_them() -> None:
    assert {"python", "processor", "torch", "numpy", "scipy", "numba"} <= conditions().keys()
