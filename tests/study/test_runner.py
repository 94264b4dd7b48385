"""The runner as people use it: from the command line, interrupted, killed, started twice."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from sppo.records.published import write_runs
from sppo.records.runs import read_run
from sppo.study.command import main, write_study
from sppo.study.definition import read_plan
from sppo.study.execution import Options, execute
from sppo.study.lock import is_locked
from tests.study.runner_processes import check_against_this_process, finish, start, wait_until


def test_one_bad_environment_does_not_stop_the_others(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    """Exceptions and crashes are recorded; the rest is done; nothing is retried without being asked."""
    file, out = study_file(["Raises", "Crashes", "Walk"], seeds="0:1"), tmp_path / "out"
    code, output = finish(start("study", "run", file, "--out", out, "--jobs", 2))
    assert code == 1, output
    assert (
        "failed: tests.study.study_environments:Raises-v0 sppo seed=0: RuntimeError: the simulator exploded"
        in output
    )
    assert "SIGSEGV" in output
    assert "2 runs failed" in output
    assert sorted(
        path.name for path in out.glob("*/*.json") if path.name in ("result.json", "failure.json")
    ) == [
        "failure.json",
        "failure.json",
        "result.json",
    ]
    assert (out / "study.toml").read_text() == file.read_text()
    assert len(json.loads((out / ".study" / "plan.json").read_text())) == 3
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*.json")}
    code, output = finish(start("study", "run", file, "--out", out))
    assert code == 1
    assert "2 runs failed earlier and were left alone" in output
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*.json")} == before
    code, output = finish(start("study", "status", file, "--out", out))
    assert "the simulator exploded" in output
    code, output = finish(start("study", "status", file, "--out", out, "--json"))
    assert json.loads(output) == {"completed": 1, "failed": 2}


def test_ctrl_c_then_kill_then_two_runners(study_file: Callable[..., Path], tmp_path: Path) -> None:
    """The life of a study: stopped politely, killed with its workers unaware, finished by two runners."""
    file, out = study_file(["CartPole-v1", "Slow"], seeds="0:2", steps=640), tmp_path / "out"
    study = read_plan(file)
    first = start("study", "run", file, "--out", out, "--jobs", 2)
    wait_until(lambda: any(out.glob("*/checkpoints/*.checkpoint")))
    # To the whole group, as a terminal does.
    os.killpg(first.pid, signal.SIGINT)
    code, output = finish(first)
    assert code == 130, output
    assert "stopping after the present iterations" in output
    assert "run the same command again" in output
    assert not list(out.glob("*/failure.json"))

    second = start("study", "run", file, "--out", out, "--jobs", 2)
    wait_until(lambda: any(is_locked(path) for path in out.iterdir() if path.name != ".study"))
    second.kill()
    finish(second)
    wait_until(lambda: not any(is_locked(path) for path in out.iterdir() if path.name != ".study"))

    runners = [start("study", "run", file, "--out", out, "--jobs", 1) for _ in range(2)]
    results = [finish(runner) for runner in runners]
    assert [code for code, _ in results] == [0, 0], results
    completed = [line for _, output in results for line in output.splitlines() if "] completed: " in line]
    trained = [line.split("] ")[1] for line in completed if not line.endswith("or before")]
    assert len(set(trained)) == len(trained)
    check_against_this_process(study, out, tmp_path)


def test_a_worker_that_is_killed_goes_on_in_the_same_runner(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    file, out = study_file(["Slow"], seeds="0:1", steps=640), tmp_path / "out"
    study = read_plan(file)
    runner = start("study", "run", file, "--out", out, "--jobs", 1)
    run = out / study.runs[0].directory_name
    wait_until(lambda: any(run.glob("checkpoints/*.checkpoint")))
    os.kill(json.loads((run / ".lock").read_text())["pid"], signal.SIGKILL)
    code, output = finish(runner)
    assert code == 0, output
    assert "its process was killed; it goes on" in output
    check_against_this_process(study, out, tmp_path)


def test_subsets_and_plans(
    study_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file = str(study_file(["CartPole-v1", "Acrobot-v1"], seeds="0:10"))
    assert main(["plan", file, "--out", str(tmp_path), "--env", "CartPole-v1", "--seeds", "0:3,7"]) == 0
    output = capsys.readouterr().out
    assert "4 runs, 4 to do" in output
    assert main(["plan", file, "--out", str(tmp_path), "--where", "n_epochs=2"]) == 0
    assert "20 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--env", "Nope"], "--env Nope: the study has Acrobot-v1, CartPole-v1"),
        (["--algorithm", "ppo"], "--algorithm ppo: the study has sppo"),
        (["--seeds", "x"], "--seeds: 'x' is not a list of seeds"),
        (["--seeds", "5:2"], "--seeds: '5:2' is not a list of seeds: write \"0:5\" (0 to 4)"),
        (["--seeds", "20:30"], "--seeds 20:30: the study has 0:10"),
        (["--where", "n_epochs=3"], "--where n_epochs=3: n_epochs of the study is 2"),
        (["--where", "epochs=2"], "--where epochs=2: the runs have no epochs, but batch_size, "),
        (["--where", "n_epochs"], "--where n_epochs: write NAME=VALUE"),
    ],
)
def test_flags_that_match_nothing_list_the_choices(
    flags: list[str], message: str, study_file: Callable[..., Path], capsys: pytest.CaptureFixture
) -> None:
    file = str(study_file(["CartPole-v1", "Acrobot-v1"], seeds="0:10"))
    assert main(["plan", file, *flags]) == 2
    assert message in capsys.readouterr().err


def test_no_cpus_for_a_task_are_refused(
    study_file: Callable[..., Path], capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit):
        main(["run", str(study_file(["CartPole-v1"])), "--executor", "ray", "--cpus", "0"])
    assert "--cpus: 0.0 is too small: must be above 0" in capsys.readouterr().err


def test_the_time_of_one_run_is_not_divided_by_the_cores(
    study_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    def planned(seeds: str) -> tuple[str, str]:
        file = str(study_file(["CartPole-v1"], seeds=seeds, steps=12_800_000))
        assert main(["plan", file, "--out", str(tmp_path), "--jobs", "2"]) == 0
        found = re.search(r"about (.+) of one core, (.+) with --jobs 2", capsys.readouterr().out)
        assert found is not None
        return found[1], found[2]

    alone, shared = planned("0:1")
    assert alone == shared
    assert planned("0:2")[1] == alone


def test_nothing_to_do_is_said(
    study_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file, out = study_file(["Walk"], seeds="0:1"), tmp_path / "out"
    (run,) = read_plan(file).runs
    assert execute(run, out / run.directory_name, Options(100)).status == "completed"
    arguments = ["run", str(file), "--out", str(out)]
    assert main(arguments) == 0
    assert f"nothing to do: 1 run completed before, in {out}" in capsys.readouterr().out
    # All of it is known from a report that was made elsewhere.
    write_runs([read_run(out / run.directory_name)], tmp_path)
    assert main([*arguments[:-1], str(tmp_path / "none"), "--published", str(tmp_path)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_a_bad_study_is_an_error_and_makes_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text('name = "bad"\nseed = 1\n')
    assert main(["run", "bad.toml"]) == 2
    assert "line 2: seed: unknown key (did you mean seeds?)" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.toml"]


def test_an_edited_study_file_does_not_overwrite_the_old_one(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    file = study_file(["CartPole-v1"])
    write_study(read_plan(file), tmp_path / "out")
    old = file.read_text()
    file.write_text("# edited\n" + old)
    write_study(read_plan(file), tmp_path / "out")
    write_study(read_plan(file), tmp_path / "out")
    assert (tmp_path / "out" / ".study" / "study-1.toml").read_text() == old
    assert len(list((tmp_path / "out" / ".study").glob("study-*.toml"))) == 1


def test_a_training_whose_fork_server_is_killed_goes_on(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    """Nobody can say any more how the training's process ends: it is ended, and goes on in another one."""
    file, out = study_file(["Slow"], seeds="0:2", steps=1280), tmp_path / "out"
    study = read_plan(file)
    runner = start("study", "run", file, "--out", out, "--jobs", 1)
    run = out / study.runs[0].directory_name
    wait_until(lambda: any(run.glob("checkpoints/*.checkpoint")))
    training = json.loads((run / ".lock").read_text())["pid"]
    server = int(Path(f"/proc/{training}/stat").read_text().rpartition(")")[2].split()[1])
    assert server != runner.pid
    os.kill(server, signal.SIGKILL)
    code, output = finish(runner)
    assert code == 0, output
    assert "failed" not in output
    assert not list(out.glob("*/failure*.json"))
    assert "its process was killed; it goes on" in output
    check_against_this_process(study, out, tmp_path)
