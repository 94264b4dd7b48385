"""``python -m sppo``: what it says to somebody who does not know it yet."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import sppo
from sppo import cli


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture) -> None:
    assert cli.main([]) == 2
    error = capsys.readouterr().err
    for name, (_, line) in cli.COMMANDS.items():
        assert f"{name:<10} {line}" in error


def test_the_version(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"sppo {sppo.__version__}\n"


def test_the_command_that_is_installed_is_this_one() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    entry = EntryPoint(name="sppo", value=project["scripts"]["sppo"], group="console_scripts")
    assert entry.load() is cli.main


@pytest.mark.parametrize("room", ["records", "study", "report"])
def test_rooms_do_not_load_each_other(room: str) -> None:
    """`study` writes what `report` reads; neither knows the other."""
    modules = {
        "records": ["config", "published", "run_files", "runs", "studies", "subset"],
        "study": ["command", "training", "ray_executor", "tune_command"],
        "report": ["command", "compare"],
    }
    forbidden = {
        "records": ["sppo.study", "sppo.report", "torch"],
        "study": ["sppo.report"],
        "report": ["sppo.study"],
    }
    code = f"import sys, {', '.join(f'sppo.{room}.{name}' for name in modules[room])}\n"
    code += f"print(', '.join(name for name in {forbidden[room]} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "\n"
