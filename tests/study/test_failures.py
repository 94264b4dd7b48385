"""What can go wrong in a run ends in a clear message, with nothing overwritten."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sppo.checkpoint import checkpoints, files
from sppo.records.conditions import conditions
from sppo.records.parameters import algorithm_settings, defaults
from sppo.study.execution import Options, execute, record_death
from tests.study.trained_runs import ENGINES, assert_same_run, complete, small_config, start


def walk(name: str, **parameters: Any) -> Any:
    return small_config(f"tests.study.study_environments:{name}-v0", **parameters)


def failure(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "failure.json").read_text())


def test_an_environment_that_raises_is_recorded_with_its_traceback(tmp_path: Path) -> None:
    outcome = complete(walk("Raises"), tmp_path)
    assert outcome.status == "failed"
    record = failure(tmp_path)
    assert record["error"] == "RuntimeError: the simulator exploded"
    assert 'raise RuntimeError("the simulator exploded")' in record["traceback"]
    assert record["timesteps"] > 0
    assert not (tmp_path / "result.json").exists()


def test_a_failed_run_is_retried_only_on_request(tmp_path: Path) -> None:
    complete(walk("Raises"), tmp_path)
    first = (tmp_path / "failure.json").read_bytes()
    assert complete(walk("Raises"), tmp_path).status == "failed"
    assert (tmp_path / "failure.json").read_bytes() == first
    outcome = execute(walk("Raises"), tmp_path, Options(3, retry_failed=True))
    # It fails again, at the same step since it goes on exactly; both records are there.
    assert outcome.status == "failed"
    assert (tmp_path / "failure-1.json").read_bytes() == first
    assert failure(tmp_path)["timesteps"] == json.loads(first)["timesteps"]


@pytest.mark.parametrize("engine", ENGINES)
def test_rewards_that_are_not_numbers_end_the_training(engine: str | None, tmp_path: Path) -> None:
    outcome = complete(walk("NotANumber", engine=engine), tmp_path)
    assert outcome.status == "failed"
    assert "the reward of environment 0 is nan at step 502" in outcome.message
    assert "Error" in failure(tmp_path)["traceback"]
    # The last checkpoint is from before.
    from sppo import SPPO

    newest = SPPO.resume(tmp_path / "checkpoints")
    assert all(parameter.isfinite().all() for parameter in newest.policy.parameters())


def test_upstreams_algorithm_does_not_go_on_with_weights_that_are_not_numbers(tmp_path: Path) -> None:
    parameters = {**defaults(algorithm_settings("trpo")), "n_steps": 32, "batch_size": 32}
    config = replace(walk("NotANumber"), cls="trpo", algorithm="trpo", parameters=parameters)
    assert complete(config, tmp_path).status == "failed"
    assert "not finite" in failure(tmp_path)["error"]


def interrupted(config: Any, directory: Path, after: int) -> None:
    """Stop a run politely after some iterations."""
    calls = iter(range(10**6))
    outcome = execute(config, directory, Options(2), stop=lambda: next(calls) >= after)
    assert outcome.status == "interrupted"
    assert not (directory / "failure.json").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to; to be copied, not to be changed."""
    directory = tmp_path_factory.mktemp("whole")
    assert complete(small_config(), directory).status == "completed"
    return directory


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped after its seventh iteration; to be copied, not to be changed."""
    directory = tmp_path_factory.mktemp("stopped")
    interrupted(small_config(), directory, after=7)
    return directory


def test_an_interrupted_run_goes_on_exactly(whole: Path, stopped: Path, tmp_path: Path) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    assert checkpoints(run / "checkpoints")[0].name == "448_steps.checkpoint"
    assert complete(small_config(), run).status == "completed"
    assert_same_run(whole, run)


def test_a_run_that_begins_again_elsewhere_is_recorded_as_made_there(tmp_path: Path) -> None:
    """Its first attempt did not get to a checkpoint."""
    assert execute(small_config(), tmp_path, Options(2), stop=lambda: True).status == "interrupted"
    header = json.loads((tmp_path / "config.json").read_text())
    here = header["versions"]
    assert here == conditions()
    (tmp_path / "config.json").write_text(json.dumps({**header, "versions": {**here, "processor": "abacus"}}))
    assert execute(small_config(), tmp_path, Options(2)).status == "completed"
    assert json.loads((tmp_path / "config.json").read_text())["versions"] == here


def test_a_run_that_goes_on_elsewhere_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(100))
    monkeypatch.setattr("sppo.checkpoint.model.conditions", lambda: {"processor": "abacus"})
    execute(small_config(), tmp_path / "run", Options(2), stop=lambda: next(calls) >= 7)
    monkeypatch.undo()
    messages: list[str] = []
    assert execute(small_config(), tmp_path / "run", Options(2), report=messages.append).status == "completed"
    assert len(messages) == 1
    assert "saved under other conditions (processor: 'abacus' and" in messages[0]


def test_a_truncated_checkpoint_costs_only_the_steps_since_the_one_before(
    whole: Path, stopped: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    newest = checkpoints(run / "checkpoints")[0]
    os.truncate(newest, newest.stat().st_size // 2)
    messages: list[str] = []
    outcome = execute(small_config(), run, Options(2), report=messages.append)
    assert outcome.status == "completed"
    assert "truncated or damaged" in messages[0]
    assert "384_steps.checkpoint instead" in messages[0]
    assert_same_run(whole, run)


def test_without_a_readable_checkpoint_the_run_fails_and_begins_again_on_request(
    whole: Path, stopped: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    found = checkpoints(run / "checkpoints")
    for path in found:
        path.write_bytes(b"garbage")
    outcome = complete(small_config(), run)
    assert outcome.status == "failed"
    assert "no checkpoint can be read" in outcome.message
    assert all(path.read_bytes() == b"garbage" for path in found)
    again = execute(small_config(), run, Options(2, retry_failed=True))
    assert again.status == "completed"
    assert_same_run(whole, run)


def shorten(directory: Path) -> None:
    table = directory / "evaluations.csv"
    table.write_text(table.read_text()[:50])


def delete_table(directory: Path) -> None:
    (directory / "evaluations.csv").unlink()


def delete_events(directory: Path) -> None:
    shutil.rmtree(directory / "tensorboard")


@pytest.mark.parametrize("tamper", [shorten, delete_table, delete_events])
def test_records_that_were_tampered_with_are_not_continued_but_begun_again_on_request(
    tamper: Callable[[Path], None], whole: Path, stopped: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    tamper(run)
    outcome = complete(small_config(), run)
    assert outcome.status == "failed"
    assert "--retry-failed begins again" in outcome.message
    again = execute(small_config(), run, Options(3, retry_failed=True))
    assert again.status == "completed", again
    assert_same_run(whole, run)


def test_a_full_disk_while_writing_a_checkpoint(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails with a message; with room again, it goes on from the last good checkpoint."""
    original = os.fsync

    def fsync(descriptor: int) -> None:
        full = len(checkpoints(tmp_path / "b" / "checkpoints")) == 2
        if full and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".aside"):
            raise OSError(errno.ENOSPC, "No space left on device")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    outcome = complete(small_config(), tmp_path / "b", every=1)
    monkeypatch.undo()
    assert outcome.status == "failed"
    assert "the disk is full" in outcome.message
    # Not even the failure could be recorded, so the run just counts as unfinished.
    assert "could not be recorded" in outcome.message
    assert not list((tmp_path / "b").rglob("*.aside"))
    assert complete(small_config(), tmp_path / "b").status == "completed"
    assert_same_run(whole, tmp_path / "b")


class FileSizeLimit:
    """The kernel refuses to let any file grow beyond this."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.RLIM_INFINITY))


def test_a_write_that_the_kernel_refuses_is_a_recorded_failure(whole: Path, tmp_path: Path) -> None:
    """The real thing: TensorBoard's writer thread, the table and the checkpoint all go through the kernel."""
    process = start(small_config(), tmp_path / "b", sabotage=FileSizeLimit(20_000))
    process.join()
    assert process.exitcode == 1
    assert "File too large" in failure(tmp_path / "b")["error"]
    again = execute(small_config(), tmp_path / "b", Options(3, retry_failed=True))
    assert again.status == "completed"
    assert_same_run(whole, tmp_path / "b")


def test_an_uncapturable_environment_is_reported_and_still_completes(tmp_path: Path) -> None:
    messages: list[str] = []
    calls = iter(range(10**6))
    outcome = execute(
        walk("Fussy"), tmp_path, Options(2), stop=lambda: next(calls) >= 7, report=messages.append
    )
    assert outcome.status == "interrupted"
    assert "cannot be resumed exactly" in messages[0]
    assert "Fussy.simulator" in messages[0]
    messages.clear()
    assert execute(walk("Fussy"), tmp_path, Options(2), report=messages.append).status == "completed"
    assert any("started again" in message for message in messages)
    assert json.loads((tmp_path / "result.json").read_text())["episode_restarts"] == 1


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("completed", [False, True])
def test_a_directory_of_another_run_is_left_alone(completed: bool, whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    if not completed:
        (run / "result.json").unlink()
    before = contents(run)
    outcome = complete(replace(small_config(), seed=2), run)
    assert outcome.status == "failed"
    assert "seed: 1 and 2" in outcome.message
    assert contents(run) == before


@pytest.mark.parametrize("header", ["", "{", "[]", '{"config": 3}'])
@pytest.mark.parametrize("completed", [False, True])
def test_without_its_configuration_a_run_is_left_alone(
    header: str, completed: bool, whole: Path, stopped: Path, tmp_path: Path
) -> None:
    """Another run's weights must not be trained on, and this run's must not be lost."""
    run = shutil.copytree(whole if completed else stopped, tmp_path / "run")
    (run / "config.json").unlink()
    if header:
        (run / "config.json").write_text(header)
    before = contents(run)
    for config in (small_config(clip_range=0.5), small_config()):
        outcome = complete(config, run)
        assert outcome.status == "failed"
        assert "config.json is missing or damaged" in outcome.message
        assert contents(run) == before


def test_a_process_that_died_before_it_wrote_anything_is_tried_again_on_request(tmp_path: Path) -> None:
    assert record_death(tmp_path, "killed").status == "failed"
    assert complete(small_config(), tmp_path).message == "killed"
    assert execute(small_config(), tmp_path, Options(3, retry_failed=True)).status == "completed"


def test_files_of_which_nothing_says_whose_they_are_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "evaluations.csv").write_text("evaluation,timesteps,episode,return,length\n1,640,0,3.0,3\n")
    before = contents(tmp_path)
    assert complete(small_config(), tmp_path).status == "failed"
    assert contents(tmp_path) == before | {tmp_path / ".lock": b""}


def test_a_run_that_was_taken_over_stops_before_it_writes_again(tmp_path: Path) -> None:
    """Stopped for a minute (SIGSTOP, storage gone), a runner may find another machine at its run."""
    rows: list[dict[Path, bytes]] = []
    calls = iter(range(10**6))

    def taken_over() -> bool:
        if next(calls) == 7:
            owner = {"host": "elsewhere", "kernel": "another", "pid": 1, "token": "x"}
            (tmp_path / ".lock").write_text(json.dumps(owner))
            rows.append(contents(tmp_path))
        return False

    outcome = execute(small_config(), tmp_path, Options(1), stop=taken_over)
    assert outcome.status == "busy"
    assert "taken over by process 1 on elsewhere" in outcome.message
    events = {path for path in rows[0] if "tfevents" in path.name}
    after = contents(tmp_path)
    assert {path: data for path, data in after.items() if path not in events} == {
        path: data for path, data in rows[0].items() if path not in events
    }


def test_a_completed_run_is_not_touched(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != ".lock"}
    assert complete(small_config(), run).status == "completed"
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != ".lock"} == before


def test_a_directory_that_cannot_be_made_is_an_outcome(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = complete(small_config(), tmp_path / "file" / "run")
    assert outcome.status == "failed"
    assert "cannot use" in outcome.message


def test_evaluations_do_not_disturb_the_training(tmp_path: Path) -> None:
    """How often a training is evaluated does not change what it learns."""
    from tests.study.trained_runs import weights

    complete(replace(small_config("Hopper-v5"), evaluations=1, eval_episodes=1), tmp_path / "a")
    complete(replace(small_config("Hopper-v5"), evaluations=9, eval_episodes=3), tmp_path / "b")
    ours, theirs = weights(tmp_path / "a" / "model.zip"), weights(tmp_path / "b" / "model.zip")
    assert all(bool((ours[name] == theirs[name]).all()) for name in ours)


def test_the_final_model_loads_upstream(tmp_path: Path) -> None:
    """No class of this package is needed to use what a run leaves behind."""
    from stable_baselines3 import PPO

    complete(small_config("Hopper-v5"), tmp_path)
    model = PPO.load(tmp_path / "model.zip")
    assert model.learning_rate(0.5) == pytest.approx(1.5e-4)


def test_only_two_checkpoints_are_kept(stopped: Path) -> None:
    """Of four: one after every second of seven iterations, and one where it stopped."""
    assert len(list((stopped / "checkpoints").iterdir())) == 2
    assert all(files.read(path) for path in checkpoints(stopped / "checkpoints"))
