"""Trainings with worker processes, killed at random moments: the weights at the end are the same bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch as th

from sppo import SPPO
from tests.checkpoint.training_script import TOTAL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes are used on Linux only")
ROOT = Path(__file__).resolve().parents[2]


def start(directory: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.checkpoint.training_script", str(directory)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "2"})


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
    assert start(whole).wait(300) == 0
    rng = random.Random(int(how))
    workers: list[int] = []
    for _ in range(times):
        reached = newest(killed)
        process = start(killed)
        # Some checkpoints further, and then anywhere in an iteration, or in the writing of a checkpoint.
        while newest(killed) < reached + 128 * 3 and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.05))
        workers += descendants(process.pid)
        process.send_signal(how)
        process.wait(60)
    assert 0 < newest(killed) < TOTAL
    assert len(workers) == times
    assert start(killed).wait(300) == 0
    ours, theirs = (SPPO.load(directory / "model.zip").policy.state_dict() for directory in (whole, killed))
    assert [name for name in ours if not th.equal(ours[name], theirs[name])] == []
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "a worker outlived its training"
        time.sleep(0.05)
