"""The paper's whole study, 14,400 runs, is reported within a minute and 2 GiB."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from sppo.records.studies import read_records
from tests.records import synthetic_study as synthetic

MEASURE = """
import json, resource, sys, time
from sppo.report.command import main
code = main([sys.argv[1]])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"code": code, "seconds": time.process_time(), "bytes": peak}))
"""


def measure(directory: Path) -> dict[str, float]:
    """Processor time, which other work on the machine does not change, and peak memory."""
    command = [sys.executable, "-c", MEASURE, str(directory)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(finished.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_full_study(tmp_path: Path) -> None:
    synthetic.write_study(tmp_path, synthetic.grid(seeds=range(180), eval_episodes=10))
    measured = measure(tmp_path)
    assert measured["code"] == 0
    assert measured["seconds"] < 60
    assert measured["bytes"] < 2 * 2**30
    assert "14400 runs" in (tmp_path / "report" / "report.html").read_text()


def test_memory_does_not_grow_with_evaluation_episodes(tmp_path: Path) -> None:
    """Episodes are reduced to means as they are read: what is kept is 18 numbers a run, not 1800."""
    sizes = []
    for episodes in (1, 100):
        directory = tmp_path / str(episodes)
        configs = synthetic.grid(["Hopper-v5"], clips=[0.3], seeds=range(10), eval_episodes=episodes)
        synthetic.write_study(directory, configs)
        tracemalloc.start()
        study = read_records(directory)
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert study.counts()["completed"] == 40
    assert sizes[1] < 1.2 * sizes[0]
