"""A request to stop is noticed by whoever shares the storage, and by nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sppo.study.execution import Options
from sppo.study.ray_executor import _task
from sppo.study.stopping import StopFile
from tests.study.trained_runs import assert_same_run, complete, small_config


def test_it_is_seen_once_it_is_there_and_the_disk_is_asked_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks = [100.0], 0
    exists = Path.exists

    def counted(path: Path) -> bool:
        nonlocal looks
        looks += 1
        return exists(path)

    monkeypatch.setattr("sppo.study.stopping.time.monotonic", lambda: now[0])
    monkeypatch.setattr(Path, "exists", counted)
    stop, other = StopFile(tmp_path / "stop-1"), StopFile(tmp_path / "stop-2")
    assert not any(stop.requested() for _ in range(1000))
    assert looks == 1
    StopFile(tmp_path / "stop-1").request()
    now[0] += StopFile.EVERY
    assert stop.requested()
    assert not other.requested()
    (tmp_path / "stop-1").unlink()
    now[0] += StopFile.EVERY
    assert stop.requested(), "once asked to stop, always asked to stop"


def test_a_task_on_another_machine_stops_with_a_checkpoint_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Ray task itself, without Ray: the file is what tells it to stop, here in the sixth iteration."""
    config, stop, looks = small_config(), tmp_path / "stop", 0
    exists = Path.exists

    def appearing(path: Path) -> bool:
        nonlocal looks
        looks += path == stop
        if path == stop and looks == 6:
            StopFile(stop).request()
        return exists(path)

    monkeypatch.setattr(StopFile, "EVERY", 0.0)
    monkeypatch.setattr(Path, "exists", appearing)
    assert complete(config, tmp_path / "whole").status == "completed"
    outcome, _ = _task(config.as_dict(), str(tmp_path / "stopped"), Options(100), str(stop))
    assert (outcome.status, outcome.message) == ("interrupted", "after 320 of 1280 steps")
    assert list((tmp_path / "stopped" / "checkpoints").glob("320_steps.checkpoint"))
    stop.unlink()
    outcome, _ = _task(config.as_dict(), str(tmp_path / "stopped"), Options(100), str(stop))
    assert outcome.status == "completed"
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
