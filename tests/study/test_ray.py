"""The Ray executor on a real cluster of two nodes, one of which dies in the middle of the study."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sppo.records import run_files
from sppo.study.definition import read_plan
from tests.study.runner_processes import PYTHONPATH, check_against_this_process, finish, start, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def test_a_node_dies_and_every_run_completes_with_the_local_results(
    cluster: Any,
    study_file: Callable[..., Path],
    tmp_path: Path,
) -> None:
    doomed = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    file, out = study_file(["Slow", "CartPole-v1"], seeds="0:2", steps=3200), tmp_path / "out"
    study = read_plan(file)
    runner = start("study", "run", file, "--out", out, "--executor", "ray", "--address", cluster.address)
    # Two at a time: once two runs have checkpoints, one of them is on the node that dies.
    wait_until(lambda: len({path.parent for path in out.glob("*/checkpoints/*.checkpoint")}) == 2)
    cluster.remove_node(doomed, allow_graceful=False)
    code, output = finish(runner)
    assert code == 0, output
    assert output.count("] completed: ") == len(study.runs)
    # One of them was begun twice: each attempt that went on has an event file of its own.
    attempts = [len(list(path.iterdir())) for path in out.glob("*/tensorboard")]
    assert max(attempts) == 2, attempts
    check_against_this_process(study, out, tmp_path)


def test_failures_are_outcomes_there_too(
    cluster: Any,
    study_file: Callable[..., Path],
    tmp_path: Path,
) -> None:
    file, out = study_file(["Raises", "Walk"], seeds="0:1"), tmp_path / "out"
    runner = start("study", "run", file, "--out", out, "--executor", "ray", "--address", cluster.address)
    code, output = finish(runner)
    assert code == 1, output
    assert "the simulator exploded" in output
    assert len(list(out.glob("*/result.json"))) == 1
    assert len(list(out.glob("*/failure.json"))) == 1


def test_ctrl_c_there_and_going_on_here(
    cluster: Any,
    study_file: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """Stopped politely, with a checkpoint; what one executor has begun, the other one finishes."""
    file, out = study_file(["Slow"], seeds="0:2", steps=3200), tmp_path / "out"
    study = read_plan(file)
    runner = start("study", "run", file, "--out", out, "--executor", "ray", "--address", cluster.address)
    wait_until(lambda: any(out.glob("*/checkpoints/*.checkpoint")))
    runner.send_signal(signal.SIGINT)
    code, output = finish(runner)
    assert code == 130, output
    (steps,) = re.findall(r"interrupted: .* after (\d+) of 3200 steps", output)
    assert 0 < int(steps) < 3200
    assert list(out.glob(f"*/checkpoints/{steps}_steps.checkpoint"))
    assert not list(out.glob("*/result.json")) + list(out.glob("*/failure.json"))
    assert not list((out / run_files.BOOKKEEPING).glob("stop-*"))
    code, output = finish(start("study", "run", file, "--out", out, "--jobs", 2))
    assert code == 0, output
    check_against_this_process(study, out, tmp_path)
