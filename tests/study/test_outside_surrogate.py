"""A surrogate that is defined outside of the package: in a training, a study and a report."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sppo.cli import main
from sppo.study.definition import StudyError, parse_plan
from sppo.surrogates import REGISTRY, Surrogate
from tests.study.runner_processes import PYTHONPATH

MODULE = '''
from dataclasses import dataclass
from sppo.surrogates import Surrogate, parameter

@dataclass(frozen=True)
class SPO(Surrogate):
    """A x - |A| (x - 1)^2 / (2 epsilon)."""

    name = "spo"
    title = "SPO"
    colour = "#117733"
    epsilon: float = parameter(0.2, "float", "weight of the penalty", low=0, above=True)
    form: str = parameter("square", "choice", "of the penalty", choices=("square", "cubic"))

    def objective(self, sample):
        distance = (sample.ratio - 1).abs() ** (2 if self.form == "square" else 3)
        return sample.advantage * sample.ratio - sample.advantage.abs() * distance / (2 * self.epsilon)
'''

STUDY = """
name = "outside"
environments = ["CartPole-v1"]
seeds = [0]
total_timesteps = 256
n_envs = 2
evaluations = 1
eval_episodes = 1
[parameters]
n_steps = 32
batch_size = 32
n_epochs = 2
clip_range = 0.3
[algorithms.ppo]
use_softmax = false
[algorithms.spo]
surrogate = "my_spo:SPO"
[algorithms.spo.grid]
epsilon = [0.1, 0.2]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_spo.py").write_text(MODULE)
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    # The name is another class's again afterwards.
    monkeypatch.setitem(REGISTRY, "spo", REGISTRY.get("spo", Surrogate))
    return tmp_path


def sppo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line as its user calls it, in the directory of the module."""
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-m", "sppo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_it_is_trained_by_the_command_line(
    module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.syspath_prepend(module)
    flags = "--env CartPole-v1 --steps 256 --n-envs 2 --n-steps 32 --batch-size 32 --n-epochs 2 --out run"
    flags += " --surrogate my_spo:SPO --form cubic --epsilon"
    assert main(["train", *flags.split(), "0.3"]) == 0
    config = json.loads((module / "run" / "config.json").read_text())["config"]
    assert config["algorithm"] == "spo-cubic"
    assert config["parameters"]["epsilon"] == 0.3
    assert not {"use_softmax", "clip_range", "eta"} & config["parameters"].keys()
    with pytest.raises(SystemExit, match="2"):
        main(["train", *flags.split(), "0"])
    assert "--epsilon: 0.0 is too small: must be above 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "--surrogate", "my_spo:SPO", "--help"])
    assert "--epsilon X" in capsys.readouterr().out


def test_it_is_studied_and_reported(module: Path) -> None:
    done = sppo("study", "run", "study.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "completed: CartPole-v1 spo epsilon=0.1 seed=0" in done.stdout
    reported = sppo("study", "report", "study.toml", "--tensorboard-seeds", "0")
    assert reported.returncode == 0, reported.stderr
    with (module / "runs" / "outside" / "report" / "runs.csv").open(newline="") as file:
        found = [(row["algorithm"], row["status"]) for row in csv.DictReader(file)]
    assert sorted(found) == [("ppo", "completed"), ("spo", "completed"), ("spo", "completed")]
    page = (module / "runs" / "outside" / "report" / "report.html").read_text()
    assert "SPO" in page
    assert "#117733" in page


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("epsilon = [0.1, 0.0]", r"line 19: algorithms\.spo\.grid\.epsilon: 0\.0 is too small"),
        (
            "epsilom = [0.1]",
            r"line 19: algorithms\.spo\.grid\.epsilom: unknown key \(did you mean epsilon\?\)",
        ),
        ('surrogate = ["ppo", "my_spo:SPO"]', r"surrogate: cannot vary"),
    ],
)
def test_its_mistakes_are_named_with_their_line(
    line: str, message: str, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(module)
    with pytest.raises(StudyError, match=message):
        parse_plan(STUDY.replace("epsilon = [0.1, 0.2]", line), "study.toml")


def test_one_that_is_not_there_is_named(module: Path) -> None:
    message = r"^study.toml, line 17: algorithms\.spo\.surrogate: .*No module named 'nowhere'$"
    with pytest.raises(StudyError, match=message):
        parse_plan(STUDY.replace("my_spo:SPO", "nowhere:SPO"), "study.toml")
