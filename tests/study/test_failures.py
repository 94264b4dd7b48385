"""What can go wrong in a run ends in a clear message, with nothing overwritten."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sppo.checkpoint import checkpoints, files
from sppo.study.execution import Options, execute
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


def test_weights_that_are_not_numbers_are_found() -> None:
    from sppo.study.training import DivergedError, check_finite, make_model

    model = make_model(small_config())
    check_finite(model)
    model.policy.value_net.bias.data[0] = float("nan")
    with pytest.raises(DivergedError, match=r"value_net\.bias are not finite"):
        check_finite(model)


def interrupted(config: Any, directory: Path, after: int) -> None:
    """Stop a run politely after some iterations."""
    calls = iter(range(10**6))
    outcome = execute(config, directory, Options(2), stop=lambda: next(calls) >= after)
    assert outcome.status == "interrupted"
    assert not (directory / "failure.json").exists()


def test_an_interrupted_run_goes_on_exactly(tmp_path: Path) -> None:
    interrupted(small_config(), tmp_path / "b", after=7)
    assert checkpoints(tmp_path / "b" / "checkpoints")[0].name == "448_steps.checkpoint"
    assert complete(small_config(), tmp_path / "a").status == "completed"
    assert complete(small_config(), tmp_path / "b").status == "completed"
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_a_truncated_checkpoint_costs_only_the_steps_since_the_one_before(tmp_path: Path) -> None:
    interrupted(small_config(), tmp_path / "b", after=7)
    newest = checkpoints(tmp_path / "b" / "checkpoints")[0]
    os.truncate(newest, newest.stat().st_size // 2)
    messages: list[str] = []
    outcome = execute(small_config(), tmp_path / "b", Options(2), report=messages.append)
    assert outcome.status == "completed"
    assert "truncated or damaged" in messages[0]
    assert "384_steps.checkpoint instead" in messages[0]
    complete(small_config(), tmp_path / "a")
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_without_a_readable_checkpoint_the_run_fails_and_begins_again_on_request(tmp_path: Path) -> None:
    interrupted(small_config(), tmp_path / "b", after=7)
    found = checkpoints(tmp_path / "b" / "checkpoints")
    for path in found:
        path.write_bytes(b"garbage")
    outcome = complete(small_config(), tmp_path / "b")
    assert outcome.status == "failed"
    assert "no checkpoint can be read" in outcome.message
    assert all(path.read_bytes() == b"garbage" for path in found)
    again = execute(small_config(), tmp_path / "b", Options(2, retry_failed=True))
    assert again.status == "completed"
    complete(small_config(), tmp_path / "a")
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_records_that_were_tampered_with_are_not_continued(tmp_path: Path) -> None:
    interrupted(small_config(), tmp_path, after=9)
    table = tmp_path / "evaluations.csv"
    table.write_text(table.read_text()[:50])
    outcome = complete(small_config(), tmp_path)
    assert outcome.status == "failed"
    assert "rows are missing" in outcome.message


def test_a_full_disk_while_writing_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fails with a message; with room again, it goes on from the last good checkpoint."""
    original = os.fsync
    room = iter([True] * 12)

    def fsync(descriptor: int) -> None:
        if not next(room, False) and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".aside"):
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
    complete(small_config(), tmp_path / "a")
    assert_same_run(tmp_path / "a", tmp_path / "b")


class FileSizeLimit:
    """The kernel refuses to let any file grow beyond this."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.RLIM_INFINITY))


def test_a_write_that_the_kernel_refuses_is_a_recorded_failure(tmp_path: Path) -> None:
    """The real thing: TensorBoard's writer thread, the table and the checkpoint all go through the kernel."""
    process = start(small_config(), tmp_path / "b", sabotage=FileSizeLimit(20_000))
    process.join()
    assert process.exitcode == 1
    assert "File too large" in failure(tmp_path / "b")["error"]
    again = execute(small_config(), tmp_path / "b", Options(3, retry_failed=True))
    assert again.status == "completed"
    complete(small_config(), tmp_path / "a")
    assert_same_run(tmp_path / "a", tmp_path / "b")


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


def test_a_directory_of_another_run_is_left_alone(tmp_path: Path) -> None:
    complete(small_config(), tmp_path)
    (tmp_path / "result.json").unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    outcome = complete(replace(small_config(), seed=2), tmp_path)
    assert outcome.status == "failed"
    assert "seed: 1 and 2" in outcome.message
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert before == after


def test_a_completed_run_is_not_touched(tmp_path: Path) -> None:
    complete(small_config(), tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != ".lock"}
    assert complete(small_config(), tmp_path).status == "completed"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != ".lock"} == before


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


def test_only_two_checkpoints_are_kept(tmp_path: Path) -> None:
    interrupted(small_config(), tmp_path, after=11)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert all(files.read(path) for path in checkpoints(tmp_path / "checkpoints"))
