"""A request to stop is noticed by whoever shares the storage, and by nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sppo.study.execution import Options
from sppo.study.ray_executor import _task
from tests.study.trained_runs import assert_same_run, complete, small_config


def test_a_task_on_another_machine_stops_with_a_checkpoint_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Ray task itself, without Ray: the file is what tells it to stop, here in the fifth iteration."""
    monkeypatch.setenv("STOP_FILE", str(tmp_path / "stop"))
    config = replace(small_config("tests.study.study_environments:AsksToStop-v0"), n_envs=1)
    assert complete(config, tmp_path / "whole").status == "completed"
    (tmp_path / "stop").unlink()
    outcome, _ = _task(config, str(tmp_path / "stopped"), Options(100), str(tmp_path / "stop"))
    assert (outcome.status, outcome.message) == ("interrupted", "after 160 of 1280 steps")
    assert list((tmp_path / "stopped" / "checkpoints").glob("160_steps.checkpoint"))
    (tmp_path / "stop").unlink()
    outcome, _ = _task(config, str(tmp_path / "stopped"), Options(100), str(tmp_path / "stop"))
    assert outcome.status == "completed"
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
