"""Agents from a study's runs: files that load, play and say what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from gymnasium.envs.registration import register
from PIL import Image
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks import agents
from benchmarks.million import ENVIRONMENTS
from sppo import SPPO
from sppo.study.definition import parse_plan, read_plan
from sppo.study.execution import Options, execute
from tests.forks import Forks
from tests.zoo_scripts import zoo

STUDY = """\
name = "small"
environments = ["tests.benchmarks.test_agents:Drawn-v0"]
seeds = "0:2"
total_timesteps = 128
n_envs = 2
evaluations = 1
eval_episodes = 2

[parameters]
n_steps = 32
batch_size = 32
n_epochs = 1

[algorithms.sppo]
clip_range = 0.5

[algorithms.trpo]
class = "trpo"
"""


class Drawn(gym.Env):
    """A point that the action moves; drawn is a bar that grows by a pixel each step."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 40}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.at = np.zeros(2, np.float32)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.at, self.steps = self.np_random.normal(5.0, 3.0, 2).astype(np.float32), 0
        return self.at.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.at, self.steps = self.at + np.float32(action[0]), self.steps + 1
        return self.at.copy(), -float(np.abs(self.at).sum()), False, False, {}

    def render(self) -> Any:
        picture = np.zeros((200, 200, 3), np.uint8)
        picture[:, : self.steps] = 255
        return picture


register("Drawn-v0", Drawn, max_episode_steps=100)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("agents") / "small"
    for config in parse_plan(STUDY, "small.toml").runs:
        assert execute(config, directory / config.directory_name, Options(100)).status == "completed"
    return directory


def test_an_agent_is_the_best_run_with_a_card_and_a_picture(study: Path, tmp_path: Path) -> None:
    assert agents.main([str(study), "--out", str(tmp_path)]) == 0
    folder = tmp_path / "sppo" / "Drawn-v0"
    agent = agents.Agent(**json.loads((folder / "agent.json").read_text()))
    runs = [run for run in agents.read_records(study).runs if run.algorithm == "sppo"]
    assert agent.final_return == max(run.final_return for run in runs)
    assert (agent.candidates, len(agent.returns), agent.steps) == (2, 20, 128)
    assert agent.setting["clip_range"] == 0.5
    assert agent.setting["n_envs"] == 2
    card = (folder / "README.md").read_text()
    assert agent.played in card
    assert f"--algorithm sppo --seeds {agent.seed}" in card
    assert "![" in card
    assert agent.played in (tmp_path / "README.md").read_text()
    with Image.open(folder / "moving.gif") as picture:
        # 100 steps at 40 a second: from the first second on, every other one
        assert (picture.size, picture.n_frames) == ((200, 200), 30)  # type: ignore[attr-defined]


def test_what_was_played_is_what_the_file_plays(study: Path, tmp_path: Path) -> None:
    """The statistics come out of the model's own file."""
    assert agents.main([str(study), "--out", str(tmp_path), "--no-pictures"]) == 0
    model = SPPO.load(tmp_path / "sppo" / "Drawn-v0.zip")
    env = model.normalized(gym.make("Drawn-v0"))
    assert isinstance(env, VecNormalize)
    assert abs(env.obs_rms.mean[0]) > 1  # type: ignore[union-attr]
    returns = []
    for seed in range(5):
        env.seed(seed)
        observation, total, done = env.reset(), 0.0, [False]
        while not done[0]:
            observation, reward, done, _ = env.step(model.predict(observation, deterministic=True)[0])  # type: ignore[arg-type]
            total += float(reward[0])
        returns.append(total)
    known = json.loads((tmp_path / "sppo" / "Drawn-v0" / "agent.json").read_text())["returns"]
    assert min(known) - np.std(known) * 2 < np.mean(returns) < max(known) + np.std(known) * 2


def test_the_zoo_plays_it(study: Path, zoo_process: Forks, tmp_path: Path) -> None:
    agents.main([str(study), "--out", str(tmp_path), "--no-pictures"])
    options = ["--algo", "sppo", "--env", "Drawn-v0", "-f", ".", "--gym-packages", __name__]
    (output,) = zoo(zoo_process, tmp_path, ["enjoy", *options, "-n", "200", "--no-render"])
    assert "Loading running average" in output
    assert "2 Episodes" in output


def test_what_cannot_be_an_agent_is_named(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = ("--out", str(tmp_path))
    assert agents.main([str(study), "--algorithm", "ppo", *out]) == 2
    assert "no completed run of ppo: there are sppo, trpo" in capsys.readouterr().err
    assert agents.main([str(study), "--algorithm", "trpo", *out]) == 2
    assert "of the class trpo" in capsys.readouterr().err


def test_an_agent_without_a_picture_is_still_there(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def no_driver(*_: object) -> None:
        raise ImportError("cannot open libEGL.so")

    monkeypatch.setattr(agents, "frames", no_driver)
    assert agents.main([str(study), "--out", str(tmp_path)]) == 1
    assert "libegl1" in capsys.readouterr().err
    assert list(tmp_path.glob("sppo/*/agent.json"))


def test_the_camera_goes_along() -> None:
    """Whoever runs well has left the picture otherwise after a second."""
    followed = agents.followed(gym.make("HalfCheetah-v5", render_mode="rgb_array"))
    model = followed.unwrapped.model  # type: ignore[attr-defined]
    camera = followed.unwrapped.mujoco_renderer.camera_id  # type: ignore[attr-defined]
    assert model.cam_mode[camera] == mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM
    plain = gym.make("CartPole-v1", render_mode="rgb_array")
    assert agents.followed(plain) is plain


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_the_published_agents_load_and_play_as_their_cards_say(env: str) -> None:
    """As a reader of the card would, with the statistics that the file carries."""
    card = json.loads((agents.AGENTS / "sppo" / env / "agent.json").read_text())
    model = SPPO.load(agents.AGENTS / "sppo" / f"{env}.zip")
    played = model.normalized(gym.make(env))
    played.seed(0)
    mean, _ = evaluate_policy(model, played, n_eval_episodes=10, warn=False)
    assert mean > 0.5 * np.mean(card["returns"])


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_the_command_on_a_published_card_trains_that_setting(env: str) -> None:
    """Also after the study's file has got another one."""
    card = json.loads((agents.AGENTS / "sppo" / env / "agent.json").read_text())
    runs = read_plan(agents.ROOT / "benchmarks" / "studies" / f"{card['study']}.toml").runs
    (run,) = [run for run in runs if [run.env, run.algorithm, run.seed] == [env, "sppo", card["seed"]]]
    assert agents.setting_of(run) == card["setting"]
