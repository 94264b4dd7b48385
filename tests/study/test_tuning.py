"""Tuning files: mistakes are named with their line, and the files that are shipped make sense."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sppo.study.definition import StudyError, read_plan
from sppo.study.tuning import read_tuning
from tests.study.made_up_search import FILE
from tests.study.trained_runs import small_config

STUDIES = Path(__file__).parents[2] / "benchmarks" / "studies"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("clip_range = {", "clip_rnage = {", "line 29: tune.space.clip_rnage: unknown key (did you mean"),
        ("net_arch = [[", "net_arc = [[", "line 35: tune.space.policy_kwargs.net_arc: unknown key"),
        ("[2, 4]", "[2, 0]", "line 28: tune.space.n_envs: 0 is too small: must be at least 1"),
        ("high = 20", "high = 2.5", "line 32: tune.space.n_epochs.high: 2.5 is not a whole number"),
        ("low = 0.1", "low = -0.1", "tune.space.clip_range.low: -0.1 is too small: must be above 0"),
        ("high = 0.8", "high = 0.05", "line 29: tune.space.clip_range: is no range"),
        (", high = 0.8", "", "tune.space.clip_range: is no range"),
        ("{ low = -2, high = 0 }", "{ low = -2, high = 0, log = true }", "log_std_init: is no range"),
        ("{ low = -2, high = 0 }", "-1", "log_std_init: is neither a list of values nor"),
        ("low = 1, high", "linear = true, low = 1, high", "tune.space.n_epochs.linear: unknown key"),
        ("[true, false]", '["no"]', "tune.space.learning_rate.linear: 'no' is neither true nor false"),
        ("last = 2", "last = 5", "tune.last: more than there are evaluations"),
        ("last = 2", "lats = 2", "tune.lats: unknown key (did you mean last?)"),
        ("trials = 14", "", "tune: how long is the search?"),
        ("[100, 101]", "[9, 100]", "line 3: seeds: 9 are in tune.report_seeds"),
        ("[100, 101]", "[100]", "line 3: seeds: one seed decides nothing"),
        ('"0:10"', '"all"', "tune.report_seeds: 'all' is not a list of seeds"),
        ('"Acrobot-v1" = 100', "", "tune.reference: which return of Acrobot-v1 counts as 1?"),
        ('"Acrobot-v1" = 100', '"Acrobot-v1" = 0', "tune.reference.Acrobot-v1: 0 is too small"),
        ('"Acrobot-v1" = 100', '"Acrobat-v1" = 100', "(did you mean Acrobot-v1?)"),
        ("clip_range = 0.7", "clip_range = 0.9", "line 41: tune.first.wide.clip_range: 0.9 is not in"),
        ("clip_range = 0.7", "gamma = 0.9", "tune.first.wide.gamma: is not searched"),
        ("clip_range = 0.7", "clip_range = true", "tune.first.wide.clip_range: True is not a number"),
        ("[8], log_std", "[9], log_std", "policy_kwargs.net_arch: [9] is not in the space"),
        ('["none", 0.03]', "[0.01, 0.03]", "tune.first.own.kl_budget: none is not in the space"),
        ('["none", 0.03]', "{ low = 0.01, high = 0.1, linear = true }", "own.kl_budget: none is not in"),
        ('["none", 0.03]', "{ low = 0.01, high = 0.1, linear = true }", "wide.kl_budget: 0.03 is not in"),
        ("batch_size = 32", "batch_syze = 32", "parameters.batch_syze: unknown key"),
        ("[algorithms.sppo]", "[algorithms.ppo]\n[algorithms.sppo]", "algorithms: tune one algorithm"),
        ("[tune]", '[algorithms.sppo.environment."Acrobot-v1"]\nn_epochs = 3\n[tune]', "with one setting"),
        ("[tune]", "[grid]\ngamma = [0.9, 0.99]\n[tune]", "algorithms: tune one algorithm, without a grid"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in FILE
    file = tmp_path / "search.toml"
    file.write_text(FILE.replace(old, new, 1))
    with pytest.raises(StudyError) as error:
        read_tuning(file)
    assert message in str(error.value)


def test_studies_and_searches_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "search.toml"
    file.write_text(FILE)
    with pytest.raises(StudyError, match=r"line 17: tune: is not for a study: python -m sppo tune reads it"):
        read_plan(file)
    with pytest.raises(StudyError, match=r"there is no \[tune\] table"):
        read_tuning(STUDIES / "smoke.toml")


def test_the_search_of_the_benchmarks() -> None:
    """One setting for five tasks, in sixteen trials, by seeds that will not be reported."""
    tuning = read_tuning(STUDIES / "tune-mujoco.toml")
    assert tuning.trials == 16
    first = {name: tuning.plan(drawn).runs for name, drawn in tuning.first.items()}
    narrow = first["narrow"]
    # The study's own configuration, but for what is narrower.
    for run in narrow:
        base = small_config(run.env).parameters | {"n_steps": 256, "batch_size": 64, "n_epochs": 10}
        shape = base["policy_kwargs"] | {"log_std_init": -1.0}
        assert run.parameters == base | {"clip_range": 0.5, "policy_kwargs": shape}
    reported = {
        run.seed for name in ("mujoco-500k", "million") for run in read_plan(STUDIES / f"{name}.toml").runs
    }
    assert not reported & {run.seed for run in narrow}
    assert {(run.parameters["kl_budget"], run.parameters["n_epochs"]) for run in first["narrow-budget"]} == {
        (0.03, 30)
    }
    assert all(run.parameters["recompute_advantages"] for run in first["tianshou"])
    assert {run.batch for run in first["small-batches"]} == {512}
    assert len(narrow) == 10


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    page = (STUDIES.parents[1] / "docs" / "studies.md").read_text()
    (text,) = re.findall(r"^cat > search.toml <<'END'\n(.*?)^END$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "search.toml").write_text(text)
    tuning = read_tuning(tmp_path / "search.toml")
    assert len(tuning.plan(tuning.first["wide"]).runs) == 4
