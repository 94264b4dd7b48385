"""The RL Zoo trains and plays our algorithms, with our hyperparameters, beside its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from stable_baselines3.common.env_util import make_vec_env

import sppo
from tests.forks import Forks
from tests.zoo_scripts import zoo

ENVIRONMENTS = "tests.algorithms.environments"
MUJOCO = ["Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5"]


@pytest.mark.parametrize(
    "algorithm",
    [
        "sppo",
        pytest.param("sppo_lstm", marks=pytest.mark.slow),
        pytest.param("sppo_mask", marks=pytest.mark.slow),
        pytest.param("sppo_mask_lstm", marks=pytest.mark.slow),
    ],
)
def test_train_and_enjoy(algorithm: str, zoo_process: Forks, tmp_path: Path) -> None:
    options = ["--algo", algorithm, "--env", "CartPole-v1", "-f", "logs"]
    trained, played = zoo(
        zoo_process,
        tmp_path,
        ["train", *options, "-n", "512", "--eval-freq", "300", "-P", "--seed", "1"],
        ["enjoy", *options, "-n", "60", "--no-render"],
    )
    assert f"{algorithm}.yml" in trained
    assert (tmp_path / "logs" / algorithm / "CartPole-v1_1" / "CartPole-v1.zip").is_file()
    assert (tmp_path / "logs" / algorithm / "CartPole-v1_1" / "evaluations.npz").is_file()
    assert "Mean reward" in played


@pytest.mark.parametrize("algorithm", ["sppo_mask", pytest.param("sppo_mask_lstm", marks=pytest.mark.slow)])
def test_masks_reach_training_evaluation_and_enjoy(
    algorithm: str, zoo_process: Forks, tmp_path: Path
) -> None:
    """The environment raises at a forbidden action, so finishing proves that masks were used."""
    options = [
        "--algo",
        algorithm,
        "--env",
        "SppoForbidding-v0",
        "--gym-packages",
        ENVIRONMENTS,
        "-f",
        "logs",
    ]
    short = ["-n", "64", "--eval-freq", "32", "--eval-episodes", "2"]
    parameters = ["-params", "n_steps:32", "batch_size:16", "n_epochs:1"]
    _, played = zoo(
        zoo_process,
        tmp_path,
        ["train", *options, *short, *parameters],
        ["enjoy", *options, "-n", "40", "--no-render", "--stochastic"],
    )
    assert (tmp_path / "logs" / algorithm / "SppoForbidding-v0_1/evaluations.npz").is_file()
    assert "Mean reward: 10.00" in played


def test_enjoy_plays_with_the_statistics_of_the_model_itself(zoo_process: Forks, tmp_path: Path) -> None:
    """The zoo's own file of them, which is still written and read, is that of the training's end."""
    env = ["--env", "Pendulum-v1"]
    short = ["-n", "128", "--eval-freq", "-1", "--seed", "1", "-f", "logs"]
    parameters = ["-params", "n_steps:32", "batch_size:32", "n_envs:2", "normalize:True"]
    zoo(zoo_process, tmp_path, ["train", "--algo", "sppo", *env, *short, *parameters])
    for algorithm in ("sppo", "ppo"):
        shutil.copytree(tmp_path / "logs" / "sppo", tmp_path / "other" / algorithm)
        file = tmp_path / "other" / algorithm / "Pendulum-v1_1" / "Pendulum-v1" / "vecnormalize.pkl"
        statistics = sppo.load_vec_normalize(file, make_vec_env("Pendulum-v1"))
        statistics.obs_rms.mean += 50
        statistics.save(str(file))
    play = ["enjoy", *env, "-n", "200", "--no-render"]
    of_the_training, changed, upstream = (
        re.findall("Mean reward: .*", printed)
        for printed in zoo(
            zoo_process,
            tmp_path,
            [*play, "--algo", "sppo", "-f", "logs"],
            [*play, "--algo", "sppo", "-f", "other"],
            # The same weights, as a class plays them that knows the zoo's file alone.
            [*play, "--algo", "ppo", "-f", "other"],
        )
    )
    assert len(of_the_training) == 1
    assert changed == of_the_training
    assert upstream != of_the_training, "other statistics play the same"


def test_own_hyperparameters_and_the_zoos_algorithms_still_work(zoo_process: Forks, tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(
        "CartPole-v1: {policy: MlpPolicy, n_timesteps: 64, n_steps: 32, batch_size: 16, n_epochs: 1,"
        " clip_mode: one-sided, eta: 2.0, kl_budget: lin_0.1, n_critic_epochs: 2}\n"
    )
    options = ["--env", "CartPole-v1", "-f", "logs", "--eval-freq", "-1"]
    output, _ = zoo(
        zoo_process,
        tmp_path,
        ["train", "--algo", "sppo", "--conf-file", "mine.yml", *options],
        ["train", "--algo", "ppo", "-n", "64", *options],
    )
    assert "mine.yml" in output
    model = sppo.SPPO.load(
        tmp_path / "logs/sppo/CartPole-v1_1/CartPole-v1.zip",
        custom_objects={"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": 0.2},
    )
    assert (model.clip_mode, model.eta(1.0)) == ("one-sided", 2.0)
    assert (model.kl_budget(0.5), model.n_critic_epochs) == (0.05, 2)
    assert (tmp_path / "logs/ppo/CartPole-v1_1/CartPole-v1.zip").is_file()


@pytest.mark.parametrize("algorithm", ["sppo", "sppo_lstm"])
def test_hyperparameters_cover_the_benchmark(algorithm: str) -> None:
    """Each entry builds a model: no misspelt parameter, a policy that fits."""
    path = Path(sppo.__file__).parent / "hyperparams" / f"{algorithm}.yml"
    entries = yaml.safe_load(path.read_text())
    assert {*MUJOCO, "CartPole-v1", "Pendulum-v1", "default"} <= entries.keys()
    if algorithm == "sppo":
        assert {"Acrobot-v1", "MountainCarContinuous-v0", "LunarLander-v3"} <= entries.keys()
    # Box2D is not among the requirements; CartPole's spaces are of the same kind.
    stand_ins = {"default": "CartPole-v1", "LunarLander-v3": "CartPole-v1"}
    classes = {
        "sppo": sppo.SPPO,
        "sppo_lstm": sppo.RecurrentSPPO,
        "sppo_mask": sppo.MaskableSPPO,
        "sppo_mask_lstm": sppo.MaskableRecurrentSPPO,
    }
    not_the_models = {"n_timesteps", "n_envs", "normalize", "policy", "policy_kwargs", "learning_rate"}
    for name, entry in entries.items():
        parameters = {key: value for key, value in entry.items() if key not in not_the_models}
        if isinstance(parameters.get("clip_range"), str):
            parameters["clip_range"] = float(parameters["clip_range"].removeprefix("lin_"))
        env = make_vec_env(stand_ins.get(name, name), n_envs=entry.get("n_envs", 1))
        classes[algorithm](entry["policy"], env, **parameters)


def test_unknown_script_prints_usage() -> None:
    done = subprocess.run([sys.executable, "-m", "sppo.zoo", "fly"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "train" in done.stderr
