"""A resumed training ends where the uninterrupted one does: weights and TensorBoard points."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import register
from sb3_contrib import TRPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper, VecNormalize

from sppo import SPPO, MaskableRecurrentSPPO, MaskableSPPO, RecurrentSPPO
from sppo import make_vec_env as our_make_vec_env
from sppo.checkpoint import (
    CheckpointError,
    ExactCheckpointCallback,
    StatefulEnv,
    checkpoints,
    files,
    restore,
)
from sppo.records.conditions import conditions
from tests.algorithms.environments import SpaceEnv
from tests.checkpoint.trainings import SETTINGS, assert_same_weights, points
from tests.envs.chain_env import Dice

if "SppoResumed-v0" not in gym.registry:
    register("SppoResumed-v0", entry_point=SpaceEnv)
LSTM = {"policy_kwargs": {"lstm_hidden_size": 8}}


@pytest.fixture(autouse=True)
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr("sppo.envs.cores.os.sched_getaffinity", lambda _: {0, 1})


def normalized(env_id: str, **kwargs: Any) -> VecEnv:
    return VecNormalize(make_vec_env(env_id, n_envs=2, seed=3, **kwargs))


STEERED: dict[str, Any] = {
    "clip_range": None,
    "eta": "auto",
    "kl_budget": 0.01,
    "n_critic_epochs": 3,
    "critic_learning_rate": 1e-3,
    "recompute_advantages": True,
}
CASES: dict[str, tuple[Any, str, Callable[[], VecEnv], dict[str, Any]]] = {
    "mujoco": (SPPO, "MlpPolicy", lambda: normalized("Hopper-v5"), {}),
    "discrete": (SPPO, "MlpPolicy", lambda: make_vec_env("CartPole-v1", 2, seed=3), {}),
    "gsde": (SPPO, "MlpPolicy", lambda: normalized("Pendulum-v1"), {"use_sde": True, "sde_sample_freq": 5}),
    "lstm": (RecurrentSPPO, "MlpLstmPolicy", lambda: normalized("CartPole-v1"), LSTM),
    "trust-region": (SPPO, "MlpPolicy", lambda: normalized("Pendulum-v1"), STEERED),
    "trust-region-lstm": (RecurrentSPPO, "MlpLstmPolicy", lambda: normalized("CartPole-v1"), LSTM | STEERED),
    "masks": (
        MaskableSPPO,
        "MlpPolicy",
        lambda: make_vec_env(lambda: gym.make("SppoResumed-v0", action="discrete"), 2, seed=3),
        {},
    ),
    "masks and lstm": (
        MaskableRecurrentSPPO,
        "MlpLstmPolicy",
        lambda: make_vec_env(lambda: gym.make("SppoResumed-v0", action="multidiscrete"), 2, seed=3),
        LSTM,
    ),
    "dict": (
        SPPO,
        "MultiInputPolicy",
        lambda: make_vec_env(lambda: gym.make("SppoResumed-v0", observation="dict"), 2, seed=3),
        {},
    ),
    "workers": (
        SPPO,
        "MlpPolicy",
        lambda: VecNormalize(our_make_vec_env("Hopper-v5", 4, 3, backend="subproc")),
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
    model.learn(512, ExactCheckpointCallback(tmp_path / "c", every=1, keep=20))
    (directory,) = (tmp_path / "tb").iterdir()
    before = points(directory)
    path = tmp_path / "c" / "256_steps.checkpoint"
    # Without an environment where it can be rebuilt: by its name, or from its registered spec.
    resumed = cls.resume(path, env=make() if case == "processes" else None)
    assert resumed.num_timesteps == 256
    assert resumed.remaining_timesteps == 256
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
    with pytest.warns(UserWarning, match=r"not exact: .*Unpicklable\.simulator") as told:
        model.learn(192, ExactCheckpointCallback(tmp_path, every=1))
    assert len(told) == 1
    assert [files.read(path)[0]["exact"] for path in checkpoints(tmp_path)] == [False, False]
    with pytest.warns(UserWarning, match="started again") as caught:
        resumed = SPPO.resume(tmp_path, env=make())
    assert "Unpicklable.simulator" in str(caught[0].message)
    resumed.learn(resumed.remaining_timesteps, reset_num_timesteps=False)
    assert resumed.num_timesteps == 192


def test_another_processor_version_or_number_of_threads_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    model = SPPO("MlpPolicy", make_vec_env("CartPole-v1", 1), n_steps=16, batch_size=16)
    model.save_checkpoint(tmp_path / "here")
    SPPO.resume(tmp_path / "here")
    assert not [warning for warning in recwarn if "conditions" in str(warning.message)]
    elsewhere = {**conditions(), "processor": "an abacus", "torch": "0.1"}
    monkeypatch.setattr("sppo.checkpoint.model.conditions", lambda: elsewhere)
    monkeypatch.setattr("sppo.checkpoint.model.th.get_num_threads", lambda: 64)
    model.save_checkpoint(tmp_path / "there")
    monkeypatch.undo()
    with pytest.warns(
        UserWarning, match="processor: 'an abacus' and .*; threads: '64' and .*; torch: '0.1' and"
    ):
        SPPO.resume(tmp_path / "there")


def test_looking_at_a_checkpoint_does_not_cut_records(tmp_path: Path) -> None:
    model = SPPO("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path / "tb"), **SETTINGS)
    model.learn(128, ExactCheckpointCallback(tmp_path / "c", every=1))
    (directory,) = (tmp_path / "tb").iterdir()
    before = points(directory)
    SPPO.resume(tmp_path / "c")
    assert points(directory) == before


def test_wrapper_state_that_cannot_be_saved_is_named(tmp_path: Path) -> None:
    """Saving says so once, the file says so, and so does resuming."""

    class Locked(VecEnvWrapper):
        def __init__(self, venv: VecEnv) -> None:
            super().__init__(venv)
            self.gain, self.secret = 1.0, threading.Lock()

        def reset(self) -> Any:
            return self.venv.reset()

        def step_wait(self) -> Any:
            return self.venv.step_wait()

    make = lambda: Locked(make_vec_env("CartPole-v1", 2))  # noqa: E731
    model = SPPO("MlpPolicy", make(), **SETTINGS)
    model.env.set_attr("gain", 2.0)
    with pytest.warns(UserWarning, match=r"not an exact checkpoint: Locked\.secret") as told:
        model.save_checkpoint(tmp_path / "c")
    assert len(told) == 1
    manifest, _ = files.read(tmp_path / "c")
    assert manifest["exact"] is False
    assert "Locked.secret" in manifest["left_out"][0]
    with pytest.warns(UserWarning, match=r"another way: Locked\.secret"):
        SPPO.resume(tmp_path / "c", env=make())


def test_environments_come_back_whichever_way_they_are_stepped(tmp_path: Path) -> None:
    """``make_vec_env`` chooses by how busy the machine is; a checkpoint does not care."""
    made = {
        backend: lambda backend=backend: our_make_vec_env("Pendulum-v1", 4, seed=3, backend=backend)
        for backend in ("gymnasium", "subproc")
    }
    model = SPPO("MlpPolicy", made["subproc"](), **SETTINGS).learn(128)
    model.save_checkpoint(tmp_path / "c")
    model.learn(128, reset_num_timesteps=False)
    for env in (made["gymnasium"](), made["subproc"](), make_vec_env("Pendulum-v1", 4), None):
        resumed = SPPO.resume(tmp_path / "c", env=env).learn(128, reset_num_timesteps=False)
        assert_same_weights(model, resumed)
        resumed.env.close()
    with pytest.raises(CheckpointError, match="4 environments, the given one 2"):
        SPPO.resume(tmp_path / "c", env=make_vec_env("Pendulum-v1", 2))
    model.env.close()


def test_process_wide_generators_of_workers_come_back(tmp_path: Path) -> None:
    make = lambda: our_make_vec_env(Dice, 4, seed=3, backend="subproc")  # noqa: E731
    model = SPPO("MlpPolicy", make(), **SETTINGS).learn(128)
    model.save_checkpoint(tmp_path / "c")
    model.learn(128, reset_num_timesteps=False)
    resumed = SPPO.resume(tmp_path / "c", env=make()).learn(128, reset_num_timesteps=False)
    assert_same_weights(model, resumed)
    with pytest.raises(CheckpointError, match='backend="subproc"'):
        SPPO.resume(tmp_path / "c", env=our_make_vec_env(Dice, 4, backend="gymnasium"))
    model.env.close()
    resumed.env.close()


def test_a_saved_model_is_called_what_it_is(tmp_path: Path) -> None:
    SPPO("MlpPolicy", "CartPole-v1", **SETTINGS).save(tmp_path / "model.zip")
    with pytest.raises(CheckpointError, match=r"is a model that save\(\) wrote.* SPPO\.load") as caught:
        SPPO.resume(tmp_path / "model.zip")
    assert "delete" not in str(caught.value)
