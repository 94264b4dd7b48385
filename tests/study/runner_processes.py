"""The command line in a process of its own, and what its study must have come to."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sppo.study.definition import StudyPlan
from sppo.study.execution import Options, execute
from tests.study.trained_runs import assert_same_run

#: with this, every process finds the package and the environments of these tests
PYTHONPATH = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sppo", *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def check_against_this_process(study: StudyPlan, out: Path, tmp_path: Path) -> None:
    """Every run of the study equals the same run trained here without interruption."""
    for run in study.runs:
        alone = tmp_path / "alone" / run.directory_name
        assert execute(run, alone, Options(100)).status == "completed"
        assert_same_run(alone, out / run.directory_name)
