"""A resumed training ends where the uninterrupted one does: weights and TensorBoard points."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch as th
from gymnasium.envs.registration import register
from sb3_contrib import TRPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecNormalize

from sppo import SPPO, MaskableSPPO, RecurrentSPPO
from sppo.checkpoint import CheckpointError, ExactCheckpointCallback, StatefulEnv, checkpoints, restore
from tests.algorithms.environments import SpaceEnv

if "SppoResumed-v0" not in gym.registry:
    register("SppoResumed-v0", entry_point=SpaceEnv)

CLOCKS = {"time/fps"}
SETTINGS: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "seed": 3}

LSTM = {"policy_kwargs": {"lstm_hidden_size": 8}}


def points(directory: Path) -> list[tuple[str, int, bytes]]:
    from tensorboard.compat.proto.event_pb2 import Event

    found = []
    for path in directory.iterdir():
        data, offset = path.read_bytes(), 0
        while offset < len(data):
            (length,) = struct.unpack_from("<Q", data, offset)
            event = Event.FromString(data[offset + 12 : offset + 12 + length])
            offset += length + 16
            found += [
                (value.tag, event.step, value.SerializeToString())
                for value in event.summary.value
                if value.tag not in CLOCKS
            ]
    return sorted(found)


def assert_same_weights(first: Any, second: Any) -> None:
    ours, theirs = first.policy.state_dict(), second.policy.state_dict()
    assert [name for name in ours if not th.equal(ours[name], theirs[name])] == []
    ours, theirs = first.policy.optimizer.state_dict()["state"], second.policy.optimizer.state_dict()["state"]
    for index, state in ours.items():
        assert all(th.equal(th.as_tensor(state[key]), th.as_tensor(theirs[index][key])) for key in state)


def normalized(env_id: str, **kwargs: Any) -> VecEnv:
    return VecNormalize(make_vec_env(env_id, n_envs=2, seed=3, **kwargs))


CASES: dict[str, tuple[Any, str, Callable[[], VecEnv], dict[str, Any]]] = {
    "mujoco": (SPPO, "MlpPolicy", lambda: normalized("Hopper-v5"), {}),
    "discrete": (SPPO, "MlpPolicy", lambda: make_vec_env("CartPole-v1", 2, seed=3), {}),
    "gsde": (SPPO, "MlpPolicy", lambda: normalized("Pendulum-v1"), {"use_sde": True, "sde_sample_freq": 5}),
    "lstm": (RecurrentSPPO, "MlpLstmPolicy", lambda: normalized("CartPole-v1"), LSTM),
    "masks": (
        MaskableSPPO,
        "MlpPolicy",
        lambda: make_vec_env(lambda: gym.make("SppoResumed-v0", action="discrete"), 2, seed=3),
        {},
    ),
    "dict": (
        SPPO,
        "MultiInputPolicy",
        lambda: make_vec_env(lambda: gym.make("SppoResumed-v0", observation="dict"), 2, seed=3),
        {},
    ),
    "processes": (
        SPPO,
        "MlpPolicy",
        lambda: make_vec_env("CartPole-v1", 2, 3, vec_env_cls=SubprocVecEnv, wrapper_class=StatefulEnv),
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case == "processes" else ()) for case in CASES]
)
def test_resuming_changes_nothing(case: str, tmp_path: Path) -> None:
    cls, policy, make, settings = CASES[case]
    model = cls(policy, make(), tensorboard_log=str(tmp_path / "tb"), **{**SETTINGS, **settings})
    model.learn(640, ExactCheckpointCallback(tmp_path / "c", every=1, keep=20))
    (directory,) = (tmp_path / "tb").iterdir()
    before = points(directory)
    path = tmp_path / "c" / "256_steps.checkpoint"
    # Without an environment where it can be rebuilt: by its name, or from its registered spec.
    resumed = cls.resume(path, env=make() if case == "processes" else None)
    assert resumed.num_timesteps == 256
    assert resumed.remaining_timesteps == 384
    resumed.learn(resumed.remaining_timesteps, reset_num_timesteps=False)
    assert_same_weights(model, resumed)
    assert points(directory) == before
    model.env.close()
    resumed.env.close()


@pytest.mark.parametrize("cls", [PPO, TRPO])
def test_upstream_classes_can_be_resumed_too(cls: Any, tmp_path: Path) -> None:
    settings = {key: value for key, value in SETTINGS.items() if cls is PPO or key != "n_epochs"}
    model = cls("MlpPolicy", normalized("Pendulum-v1"), **settings)
    model.learn(320, callback=ExactCheckpointCallback(tmp_path, every=2))
    resumed = restore(cls, checkpoints(tmp_path)[-1])
    resumed.learn(320 - resumed.num_timesteps, reset_num_timesteps=False)
    assert_same_weights(model, resumed)


def test_upstream_gsde_is_refused_because_its_noise_is_drawn_before_any_callback(tmp_path: Path) -> None:
    model = PPO("MlpPolicy", "Pendulum-v1", use_sde=True, **SETTINGS)
    with pytest.raises(CheckpointError, match="use_sde"):
        model.learn(128, callback=ExactCheckpointCallback(tmp_path, every=1))


def test_checkpoints_fall_on_logged_iterations(tmp_path: Path) -> None:
    """With a log interval, a resumed training would otherwise log at other steps."""
    model = SPPO("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path / "tb"), **SETTINGS)
    model.learn(32 * 12, ExactCheckpointCallback(tmp_path / "c", every=2, keep=9), log_interval=3)
    assert [path.name for path in checkpoints(tmp_path / "c")] == ["192_steps.checkpoint"]
    (directory,) = (tmp_path / "tb").iterdir()
    before = points(directory)
    resumed = SPPO.resume(tmp_path / "c")
    resumed.learn(resumed.remaining_timesteps, log_interval=3, reset_num_timesteps=False)
    assert points(directory) == before


def test_between_two_calls_of_learn(tmp_path: Path) -> None:
    model = SPPO("MlpPolicy", "Pendulum-v1", **SETTINGS).learn(128)
    model.save_checkpoint(tmp_path / "here")
    model.learn(128, reset_num_timesteps=False)
    resumed = SPPO.resume(tmp_path / "here").learn(128, reset_num_timesteps=False)
    assert_same_weights(model, resumed)


def test_before_any_training(tmp_path: Path) -> None:
    model = SPPO("MlpPolicy", "Pendulum-v1", **SETTINGS)
    model.save_checkpoint(tmp_path / "start")
    model.learn(128)
    assert_same_weights(model, SPPO.resume(tmp_path / "start").learn(128))


def test_the_middle_of_an_iteration_is_refused(tmp_path: Path) -> None:
    class Impatient(BaseCallback):
        def _on_step(self) -> bool:
            self.model.save_checkpoint(tmp_path / "x")  # type: ignore[attr-defined]
            return True

    with pytest.raises(CheckpointError, match="_on_rollout_start"):
        SPPO("MlpPolicy", "CartPole-v1", **SETTINGS).learn(64, Impatient())
    assert list(tmp_path.iterdir()) == []


def test_the_saved_model_knows_nothing_of_checkpoints(tmp_path: Path) -> None:
    model = SPPO("MlpPolicy", "CartPole-v1", **SETTINGS).learn(64, ExactCheckpointCallback(tmp_path))
    model.save(tmp_path / "model")
    assert not {"_resumption", "_iteration_start"} & vars(PPO.load(tmp_path / "model")).keys()


def test_an_environment_that_cannot_be_rebuilt_is_asked_for(tmp_path: Path) -> None:
    class Anonymous(gym.Wrapper):
        pass

    make = lambda: make_vec_env(lambda: Anonymous(gym.make("CartPole-v1").unwrapped), 1)  # noqa: E731
    model = SPPO("MlpPolicy", make(), **SETTINGS).learn(32)
    model.save_checkpoint(tmp_path / "here")
    with pytest.raises(CheckpointError, match="env="):
        SPPO.resume(tmp_path / "here")
    assert SPPO.resume(tmp_path / "here", env=make()).num_timesteps == 32


def test_uncapturable_episodes_start_again_and_that_is_said(tmp_path: Path) -> None:
    class Unpicklable(gym.Wrapper):
        def __init__(self) -> None:
            super().__init__(gym.make("CartPole-v1"))
            self.simulator = threading.Lock()

    make = lambda: make_vec_env(Unpicklable, 2)  # noqa: E731
    model = SPPO("MlpPolicy", make(), **SETTINGS)
    model.learn(192, ExactCheckpointCallback(tmp_path, every=1))
    with pytest.warns(UserWarning, match="started again") as caught:
        resumed = SPPO.resume(tmp_path, env=make())
    assert "Unpicklable.simulator" in str(caught[0].message)
    assert resumed._last_episode_starts.all()
    resumed.learn(resumed.remaining_timesteps, reset_num_timesteps=False)
    assert resumed.num_timesteps == 192


def test_looking_at_a_checkpoint_does_not_cut_records(tmp_path: Path) -> None:
    model = SPPO("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path / "tb"), **SETTINGS)
    model.learn(128, ExactCheckpointCallback(tmp_path / "c", every=1))
    (directory,) = (tmp_path / "tb").iterdir()
    before = points(directory)
    SPPO.resume(tmp_path / "c")
    assert points(directory) == before
