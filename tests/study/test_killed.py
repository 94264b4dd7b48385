"""Killed at any moment and run again, a run ends exactly as one that was never killed."""

from __future__ import annotations

import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sppo.records.parameters import algorithm_settings, defaults
from tests.study.trained_runs import ENGINES, KillAtCall, assert_same_run, complete, small_config, start


def kill_and_complete(config: Any, directory: Path, moments: random.Random, kills: int) -> None:
    """Kill attempts after random times, then let one finish.

    However fast the machine: an attempt that ends before the first kill has tried nothing, so it is
    forgotten and the next ones are killed earlier.
    """
    killed, latest = 0, 1.2
    while not (directory / "result.json").exists():
        process = start(config, directory)
        if killed < kills:
            process.join(moments.uniform(0.0, latest))
            process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        killed += process.exitcode != 0
        if process.exitcode == 0 and not killed:
            shutil.rmtree(directory)
            latest /= 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("env", ["CartPole-v1", "Hopper-v5"])
def test_killed_at_random_moments(env: str, engine: str | None, tmp_path: Path) -> None:
    config = small_config(env, engine=engine)
    assert complete(config, tmp_path / "whole").status == "completed"
    seed = random.SystemRandom().randrange(10**6)
    print(f"moments drawn with seed {seed}")
    kill_and_complete(config, tmp_path / "killed", random.Random(seed), kills=4)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("env", ["Hopper-v5", "HalfCheetah-v5", "Ant-v5", "CartPole-v1"])
def test_killed_many_times(env: str, engine: str | None, tmp_path: Path) -> None:
    config = small_config(env, seed=7, steps=6400, engine=engine, use_softmax=False)
    assert complete(config, tmp_path / "whole", every=100).status == "completed"
    seed = random.SystemRandom().randrange(10**6)
    print(f"moments drawn with seed {seed}")
    kill_and_complete(config, tmp_path / "killed", random.Random(seed), kills=12)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    directory = tmp_path_factory.mktemp("whole")
    assert complete(small_config(), directory).status == "completed"
    return directory


@pytest.mark.parametrize("moment", ["open", "replace", "fsync"])
def test_killed_in_the_middle_of_writing_a_checkpoint(moment: str, whole: Path, tmp_path: Path) -> None:
    """With half of it written, with all of it written aside, and while it is flushed to disk."""
    config = small_config()
    process = start(config, tmp_path / "killed", sabotage=KillAtCall(moment, 6))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    left = sorted((tmp_path / "killed" / "checkpoints").iterdir())
    assert any(path.name.endswith(".aside") for path in left), left
    assert complete(config, tmp_path / "killed").status == "completed"
    assert_same_run(whole, tmp_path / "killed")


def test_trpo_too(tmp_path: Path) -> None:
    parameters = {**defaults(algorithm_settings("trpo")), "n_steps": 32, "batch_size": 32}
    config = small_config("Hopper-v5", steps=640)
    config = replace(config, cls="trpo", algorithm="trpo", parameters=parameters)
    assert complete(config, tmp_path / "whole").status == "completed"
    process = start(config, tmp_path / "killed", sabotage=KillAtCall("open", 5))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert complete(config, tmp_path / "killed").status == "completed"
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
