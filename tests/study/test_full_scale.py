"""Planning and watching the paper's 14,400 runs stays cheap; scanning their records finds all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sppo.records import run_files
from sppo.records.runs import read_run
from sppo.study.definition import read_plan

FILE = Path(__file__).parents[2] / "benchmarks" / "studies" / "mujoco.toml"

#: calls the command line and prints which files it has opened, and whether it has loaded torch
COUNTING = """
import json, sys
opened = []
def hook(event, arguments):
    if event == "open":
        opened.append(str(arguments[0]))
sys.addaudithook(hook)
from sppo.study.command import main
code = main(sys.argv[1:])
here = [path for path in opened if path.startswith(sys.argv[-1])]
print(json.dumps({"code": code, "opened": here, "torch": "torch" in sys.modules}))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic records: of every ten runs seven completed, one failed, one interrupted, one missing."""
    directory = tmp_path_factory.mktemp("mujoco")
    rows = "".join(f"{1 + n // 10},{55_000 * (1 + n // 10)},{n % 10},{n}.5,100\n" for n in range(180))
    for number, run in enumerate(read_plan(FILE).runs):
        if number % 10 == 9:
            continue
        path = directory / run.directory_name
        path.mkdir()
        header = {"config": run.as_dict(), "hash": run.hash, "versions": {}, "git_revision": None}
        (path / run_files.CONFIG).write_text(json.dumps(header))
        (path / run_files.EVALUATIONS).write_text(run_files.EVALUATIONS_HEADER + "\n" + rows)
        (path / ".lock").touch()
        if number % 10 < 7:
            result = {
                "status": "completed",
                "timesteps": 1_001_472,
                "final_return": 175.0,
                "wall_seconds": 400.0,
            }
            (path / run_files.RESULT).write_text(json.dumps(result))
        elif number % 10 == 7:
            (path / run_files.FAILURE).write_text(json.dumps({"status": "failed", "error": "E: x"}))
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("action", ["plan", "status"])
def test_hardly_any_file_is_read(action: str, directory: Path) -> None:
    """At most one small file per run, neither configurations nor evaluations, and no torch."""
    command = [sys.executable, "-c", COUNTING, action, str(FILE), "--out", str(directory)]
    *output, last = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    total = next(line for line in output if line.startswith("total"))
    assert total.split() == ["total", "14400", "10080", "-", "1440", "1440", "1440"]
    seen = json.loads(last)
    assert seen["code"] == 0
    assert not seen["torch"]
    assert len(seen["opened"]) < 14_400
    names = {Path(path).name for path in seen["opened"]}
    assert names <= {".lock", run_files.RESULT, run_files.FAILURE}, names


@pytest.mark.slow
def test_records_scan(directory: Path) -> None:
    found = [read_run(path) for path in run_files.run_directories(directory)]
    assert len(found) == 12_960
    assert sum(run.status == "completed" for run in found) == 10_080
    done = next(run for run in found if run.status == "completed")
    assert len(done.timesteps) == 18
    assert done.returns[0] == 5.0
