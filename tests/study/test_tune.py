"""Searches: what a trial runs, how it is scored and given up, and that interruptions change nothing.

Most runs here are made up (:mod:`tests.study.made_up_search`).
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from optuna import Trial
from torch import nn

from sppo.records.config import RunConfig
from sppo.study import tune_command
from sppo.study.definition import parse_plan
from sppo.study.execution import Outcome
from sppo.study.tune_command import REASON, as_toml, as_yaml, main
from sppo.study.tuning import read_tuning
from tests.study.made_up_search import (
    ENVIRONMENTS,
    FILE,
    MadeUpRuns,
    return_in_the_table,
    searching,
    trials,
)
from tests.study.runner_processes import check_against_this_process, finish, start, wait_until


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, MadeUpRuns]]:
    return searching(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[Any, ...]], list[RunConfig]]:
    """The trials and the runs of a search that nothing interrupts."""
    directory = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        code, runs = searching(directory, patch)()
    assert code == 0
    return trials(directory / "out"), runs.done


def test_the_score_is_what_the_records_give(search: Callable[..., Any], tmp_path: Path) -> None:
    """Mean over environments of the mean over seeds of the last two evaluations, over the reference."""
    assert search()[0] == 0
    tuning, scored = read_tuning(tmp_path / "search.toml"), 0
    for _, state, drawn, value, _, _ in trials(tmp_path / "out"):
        if state != "COMPLETE":
            continue
        scored += 1
        means = []
        for env, reference in zip(ENVIRONMENTS, (500, 100, 200), strict=True):
            runs = [run for run in tuning.plan(drawn).runs if run.env == env]
            assert [run.seed for run in runs] == [100, 101]
            returns = [return_in_the_table(tmp_path / "out" / run.directory_name, 2) for run in runs]
            means.append(np.mean(returns) / reference)
        assert value == pytest.approx(np.mean(means), rel=1e-12)
    assert scored >= 3


def test_a_trial_that_is_given_up_did_not_run_its_later_environments(
    search: Callable[..., Any], tmp_path: Path
) -> None:
    """Four runs that are all worse are enough (p = 1/16), two are not; without pruning all are run."""
    _, runs = search()
    tuning, found = read_tuning(tmp_path / "search.toml"), trials(tmp_path / "out")
    given_up = [one for one in found if one[1] == "PRUNED"]
    assert 0 < len(given_up) < len(found)
    for number, _, drawn, _, scores, _ in given_up:
        assert list(scores) == [0, 1, 2, 3]
        rungs = tuning.rungs(drawn)
        exist = [[(tmp_path / "out" / run.directory_name).exists() for run in rung] for rung in rungs]
        assert exist == [[True, True], [True, True], [False, False]]
        earlier = [one for one in found[:number] if one[1] == "COMPLETE"]
        best = max(earlier, key=lambda one: one[3])
        assert all(score < best[4][step] for step, score in scores.items())
    assert len(runs.done) == 6 * len(found) - 2 * len(given_up)
    _, runs = search(text=FILE.replace("last = 2", "last = 2\npruning = 0"), out="all")
    assert {one[1] for one in trials(tmp_path / "all")} == {"COMPLETE"}


@pytest.mark.parametrize("how", ["stop_at", "die_at"])
@pytest.mark.parametrize("after", [0, 3, 12, 59])
def test_interrupted_it_makes_the_trials_that_it_would_have_made(
    how: str, after: int, search: Callable[..., Any], tmp_path: Path, whole: tuple[Any, Any]
) -> None:
    """Within an environment, between two, and after the sampler has taken over from chance (ten trials)."""
    same, runs = whole
    if how == "stop_at":
        assert search(stop_at=after)[0] == 130
    else:
        with pytest.raises(MemoryError):
            search(die_at=after)
    states = [one[1] for one in trials(tmp_path / "out")]
    assert states.count("RUNNING") == 1
    assert len(states) == (14 if after == 59 else 3 if after == 12 else 2)
    code, rest = search()
    assert code == 0
    assert trials(tmp_path / "out") == same
    assert [run.hash for run in rest.done] == [run.hash for run in runs[after:]]
    assert search()[1].done == []


def test_killed_while_a_trial_is_drawn(
    search: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Any, Any]
) -> None:
    """Part of its parameters is in the journal; the others are what they would have been."""
    original, calls = Trial._suggest, 0

    def suggest(self: Trial, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 12 * 8 + 5:
            raise MemoryError
        return original(self, *args)

    monkeypatch.setattr(Trial, "_suggest", suggest)
    with pytest.raises(MemoryError):
        search()
    # Four entries of eight: a learning rate has one for its schedule.
    assert len(trials(tmp_path / "out")[-1][2]) == 4
    search()
    assert trials(tmp_path / "out") == whole[0]


def test_half_a_line_at_the_end_of_the_journal(
    search: Callable[..., Any], tmp_path: Path, whole: tuple[Any, Any]
) -> None:
    search(stop_at=20)
    with open(tmp_path / "out" / tune_command.JOURNAL, "ab") as journal:
        journal.write(b'{"op_code": 4, "wor')
    search()
    assert trials(tmp_path / "out") == whole[0]


def test_the_known_settings_come_first(search: Callable[..., Any], tmp_path: Path) -> None:
    """What they do not say is the study's own: the file's, else the baseline's."""
    _, runs = search("--trials", "2")
    plain = parse_plan(FILE[: FILE.index("[tune]")], "plain").runs
    assert {run.hash for run in runs.done[:6]} == {run.hash for run in plain}
    wide = runs.done[6]
    assert wide.parameters["clip_range"] == 0.7
    assert wide.parameters["kl_budget"] == 0.03
    assert wide.parameters["learning_rate"] == 1e-3
    assert wide.parameters["ent_coef"] == 0.01
    shape = {"net_arch": [8], "activation_fn": "relu", "ortho_init": True, "log_std_init": -1.0}
    assert wide.parameters["policy_kwargs"] == shape
    assert [one[5] for one in trials(tmp_path / "out")] == [{"name": "own"}, {"name": "wide"}]


def test_a_failed_run_is_the_worst_score_and_ends_its_trial(
    search: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Also a setting whose values do not go together; if nothing but that happens, the search ends."""
    assert search("--trials", "2", fails=["Acrobot-v1"])[0] == 0
    for _, state, _, value, scores, attributes in trials(tmp_path / "out"):
        assert (state, value, list(scores)) == ("COMPLETE", -math.inf, [0, 1])
        assert attributes[REASON] == "Acrobot-v1 sppo seed=100: ValueError: it diverged"
    assert search("--trials", "5", fails=["Acrobot-v1"])[0] == 2
    assert "all 3 trials failed, the last because of Acrobot-v1" in capsys.readouterr().err
    odd = FILE.replace("n_envs = [2, 4]", "n_envs = [2, 3]").replace("= 32", "= 128")
    assert search(text=odd, out="odd")[0] == 0
    failed = [one for one in trials(tmp_path / "odd") if one[3] == -math.inf]
    assert {"2", "3"} == {one[2]["n_envs"] for one in trials(tmp_path / "odd")}
    assert {one[2]["n_envs"] for one in failed} == {"3"}
    assert all("does not divide n_steps x n_envs = 192" in one[5][REASON] for one in failed)


def test_the_best_trials_are_shown_to_be_pasted(
    search: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The TOML, put into a study, gives the trial's own runs; the YAML holds the same parameters."""
    search()
    capsys.readouterr()
    journal = (tmp_path / "out" / tune_command.JOURNAL).read_bytes()
    assert search("--show", "3")[0] == 0
    assert (tmp_path / "out" / tune_command.JOURNAL).read_bytes() == journal, "looking changes nothing"
    shown = capsys.readouterr().out
    complete = [one for one in trials(tmp_path / "out") if one[1] == "COMPLETE"]
    best = max(complete, key=lambda one: one[3])
    lines = shown.splitlines()
    assert lines[0] == f"14 trials: {len(complete)} with a score, {14 - len(complete)} given up, 0 failed"
    assert lines[2].split()[:2] == [str(best[0]), f"{best[3]:.3f}"]
    pendulum = np.mean([best[4][4], best[4][5]])
    assert f"  {pendulum:.3f}  " in lines[2]

    tuning = read_tuning(tmp_path / "search.toml")
    runs = tuning.plan(best[2]).runs
    pasted = as_toml(tuning, best[2])
    assert pasted in shown
    sizes = "n_envs = 1\nevaluations = 4\neval_episodes = 2\ntotal_timesteps = 2048\nseeds = [100, 101]\n"
    head = f'name = "pasted"\nenvironments = {tomllib.loads(FILE)["environments"]}\n{sizes}'
    assert [run.hash for run in parse_plan(head + pasted, "pasted").runs] == [run.hash for run in runs]

    assert as_yaml(tuning, best[2]) in shown
    zoo = yaml.safe_load(as_yaml(tuning, best[2]))
    assert list(zoo) == ENVIRONMENTS
    given = zoo["Pendulum-v1"]
    assert given["n_envs"] == runs[0].n_envs
    assert given["ent_coef"] == 0.01
    assert eval(given["normalize"])["norm_obs"] is True
    shape = eval(given["policy_kwargs"])
    assert shape["activation_fn"] is nn.ReLU
    assert shape["net_arch"] == runs[0].parameters["policy_kwargs"]["net_arch"]
    for name in ("learning_rate", "clip_range", "n_epochs"):
        assert given[name] == runs[0].parameters[name]


def test_one_environment_alone(
    search: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A search of its own in the same directory, which finds the runs of the other."""
    search("--trials", "2")
    _, runs = search("--trials", "3", "--env", "Pendulum-v1")
    assert {run.env for run in runs.done} == {"Pendulum-v1"}
    assert len(runs.done) == 2
    assert [len(one[4]) for one in trials(tmp_path / "out", ["Pendulum-v1"])] == [2, 2, 2]
    assert len(trials(tmp_path / "out")) == 2
    assert search("--env", "Hopper-v5")[0] == 2
    assert "--env Hopper-v5: the study has Acrobot-v1, CartPole-v1, Pendulum-v1" in capsys.readouterr().err
    assert search("--show", "--env", "CartPole-v1")[0] == 2
    assert "holds no search over CartPole-v1" in capsys.readouterr().err


def test_the_budget_may_change_but_not_the_search(
    search: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    search("--trials", "1")
    assert search(text=FILE.replace("trials = 14", "trials = 2"))[0] == 0
    assert len([one for one in trials(tmp_path / "out") if one[1] == "COMPLETE"]) == 2
    assert search(text=FILE.replace("high = 20", "high = 30"))[0] == 2
    error = capsys.readouterr().err
    assert (
        "was begun with another file (search.space.n_epochs.high: 20 and 30): choose another --out" in error
    )


def test_no_trial_begins_after_the_budget(
    search: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds count over all sessions; a trial that has begun comes to its end."""
    text = FILE.replace("trials = 14", "seconds = 100")
    now = 0.0
    monkeypatch.setattr(tune_command.time, "monotonic", lambda: now)

    class Slow(MadeUpRuns):
        def __call__(self, *args: Any) -> list[Outcome]:
            nonlocal now
            now += 20.0
            return super().__call__(*args)

    def session(stop_at: int | None) -> int:
        monkeypatch.setattr(tune_command, "run_all", Slow(stop_at=stop_at))
        return main([str(tmp_path / "search.toml"), "--out", str(tmp_path / "out")])

    (tmp_path / "search.toml").write_text(text)
    assert session(stop_at=8) == 130
    now = 1000.0
    # 80 seconds are spent, three environments: the second trial has two to go.
    assert session(stop_at=None) == 0
    assert now == 1040.0
    assert [one[1] for one in trials(tmp_path / "out")] == ["COMPLETE", "COMPLETE"]


def test_without_optuna_the_extra_is_named(
    search: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert search()[0] == 2
    assert 'tuning needs the extra "tune": pip install ".[tune]"' in capsys.readouterr().err


def test_the_command_is_light() -> None:
    """Neither Optuna nor torch until there is something to do."""
    code = "import sys, sppo.study.tune_command; print('torch' in sys.modules, 'optuna' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False False\n"


def test_a_search_with_real_runs_stopped_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line; a second search in the same directory is refused meanwhile."""
    file, out = tmp_path / "search.toml", tmp_path / "out"
    monkeypatch.setenv("GO_FILE", str(tmp_path / "go"))
    names = [f"tests.study.study_environments:{name}-v0" for name in ("Waits", "Walk")]
    text = FILE[: FILE.index("[tune]")].replace(json.dumps(ENVIRONMENTS), json.dumps(names))
    references = "".join(f"{json.dumps(name)} = 10\n" for name in names)
    space = f"[tune]\ntrials = 2\nlast = 1\n[tune.reference]\n{references}[tune.space]\nn_epochs = [1, 2]\n"
    file.write_text(text.replace("2048", "512") + space)
    first = start("tune", file, "--out", out, "--jobs", 2)
    wait_until(lambda: any(out.glob("*/progress.json")))
    code, output = finish(start("tune", file, "--out", out))
    assert code == 2
    assert "another search is at work" in output
    os.killpg(first.pid, signal.SIGINT)
    (tmp_path / "go").touch()
    code, output = finish(first)
    assert code == 130, output
    assert [one[1] for one in trials(out)] == ["RUNNING"]
    code, output = finish(start("tune", file, "--out", out, "--jobs", 2))
    assert code == 0, output
    tuning = read_tuning(file)
    for _, state, drawn, value, _, _ in trials(out):
        assert state == "COMPLETE"
        plan = tuning.plan(drawn)
        check_against_this_process(plan, out, tmp_path)
        returns = [return_in_the_table(out / run.directory_name, last=1) for run in plan.runs]
        assert value == pytest.approx(np.mean(returns) / 10)
