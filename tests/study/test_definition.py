"""Study files: mistakes are named with their line, and a configuration's identity does not drift."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sppo.records.config import RunConfig, differences
from sppo.records.parameters import CLASSES, algorithm_settings, defaults
from sppo.records.subset import parse_seeds
from sppo.study.definition import StudyError, parse_plan, read_plan

STUDIES = Path(__file__).parents[2] / "benchmarks" / "studies"

VALID = """\
name = "tiny"
environments = ["CartPole-v1", "Hopper-v5"]
seeds = "0:3"
total_timesteps = 40_960

[parameters]
batch_size = 64

[environment."Hopper-v5"]
total_timesteps = 81_920

[grid]
n_epochs = [4, 8]

[algorithms.ppo]
use_softmax = false

[algorithms.smdpo]
clip_range = "none"
n_epochs = 5

[algorithms.smdpo.grid]
eta = [0.1, 1, 10]

[algorithms.trpo]
class = "trpo"
"""


def test_the_grid_is_what_the_file_says() -> None:
    study = parse_plan(VALID, "tiny.toml")
    # Per seed and environment: ppo 2, smdpo 3 (its own n_epochs replaces the axis), trpo 1.
    assert len(study.runs) == 3 * 2 * (2 + 3 + 1)
    assert {run.total_timesteps for run in study.runs if run.env == "Hopper-v5"} == {81_920}
    smdpo = [run.parameters for run in study.runs if run.algorithm == "smdpo" and run.seed == 0]
    assert {parameters["eta"] for parameters in smdpo} == {0.1, 1.0, 10.0}
    assert all(parameters["clip_range"] is None for parameters in smdpo)
    trpo = next(run for run in study.runs if run.algorithm == "trpo")
    assert "clip_range" not in trpo.parameters
    assert trpo.cls == "trpo"


def test_breadth_comes_before_depth() -> None:
    """A study that is stopped early has all of its first seeds."""
    seeds = [run.seed for run in parse_plan(VALID, "tiny.toml").runs]
    assert seeds == sorted(seeds)


MISTAKES = {
    "batch_size = 64": ("batch_sice = 64", r"line 7: parameters\.batch_sice: unknown key .*batch_size"),
    "n_epochs = [4, 8]": (
        "n_epochs = [4, 0]",
        r"line 13: grid\.n_epochs: 0 is too small: must be at least 1",
    ),
    "use_softmax = false": ("use_softmax = 0", r"line 16: algorithms\.ppo\.use_softmax: 0 is neither true"),
    'clip_range = "none"': ('clip_range = "off"', r"line 19: algorithms\.smdpo\.clip_range: 'off'"),
    "n_epochs = 5": ("n_epochs = 5.5", r"line 20: .*5\.5 is not a whole number"),
    "eta = [0.1, 1, 10]": ("eta = [0.1, -1, 10]", r"line 23: algorithms\.smdpo\.grid\.eta: -1 is too small"),
    'class = "trpo"': ('class = "a2c"', r"line 26: algorithms\.trpo\.class: 'a2c' is none of sppo, trpo"),
    'seeds = "0:3"': ('seeds = "0-3"', r"line 3: seeds: '0-3' is not a list of seeds"),
    'name = "tiny"': ('name = "../tiny"', r"line 1: name: a study needs a name"),
    '"CartPole-v1", ': ('"CartPole-v99", ', r"line 2: environments: 'CartPole-v99' is no environment"),
    "total_timesteps = 40_960": ("total_timesteps = -5", r"line 4: total_timesteps: -5 is too small"),
    "[parameters]": ("[paramters]", r"line 6: paramters: unknown key .*parameters"),
    "[grid]": ("[grid]\nclip_range = 0.3", r"line 13: grid\.clip_range: 0\.3 is not a list"),
    "\n[parameters]": ("checkpoint_every = 0\n[parameters]", r"line 5: checkpoint_every: 0 is too small"),
    '"Hopper-v5"]\ntot': ('"Hopper-v4"]\ntot', r"environment\.Hopper-v4: is not in the list"),
    "batch_size = 64\n": ("batch_size = 100\n", r"batch_size = 100 does not divide n_steps x n_envs = 2048"),
    "use_softmax = false\n": ('clip_range = "none"\n', r"algorithms\.ppo: .*write .*eta=1\.0"),
    "seeds =": ("evaluations = 30\nseeds =", r"30 evaluations need at least as many batches"),
    "environments =": ("environments", r"is not valid TOML"),
}


@pytest.mark.parametrize("found", MISTAKES)
def test_a_mistake_is_named_with_its_line(found: str) -> None:
    replacement, message = MISTAKES[found]
    assert VALID.count(found) == 1
    with pytest.raises(StudyError, match=message):
        parse_plan(VALID.replace(found, replacement), "tiny.toml")


RECIPES = (
    VALID
    + """
n_envs = 2

[algorithms.trpo.environment."Hopper-v5"]
n_envs = 4
target_kl = 0.04

[algorithms.ppo.environment."Hopper-v5"]
n_epochs = 20
policy_kwargs = { log_std_init = -2 }
"""
)


def test_an_algorithm_has_its_own_setting_in_an_environment() -> None:
    study = parse_plan(RECIPES, "recipes.toml")
    found = {(run.algorithm, run.env): run for run in study.runs if run.seed == 0}
    hopper, cartpole = found["trpo", "Hopper-v5"], found["trpo", "CartPole-v1"]
    assert (hopper.n_envs, hopper.parameters["target_kl"]) == (4, 0.04)
    assert (cartpole.n_envs, cartpole.parameters["target_kl"]) == (2, 0.01)
    assert found["smdpo", "Hopper-v5"].n_envs == 8
    # What is said for the environment replaces the grid there, and only there.
    passes = {
        env: [run.parameters["n_epochs"] for run in study.runs if (run.algorithm, run.env) == ("ppo", env)]
        for env in ("CartPole-v1", "Hopper-v5")
    }
    assert passes == {"CartPole-v1": [4, 8] * 3, "Hopper-v5": [20] * 3}
    shape = found["ppo", "Hopper-v5"].parameters["policy_kwargs"]
    assert shape == {**found["ppo", "CartPole-v1"].parameters["policy_kwargs"], "log_std_init": -2.0}


def test_what_is_not_said_of_an_environment_leaves_its_runs_as_they_were() -> None:
    """A study that grows exceptions keeps every run that they do not concern."""
    before = {run.hash for run in parse_plan(VALID, "tiny.toml").runs}
    after = [run for run in parse_plan(RECIPES, "recipes.toml").runs if run.hash not in before]
    concerned = {("trpo", "CartPole-v1"), ("trpo", "Hopper-v5"), ("ppo", "Hopper-v5")}
    assert {(run.algorithm, run.env) for run in after} == concerned


RECIPE_MISTAKES = {
    "n_envs = 2": ("n_envs = 0", r"line 28: algorithms\.trpo\.n_envs: 0 is too small"),
    "n_envs = 4": (
        "n_env = 4",
        r"line 31: algorithms\.trpo\.environment\.Hopper-v5\.n_env: unknown key .*n_envs",
    ),
    "target_kl = 0.04": (
        "target_kl = 0",
        r"line 32: algorithms\.trpo\.environment\.Hopper-v5\.target_kl: 0 is",
    ),
    "n_epochs = 20": ('class = "trpo"', r"line 35: .*Hopper-v5\.class: is the same in all environments"),
    'ppo.environment."Hopper-v5"': (
        'ppo.environment."Hopper-v4"',
        r"line 34: algorithms\.ppo\.environment\.Hopper-v4: is not in the list of environments",
    ),
    "policy_kwargs = {": ("grid = {", r"line 36: algorithms\.ppo\.environment\.Hopper-v5\.grid: unknown key"),
    "log_std_init": ("log_std", r"line 36: .*policy_kwargs.*unknown key 'log_std' .*log_std_init"),
}


@pytest.mark.parametrize("found", RECIPE_MISTAKES)
def test_a_mistake_about_one_environment_is_named_with_its_line(found: str) -> None:
    replacement, message = RECIPE_MISTAKES[found]
    assert RECIPES.count(found) == 1
    with pytest.raises(StudyError, match=message):
        parse_plan(RECIPES.replace(found, replacement), "recipes.toml")


def test_all_mistakes_are_listed_at_once() -> None:
    text = VALID.replace("batch_size = 64", "batch_size = 1").replace('"0:3"', '"x"')
    with pytest.raises(StudyError) as error:
        parse_plan(text, "tiny.toml")
    assert len(str(error.value).splitlines()) == 2


def test_a_missing_file_and_a_binary_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="cannot read the study"):
        read_plan(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StudyError, match="not a text file"):
        read_plan(tmp_path / "binary.toml")


def test_equal_settings_have_equal_hashes_however_they_are_spelled() -> None:
    spelled = VALID.replace("eta = [0.1, 1, 10]", "eta = [0.10, 1.0, 1e1]").replace("40_960", "40960")
    ours, theirs = parse_plan(VALID, "a").runs, parse_plan(spelled, "b").runs
    assert [run.hash for run in ours] == [run.hash for run in theirs]


def test_the_hash_is_the_same_on_every_machine_and_in_every_version() -> None:
    """A changed hash would orphan every run that people have on disk."""
    config = RunConfig(
        env="Hopper-v5",
        algorithm="sppo",
        seed=0,
        total_timesteps=1_000_000,
        n_envs=8,
        evaluations=18,
        eval_episodes=10,
        normalize={"observations": True},
        parameters={"clip_range": 0.3, "n_epochs": 10, "target_kl": None},
    )
    assert config.directory_name == "ae7c15bede0d715e"
    assert RunConfig.from_dict(config.as_dict()).hash == config.hash


def test_differences_are_named() -> None:
    assert differences({"a": 1, "p": {"x": 1}}, {"a": 1, "p": {"x": 2}}) == ["p.x: 1 and 2"]


def test_seeds() -> None:
    assert parse_seeds("0:3") == [0, 1, 2]
    assert parse_seeds("5") == [5]
    assert parse_seeds("0:2, 7") == [0, 1, 7]
    with pytest.raises(ValueError, match="not a list of seeds"):
        parse_seeds("-1")


def test_the_example_of_the_documentation() -> None:
    page = (STUDIES.parents[1] / "docs" / "studies.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    runs = parse_plan(text, "studies.md").runs
    # Per environment and seed: ppo 2, smdpo 3, spo 2, trpo 1.
    assert len(runs) == 2 * 5 * (2 + 3 + 2 + 1)
    ant = next(run for run in runs if (run.env, run.algorithm) == ("Ant-v5", "trpo"))
    assert (ant.n_envs, ant.total_timesteps, ant.parameters["target_kl"]) == (2, 500_000, 0.02)


@pytest.mark.parametrize("name", ["mujoco", "mujoco-nodecay"])
def test_the_papers_study_has_its_14400_runs(name: str) -> None:
    study = read_plan(STUDIES / f"{name}.toml")
    assert len(study.runs) == 5 * 2 * 2 * 4 * 180
    assert len({run.directory_name for run in study.runs}) == len(study.runs)
    first = study.runs[0]
    assert first.batch == 2048
    decays = name == "mujoco"
    assert first.parameters["learning_rate"] == ("lin_0.0003" if decays else 0.0003)
    assert first.parameters["max_grad_norm"] == (0.5 if decays else None)


def test_the_smoke_study_is_small() -> None:
    assert len(read_plan(STUDIES / "smoke.toml").runs) <= 8


@pytest.mark.parametrize("name", CLASSES)
def test_the_table_of_parameters_is_the_classes_own(name: str) -> None:
    """Planning does not import the algorithms, so the table could drift away from them."""
    from sb3_contrib import TRPO

    from sppo import SPPO

    parameters = inspect.signature({"sppo": SPPO, "trpo": TRPO}[name]).parameters
    signature = set(parameters)
    given_by_the_runner = {"env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model"}
    advanced = {"rollout_buffer_class", "rollout_buffer_kwargs"}
    table = set(algorithm_settings(name))
    assert table <= signature
    assert signature - table == (given_by_the_runner | advanced | {"surrogate"}) & signature
    # The baseline differs from upstream's defaults, and ours, only where it means to.
    baseline = defaults(algorithm_settings(name))
    different = {key for key, value in baseline.items() if value != parameters[key].default}
    assert different == {"policy", "learning_rate", "n_steps", "batch_size", "policy_kwargs"} - (
        {"batch_size"} if name == "sppo" else set()
    )


def test_the_command_line_and_the_study_file_describe_the_same_run() -> None:
    """`train` and a study's run of the same configuration share a directory name."""
    from sppo.study.train_command import read_flags

    run = parse_plan(VALID, "tiny.toml").runs[0]
    flags = "--env CartPole-v1 --steps 40960 --seed 0 --n-epochs 4 --no-use-softmax".split()  # noqa: SIM905
    assert read_flags(flags)[1].hash == run.hash


def test_planning_imports_no_torch() -> None:
    """A status line must not take seconds."""
    code = "import sys, sppo.study.command, sppo.study.train_command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
