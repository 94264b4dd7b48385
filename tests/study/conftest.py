"""Shared by the tests of studies: a study file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

SHAPE = """
n_envs = 2
evaluations = 2
eval_episodes = 1
checkpoint_every = 1
[parameters]
n_steps = 32
batch_size = 32
n_epochs = 2
[algorithms.sppo]
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Callable[..., Path]:
    def write(environments: list[str], seeds: str = "0:2", steps: int = 1280) -> Path:
        names = json.dumps(
            [name if "-v1" in name else f"tests.study.study_environments:{name}-v0" for name in environments]
        )
        path = tmp_path / "study.toml"
        path.write_text(
            f'name = "test"\nenvironments = {names}\nseeds = "{seeds}"\ntotal_timesteps = {steps}\n{SHAPE}'
        )
        return path

    return write
