"""The command that a report prints for a cell selects exactly the runs of that cell."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from sppo import cli
from sppo.records.config import RunConfig
from sppo.records.studies import read_records
from sppo.records.subset import Subset
from sppo.report.cells import build_cells
from sppo.report.command import main as report
from sppo.report.provenance import rerun_command
from sppo.study.definition import read_plan as load_definition
from tests.records import synthetic_study as synthetic

STUDY = """
name = "again"
environments = ["Pendulum-v1", "CartPole-v1"]
seeds = [0, 1, 2, 5]
total_timesteps = 40_960
evaluations = 2
[environment."CartPole-v1"]
total_timesteps = 20_480
[grid]
clip_range = [0.1, 0.3]
[algorithms.ppo]
use_softmax = false
[algorithms.sppo]
learning_rate = "lin_3e-4"
[algorithms.sppo.grid]
clip_range = [0.3]
gamma = [0.9, 1.0]
max_grad_norm = ["none", 0.5]
[algorithms.smdpo]
clip_range = "none"
[algorithms.smdpo.grid]
eta = [0.1, 10.0]
[algorithms.trpo]
class = "trpo"
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every run completed but one, whose cell has a seed less, in directories of their hash."""
    monkeypatch.setattr(synthetic, "run_hash", lambda config: RunConfig.from_dict(config).directory_name)
    (tmp_path / "study.toml").write_text(STUDY)
    configs = [run.as_dict() for run in load_definition(tmp_path / "study.toml").runs]
    for config in configs[:-1]:
        synthetic.write_completed(tmp_path, config)
    synthetic.write_plan(tmp_path, configs)
    return tmp_path


def test_commands_select_their_cells(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """In a directory with nothing but a cell's completed runs, its command finds all of them and no other."""
    monkeypatch.chdir(study)
    cells = build_cells(read_records(study).runs)
    for number, cell in enumerate(cells):
        words = shlex.split(rerun_command(cell, "study.toml"))
        assert words[:5] == ["python", "-m", "sppo", "study", "run"]
        alone = tmp_path / "alone" / str(number)
        for run in cell.completed:
            assert run.path is not None
            shutil.copytree(run.path, alone / run.path.name)
        assert cli.main(["study", "status", *words[5:], "--out", str(alone), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"completed": cell.n}
    assert sum(cell.n for cell in cells) == sum(len(cell.runs) for cell in cells) - 1


def test_runs_from_before_a_parameter_are_of_the_cells_of_those_after(study: Path) -> None:
    """Seed 0 was run before there was a budget, or a clip that could be said to be one-sided for PPO."""
    now = {cell.label: rerun_command(cell, "study.toml") for cell in build_cells(read_records(study).runs)}
    for path in study.glob("*/config.json"):
        header = json.loads(path.read_text())
        parameters = header["config"]["parameters"]
        if header["config"]["seed"] == 0:
            parameters.pop("kl_budget", None)
            parameters.pop("recompute_advantages", None)
            if parameters.get("use_softmax") is False:
                parameters["clip_mode"] = "two-sided"
            path.write_text(json.dumps(header))
    cells = build_cells(read_records(study).runs)
    assert {cell.label: rerun_command(cell, "study.toml") for cell in cells} == now
    assert {cell.n for cell in cells} == {3, 4}
    chosen = Subset(where=["recompute_advantages=false"]).choose(read_records(study).runs)
    assert {run.seed for run in chosen} == {0, 1, 2, 5}


@pytest.mark.usefixtures("_sheets_left_blank")
def test_the_file_lies_beside_the_report_and_in_its_commands(study: Path, monkeypatch) -> None:
    monkeypatch.chdir(study)
    assert report([str(study), "--out", "published", "--tensorboard-seeds", "0"]) == 0
    assert (study / "published" / "study.toml").read_text() == STUDY
    line = "python -m sppo study run published/study.toml --env CartPole-v1 --algorithm trpo --seeds 0:3"
    assert line in (study / "published" / "final_returns.csv").read_text()
    assert line in (study / "published" / "report.html").read_text()
    # More runs added to it, the report can be made without the directory that they came from.
    assert report([str(study), "--out", "published", "--published", "published", "--seeds", "0:3"]) == 0
    assert json.loads((study / "published/provenance.json").read_text())["command"] == (
        "python -m sppo report published"
    )
    # Made again from the published files alone, it says the same.
    assert report(["published", "--out", "published", "--tensorboard-seeds", "0"]) == 0
    assert line in (study / "published" / "final_returns.csv").read_text()


@pytest.mark.usefixtures("_sheets_left_blank")
def test_a_study_goes_on_from_a_report(study: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    """On another machine, only what the report does not have is left to do."""
    monkeypatch.chdir(study)
    assert report([str(study), "--out", "published", "--tensorboard-seeds", "0"]) == 0
    assert cli.main(["study", "plan", "study.toml", "--published", "published"]) == 0
    assert "1 runs, 1 to do" in capsys.readouterr().out
    assert cli.main(["study", "plan", "study.toml", "--published", "nowhere"]) == 2
    assert "runs.csv" in capsys.readouterr().err
