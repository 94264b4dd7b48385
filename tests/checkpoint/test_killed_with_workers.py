"""Trainings with worker processes, killed at random moments: the weights at the end are the same bits."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch as th

from sppo import SPPO
from sppo.study.local import PRELOAD
from tests.checkpoint.worker_training import TOTAL, train_and_save

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes are used on Linux only")


def start(directory: Path) -> BaseProcess:
    """A training in a process of its own, with everything imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    process = context.Process(target=train_and_save, args=(directory,))
    process.start()
    return process


def finish(directory: Path) -> None:
    process = start(directory)
    process.join(300)
    assert process.exitcode == 0


def descendants(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def newest(directory: Path) -> int:
    steps = [int(path.name.split("_")[0]) for path in directory.glob("checkpoints/*_steps.checkpoint")]
    return max(steps, default=0)


@pytest.mark.parametrize(
    ("how", "times"),
    [
        (signal.SIGKILL, 2),
        pytest.param(signal.SIGKILL, 8, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_moments(how: signal.Signals, times: int, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    finish(whole)
    rng = random.Random(int(how))
    workers: list[int] = []
    for _ in range(times):
        reached = newest(killed)
        process = start(killed)
        # Some checkpoints further, and then anywhere in an iteration, or in the writing of a checkpoint.
        while newest(killed) < reached + 128 * 3 and process.is_alive():
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.05))
        assert process.pid is not None
        workers += descendants(process.pid)
        os.kill(process.pid, how)
        process.join(60)
    assert 0 < newest(killed) < TOTAL
    assert len(workers) == times
    finish(killed)
    ours, theirs = (SPPO.load(directory / "model.zip").policy.state_dict() for directory in (whole, killed))
    assert [name for name in ours if not th.equal(ours[name], theirs[name])] == []
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "a worker outlived its training"
        time.sleep(0.05)
