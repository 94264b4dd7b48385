"""``compare`` works on any TensorBoard directory of SB3 runs and says what it leaves out."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from sppo import cli
from sppo.report.cells import build_cells
from sppo.report.compare import read_runs, split_name
from sppo.report.tensorboard import scalar, write_events

ROLLOUT, EVALUATION = "rollout/ep_rew_mean", "eval/mean_reward"


def write_run(path: Path, final: float, tag: str = ROLLOUT, last_step: int = 10_000) -> None:
    path.mkdir(parents=True, exist_ok=True)
    steps = np.linspace(0, last_step, 11, dtype=int).tolist()
    events = [(step, scalar(tag, final * step / last_step)) for step in steps]
    number = len(list(path.iterdir()))
    write_events(path / f"events.out.tfevents.{number}.host", events)


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    for number, (ppo, sppo) in enumerate([(100.0, 150.0), (120.0, 170.0), (110.0, 115.0)], start=1):
        write_run(tmp_path / f"PPO_{number}", ppo)
        write_run(tmp_path / f"SPPO_{number}", sppo)
    return tmp_path


def rows_of(logdir: Path) -> list[dict[str, str]]:
    with (logdir / "compare.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("name", "task", "algorithm"),
    [
        ("PPO_1", "", "PPO"),
        ("SPPO_12", "", "SPPO"),
        ("Hopper-v5/PPO_2", "Hopper-v5", "PPO"),
        ("Hopper-v5/m=10,eps=0.3/sppo/seed=0", "Hopper-v5/m=10,eps=0.3", "sppo"),
        ("logs/sppo-one-sided_3", "logs", "sppo-one-sided"),
        ("ppo/0", "", "ppo"),
        ("ppo/seed_7", "", "ppo"),
        ("RecurrentPPO_1", "", "RecurrentPPO"),
        ("my-run", "", "my-run"),
    ],
)
def test_names_give_task_and_algorithm(name: str, task: str, algorithm: str) -> None:
    assert split_name(name) == (task, algorithm)


def test_table_has_means_differences_and_probability(logdir: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["compare", str(logdir), "--baseline", "ppo"]) == 0
    printed = capsys.readouterr().out
    ppo, sppo = rows_of(logdir)
    assert (ppo["algorithm"], sppo["algorithm"], ppo["n"], ppo["tag"]) == ("PPO", "SPPO", "3", ROLLOUT)
    finals = np.array([150.0, 170.0, 115.0])
    interval = scipy.stats.t.interval(0.95, 2, loc=finals.mean(), scale=scipy.stats.sem(finals))
    assert [float(sppo[name]) for name in ("mean", "mean_low", "mean_high")] == pytest.approx(
        [finals.mean(), *interval], rel=1e-6
    )
    # of nine pairs only 115 against 120 is lost
    assert float(sppo["probability"]) == pytest.approx(8 / 9)
    assert float(sppo["difference"]) == pytest.approx(35)
    assert ppo["difference"] == ppo["probability"] == ""
    assert "SPPO" in printed
    assert "145.0" in printed
    assert "compare" in ppo["command"]
    assert (logdir / "compare.png").read_bytes().startswith(b"\x89PNG")
    page = (logdir / "compare.html").read_text()
    assert "<svg" in page
    assert 'name="viewport"' in page


def test_evaluations_are_preferred_if_all_runs_have_them(logdir: Path) -> None:
    for path in logdir.iterdir():
        write_run(path, 7.0, EVALUATION)
    assert cli.main(["compare", str(logdir)]) == 0
    assert {row["tag"] for row in rows_of(logdir)} == {EVALUATION}


def test_one_scalar_for_all_runs(logdir: Path) -> None:
    """A run with evaluations among runs without does not mix two kinds of reward in one table."""
    write_run(logdir / "SPPO_1", 999.0, EVALUATION)
    assert cli.main(["compare", str(logdir)]) == 0
    assert [(row["tag"], row["n"]) for row in rows_of(logdir)] == [(ROLLOUT, "3"), (ROLLOUT, "3")]


def test_single_runs_have_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_run(tmp_path / "PPO_1", 1.0)
    write_run(tmp_path / "SPPO_1", 2.0)
    assert cli.main(["compare", str(tmp_path)]) == 0
    assert "one run of PPO, SPPO: no interval" in capsys.readouterr().out
    assert rows_of(tmp_path)[1]["difference_low"] == ""


def test_runs_of_different_length_are_pointed_out(logdir: Path, capsys: pytest.CaptureFixture) -> None:
    write_run(logdir / "PPO_4", 50.0, last_step=5_000)
    cli.main(["compare", str(logdir), "--no-files"])
    assert "--step 5000" in capsys.readouterr().out
    cli.main(["compare", str(logdir), "--step", "5000"])
    ppo = rows_of(logdir)[0]
    assert float(ppo["mean"]) == pytest.approx((50 + 60 + 55 + 50) / 4)
    cli.main(["compare", str(logdir), "--step", "6000"])
    assert (rows_of(logdir)[0]["runs"], rows_of(logdir)[0]["n"]) == ("4", "3")


def test_run_without_values_and_truncated_file_are_pointed_out(
    logdir: Path, capsys: pytest.CaptureFixture
) -> None:
    write_run(logdir / "SPPO_4", 1.0, tag="train/loss")
    path = next((logdir / "PPO_1").iterdir())
    path.write_bytes(path.read_bytes()[:-3])
    assert cli.main(["compare", str(logdir)]) == 0
    printed = capsys.readouterr().out
    assert "3 of 4 (1 missing)" in printed
    assert "runs end between step 9000 and 10000" in printed


@pytest.mark.parametrize("flags", [["--baseline", "nope"], ["--step", "999999"]])
def test_what_is_not_there_is_an_error_and_nothing_is_written(
    logdir: Path, capsys: pytest.CaptureFixture, flags: list[str]
) -> None:
    (logdir / "compare.csv").write_text("mine")
    before = sorted(logdir.rglob("*"))
    assert cli.main(["compare", str(logdir), *flags]) != 0
    printed = capsys.readouterr()
    choices = {"--baseline": "PPO, SPPO", "--step": "between step 10000 and 10000"}[flags[0]]
    assert choices in printed.err
    assert not printed.out
    assert sorted(logdir.rglob("*")) == before
    assert (logdir / "compare.csv").read_text() == "mine"


def test_task_without_the_baseline_is_pointed_out(logdir: Path, capsys: pytest.CaptureFixture) -> None:
    write_run(logdir / "Ant-v5" / "SPPO_1", 3.0)
    assert cli.main(["compare", str(logdir), "--no-files"]) == 0
    assert "Ant-v5: no run of the baseline 'ppo' (found: SPPO)" in capsys.readouterr().out


def test_curves_of_runs_that_logged_at_different_steps_are_interpolated(logdir: Path) -> None:
    """The mean is over the steps that all runs have; final values are each run's own."""
    write_run(logdir / "PPO_4", 40.0, last_step=8_000)
    _, runs = read_runs(logdir)
    (cell,) = [cell for cell in build_cells(runs) if cell.label == "PPO"]
    steps, values = cell.curves
    assert (steps[0], steps[-1]) == (0, 8_000)
    np.testing.assert_allclose(values[:, -1], [80, 96, 88, 40], rtol=1e-6)
    assert sorted(cell.finals) == pytest.approx([40, 100, 110, 120])


def test_tasks_are_compared_one_by_one(tmp_path: Path) -> None:
    for task, scale in (("Hopper-v5", 1.0), ("Ant-v5", 10.0)):
        for number in (1, 2):
            write_run(tmp_path / task / f"PPO_{number}", scale * number)
            write_run(tmp_path / task / f"SPPO_{number}", scale * (number + 5))
    assert cli.main(["compare", str(tmp_path)]) == 0
    found = {(row["task"], row["algorithm"]): row["difference"] for row in rows_of(tmp_path)}
    assert float(found["Hopper-v5", "SPPO"]) == pytest.approx(5)
    assert float(found["Ant-v5", "SPPO"]) == pytest.approx(50)
    page = (tmp_path / "compare.html").read_text()
    assert page.index("<caption>Hopper-v5") < page.index("<caption>Ant-v5")


def test_a_study_is_left_to_the_report(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Its directories are named by hashes, and an unfinished run is no result."""
    write_run(tmp_path / "0123456789abcdef" / "tensorboard", 1.0)
    assert cli.main(["compare", str(tmp_path)]) == 2
    assert "python -m sppo report" in capsys.readouterr().err


def test_a_last_value_that_is_no_number_leaves_a_gap(logdir: Path) -> None:
    write_run(logdir / "SPPO_4", float("nan"))
    assert cli.main(["compare", str(logdir)]) == 0
    ppo, sppo = rows_of(logdir)
    assert float(ppo["mean"]) == pytest.approx(110)
    assert (sppo["n"], sppo["mean"], sppo["iqm"], sppo["probability"]) == ("4", "", "", "")


@pytest.mark.parametrize("case", ["no directory", "no events", "no such tag"])
def test_errors_tell_what_to_change(tmp_path: Path, capsys: pytest.CaptureFixture, case: str) -> None:
    arguments = {
        "no directory": [str(tmp_path / "nowhere")],
        "no events": [str(tmp_path)],
        "no such tag": [str(tmp_path), "--tag", "foo/bar"],
    }[case]
    if case == "no such tag":
        write_run(tmp_path / "PPO_1", 1.0)
    assert cli.main(["compare", *arguments]) == 2
    message = {"no directory": "nowhere", "no events": "no TensorBoard event files", "no such tag": "foo/bar"}
    assert message[case] in capsys.readouterr().err
