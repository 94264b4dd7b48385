"""The live view counts right and estimates the rest from this session's own speed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from trained_runs import small_config

from sppo.study import display as module
from sppo.study.display import Display, TerminalDisplay
from sppo.study.execution import Outcome
from sppo.study.overview import duration, predicted_seconds, table

RUNS = [small_config(seed=seed) for seed in range(4)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def set_progress(directory: Path, index: int, timesteps: int) -> None:
    path = directory / RUNS[index].directory_name
    path.mkdir(exist_ok=True)
    (path / "progress.json").write_text(json.dumps({"timesteps": timesteps}))


def test_counts_and_remaining_time(tmp_path: Path, clock: list[float], capsys: pytest.CaptureFixture) -> None:
    display = Display(RUNS, ["completed", "pending", "interrupted", "failed"], (), tmp_path)
    assert display.summary() == "1/4 done, 0 running, 1 failed, ETA unknown"
    # Half of the interrupted run was done before: it must not count as this session's speed.
    set_progress(tmp_path, 2, 640)
    display.started(RUNS[1])
    display.started(RUNS[2])
    clock[0] += 10.0
    set_progress(tmp_path, 1, 640)
    set_progress(tmp_path, 2, 960)
    # In ten seconds 1/2 + 1/4 of a run; 1/2 + 1/4 are left.
    assert display.eta() == pytest.approx(10.0)
    display.ended(RUNS[1], Outcome("completed"))
    display.ended(RUNS[2], Outcome("failed", "broken"))
    assert display.summary() == "2/4 done, 0 running, 2 failed, ETA 0 s"
    assert "failed: CartPole-v1 sppo seed=2: broken" in capsys.readouterr().out


def test_silence_is_broken_now_and_then(
    tmp_path: Path, clock: list[float], capsys: pytest.CaptureFixture
) -> None:
    display = Display(RUNS, ["pending"] * 4, (), tmp_path)
    display.tick()
    assert capsys.readouterr().out == ""
    clock[0] += display.QUIET + 1.0
    display.tick()
    assert "0/4 done" in capsys.readouterr().out


def test_on_a_terminal_failures_stay_visible(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with TerminalDisplay(RUNS, ["pending"] * 4, (), tmp_path) as display:
        display.started(RUNS[0])
        set_progress(tmp_path, 0, 320)
        display.tick()
        assert display.rows() == [["CartPole-v1 sppo seed=0", "25 %"]]
        display.ended(RUNS[0], Outcome("failed", "broken"))
    output = capsys.readouterr().out
    assert "failed: CartPole-v1 sppo seed=0: broken" in output
    assert "0/4 done, 0 running, 1 failed" in output


def test_without_a_terminal_lines_are_plain(tmp_path: Path) -> None:
    assert type(module.make_display(RUNS, ["pending"] * 4, (), tmp_path)) is Display


def test_tables_and_durations() -> None:
    text = table(RUNS, ["completed", "failed", "pending", "pending"])
    assert text.splitlines()[-1].split() == ["total", "4", "1", "-", "-", "1", "2"]
    assert [duration(seconds) for seconds in (5, 600, 7500, 200_000)] == [
        "5 s",
        "10 min",
        "2 h 05 min",
        "2 d 7 h",
    ]


def test_more_work_is_predicted_to_take_longer() -> None:
    assert predicted_seconds(small_config(n_epochs=100)) > predicted_seconds(small_config(n_epochs=10))
