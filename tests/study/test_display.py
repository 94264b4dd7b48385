"""What the runner says counts right and estimates the rest from this session's own speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sppo.study.execution import Outcome
from sppo.study.overview import duration, makespan, predicted_seconds, table
from sppo.study.runner import Display
from tests.study.trained_runs import small_config

RUNS = [small_config(seed=seed) for seed in range(4)]


def set_progress(directory: Path, index: int, timesteps: int) -> None:
    path = directory / RUNS[index].directory_name
    path.mkdir(exist_ok=True)
    (path / "progress.json").write_text(json.dumps({"timesteps": timesteps}))


def test_counts_and_remaining_time(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    now = [100.0]
    display = Display(["completed", "failed"], RUNS[1:3], (), tmp_path, lambda: now[0])
    assert display.summary() == "1/4 done, 0 running, 1 failed, ETA unknown"
    # Half of the interrupted run was done before: it must not count as this session's speed.
    set_progress(tmp_path, 2, 640)
    display.started(RUNS[1])
    display.started(RUNS[2])
    now[0] += 10.0
    set_progress(tmp_path, 1, 640)
    set_progress(tmp_path, 2, 960)
    # In ten seconds 1/2 + 1/4 of a run; 1/2 + 1/4 are left.
    assert display.eta() == pytest.approx(10.0)
    display.ended(RUNS[1], Outcome("completed"))
    display.ended(RUNS[2], Outcome("failed", "broken"))
    assert display.summary() == "2/4 done, 0 running, 2 failed, ETA 0 s"
    assert "failed: CartPole-v1 sppo seed=2: broken" in capsys.readouterr().out


def test_silence_is_broken_now_and_then(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    now = [100.0]
    display = Display([], RUNS, (), tmp_path, lambda: now[0])
    display.tick()
    assert capsys.readouterr().out == ""
    now[0] += display.QUIET + 1.0
    display.tick()
    assert "0/4 done" in capsys.readouterr().out


def test_several_runs_at_a_time() -> None:
    assert makespan([], 2) == 0
    assert makespan([10.0], 2) == 10.0, "one run cannot be shared by two cores"
    assert makespan([10.0, 10.0, 4.0], 2) == 12.0
    assert makespan([3.0] * 8, 2) == 12.0


def test_tables_and_durations() -> None:
    text = table(list(zip(RUNS, ["completed", "failed", "pending", "pending"], strict=True)))
    assert text.splitlines()[-1].split() == ["total", "4", "1", "-", "-", "1", "2"]
    assert [duration(seconds) for seconds in (5, 600, 7500, 200_000)] == [
        "5 s",
        "10 min",
        "2 h 05 min",
        "2 d 7 h",
    ]


def test_more_work_is_predicted_to_take_longer() -> None:
    assert predicted_seconds(small_config(n_epochs=100)) > predicted_seconds(small_config(n_epochs=10))


@pytest.mark.parametrize(
    "family",
    [
        {"use_softmax": use_softmax, "eta": eta, "clip_mode": clip_mode}
        for use_softmax in (False, True)
        for eta in (None, 1.0)
        for clip_mode in ("two-sided", "one-sided", *(() if use_softmax or eta else ("symmetric",)))
    ],
)
def test_the_engine_that_auto_chooses_is_the_one_predicted(family: dict[str, Any]) -> None:
    """Prediction must not load torch, so it knows the algorithm's rule a second time."""
    from sppo import SPPO

    def seconds(engine: str) -> float:
        return predicted_seconds(small_config(engine=engine, **family))

    model = SPPO("MlpPolicy", "CartPole-v1", engine="auto", n_steps=32, batch_size=32, n_epochs=1, **family)
    assert seconds("auto") == seconds(model.learn(32).engine_in_use)
    assert seconds("fast") < seconds("reference")
