"""Planning and watching the paper's 14,400 runs takes seconds; so does scanning their records."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sppo.study import records
from sppo.study.definition import load_study

FILE = Path(__file__).parents[2] / "benchmarks" / "studies" / "mujoco.toml"
SECONDS = 5.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic records: of every ten runs seven completed, one failed, one interrupted, one missing."""
    directory = tmp_path_factory.mktemp("mujoco")
    rows = "".join(f"{1 + n // 10},{55_000 * (1 + n // 10)},{n % 10},{n}.5,100\n" for n in range(180))
    for number, run in enumerate(load_study(FILE).runs):
        if number % 10 == 9:
            continue
        path = directory / run.directory_name
        path.mkdir()
        header = {"config": run.as_dict(), "hash": run.hash, "versions": {}, "git_revision": None}
        (path / records.CONFIG).write_text(json.dumps(header))
        (path / records.EVALUATIONS).write_text(records.EVALUATIONS_HEADER + "\n" + rows)
        (path / ".lock").touch()
        if number % 10 < 7:
            result = {
                "status": "completed",
                "timesteps": 1_001_472,
                "final_return": 1.0,
                "wall_seconds": 400.0,
            }
            (path / records.RESULT).write_text(json.dumps(result))
        elif number % 10 == 7:
            (path / records.FAILURE).write_text(json.dumps({"status": "failed", "error": "E: x"}))
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("action", ["plan", "status"])
def test_within_five_seconds(action: str, directory: Path) -> None:
    began = time.monotonic()
    command = [sys.executable, "-m", "sppo", "study", action, str(FILE), "--out", str(directory)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    took = time.monotonic() - began
    total = next(line for line in output.splitlines() if line.startswith("total"))
    assert total.split() == ["total", "14400", "10080", "-", "1440", "1440", "1440"]
    assert took < SECONDS


@pytest.mark.slow
def test_records_scan(directory: Path) -> None:
    found = list(records.scan(directory))
    assert len(found) == 12_960
    assert sum(record.status == "completed" for record in found) == 10_080
    steps, returns = found[0].evaluations().curve()
    assert len(steps) == 18
    assert returns[0] == 5.0
