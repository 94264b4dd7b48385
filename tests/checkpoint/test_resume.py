"""A resumed training ends where the uninterrupted one does: weights and TensorBoard points."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium.envs.registration import register
from sb3_contrib import TRPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper, VecNormalize

from sppo import SPPO, MaskableRecurrentSPPO, MaskableSPPO, RecurrentSPPO
from sppo import make_vec_env as our_make_vec_env
from sppo.algorithms.finite import NonFiniteError
from sppo.checkpoint import (
    CheckpointError,
    ExactCheckpointCallback,
    StatefulEnv,
    checkpoints,
    files,
    restore,
)
from tests.algorithms.environments import SpaceEnv
from tests.envs.chain_env import Dice

if "SppoResumed-v0" not in gym.registry:
    register("SppoResumed-v0", entry_point=SpaceEnv)

CLOCKS = {"time/fps"}
SETTINGS: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "seed": 3}

LSTM = {"policy_kwargs": {"lstm_hidden_size": 8}}


@pytest.fixture(autouse=True)
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr("sppo.envs.cores.os.sched_getaffinity", lambda _: {0, 1})


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
    with pytest.warns(UserWarning, match=r"not exact: .*Unpicklable\.simulator") as told:
        model.learn(192, ExactCheckpointCallback(tmp_path, every=1))
    assert len(told) == 1
    assert [files.read(path)[0]["exact"] for path in checkpoints(tmp_path)] == [False, False]
    with pytest.warns(UserWarning, match="started again") as caught:
        resumed = SPPO.resume(tmp_path, env=make())
    assert "Unpicklable.simulator" in str(caught[0].message)
    resumed.learn(resumed.remaining_timesteps, reset_num_timesteps=False)
    assert resumed.num_timesteps == 192


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


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_directory_belongs_to_one_training(tmp_path: Path) -> None:
    """A new training there is refused before it has done anything, and nothing is lost."""
    first = SPPO("MlpPolicy", "CartPole-v1", **SETTINGS)
    first.learn(160, ExactCheckpointCallback(tmp_path, every=1))
    before = contents(tmp_path)
    second = SPPO("MlpPolicy", "CartPole-v1", **SETTINGS)
    with pytest.raises(CheckpointError, match=r"of another training .*another directory"):
        second.learn(160, ExactCheckpointCallback(tmp_path, every=1))
    assert second.num_timesteps == 0
    with pytest.raises(CheckpointError, match=r"later checkpoints of this training.*128_steps"):
        first.learn(160, ExactCheckpointCallback(tmp_path, every=1))
    assert contents(tmp_path) == before
    resumed = SPPO.resume(tmp_path)
    resumed.learn(96, ExactCheckpointCallback(tmp_path, every=1), reset_num_timesteps=False)
    assert [path.name for path in checkpoints(tmp_path)] == ["192_steps.checkpoint", "160_steps.checkpoint"]


def test_going_back_in_a_directory_is_refused_but_a_damaged_checkpoint_is_overwritten(tmp_path: Path) -> None:
    model = SPPO("MlpPolicy", "CartPole-v1", **SETTINGS)
    model.learn(160, ExactCheckpointCallback(tmp_path, every=1, keep=9))
    with pytest.raises(CheckpointError, match="later checkpoints"):
        SPPO.resume(tmp_path / "64_steps.checkpoint").learn(
            96, ExactCheckpointCallback(tmp_path, every=1, keep=9), reset_num_timesteps=False
        )
    damaged = tmp_path / "128_steps.checkpoint"
    data = damaged.read_bytes()
    damaged.write_bytes(data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :])
    with pytest.warns(UserWarning, match=r"damaged.*96_steps\.checkpoint instead"):
        resumed = SPPO.resume(tmp_path)
    resumed.learn(64, ExactCheckpointCallback(tmp_path, every=1), reset_num_timesteps=False)
    assert_same_weights(model, resumed)


def test_two_trainings_that_began_in_one_directory(tmp_path: Path) -> None:
    """Both found it empty: the second to write is refused, and resume does not guess."""
    first, second = (SPPO("MlpPolicy", "CartPole-v1", **SETTINGS) for _ in range(2))

    class Meanwhile(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 1:
                second.learn(64, ExactCheckpointCallback(tmp_path, every=1))
            return True

    with pytest.raises(CheckpointError, match="another training"):
        first.learn(96, [Meanwhile(), ExactCheckpointCallback(tmp_path, every=1)])
    assert SPPO.resume(tmp_path).num_timesteps == 32
    first.save_checkpoint(tmp_path / "640_steps.checkpoint")
    with pytest.raises(CheckpointError, match="several trainings"):
        SPPO.resume(tmp_path)
    assert SPPO.resume(tmp_path / "32_steps.checkpoint").num_timesteps == 32


def test_a_checkpoint_knows_whose_it_is(tmp_path: Path) -> None:
    model = SPPO("MlpPolicy", "CartPole-v1", **SETTINGS)
    model.learn(96, ExactCheckpointCallback(tmp_path, every=1, identity="abc"))
    assert SPPO.resume(tmp_path).num_timesteps == 64
    assert SPPO.resume(tmp_path, identity="abc").num_timesteps == 64
    with pytest.raises(CheckpointError, match=r"another run \(abc, not def\).*another directory"):
        SPPO.resume(tmp_path, identity="def")
    model.save_checkpoint(tmp_path / "c", identity="ghi")
    with pytest.raises(CheckpointError, match="ghi, not abc"):
        restore(SPPO, tmp_path / "c", identity="abc")


class Breaking(gym.Wrapper):
    """Observes, after some steps, what is not a number."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.steps_left = 150

    def step(self, action: Any) -> Any:
        self.steps_left -= 1
        observation, *rest = super().step(action)
        return (observation if self.steps_left else observation * np.nan), *rest


def test_numbers_that_are_not_finite_leave_the_last_good_state(tmp_path: Path) -> None:
    weights: list[dict[str, th.Tensor]] = []

    class Weights(BaseCallback):
        def _on_rollout_start(self) -> None:
            weights.append({k: v.clone() for k, v in self.model.policy.state_dict().items()})

        def _on_step(self) -> bool:
            return True

    model = SPPO("MlpPolicy", VecNormalize(make_vec_env(Breaking, 1, seed=1)), **SETTINGS)
    with pytest.raises(NonFiniteError) as caught:
        model.learn(640, [Weights(), ExactCheckpointCallback(tmp_path, every=3, keep=9)])
    assert model.num_timesteps == 149
    notes = "\n".join(caught.value.__notes__)
    assert "96_steps.checkpoint" in notes
    assert "128_steps.last_good" in notes
    # The newest exact checkpoint is what resume finds; the last good weights are further.
    make = lambda: VecNormalize(make_vec_env(Breaking, 1, seed=1))  # noqa: E731
    assert SPPO.resume(tmp_path, env=make()).num_timesteps == 96
    with pytest.warns(UserWarning, match="started again.*broken off"):
        good = SPPO.resume(tmp_path / "128_steps.last_good", env=make())
    assert good.num_timesteps == 128
    assert np.isfinite(good.env.obs_rms.mean).all()
    assert all(th.equal(value, weights[-1][key]) for key, value in good.policy.state_dict().items())
    assert good.learn(64, reset_num_timesteps=False).num_timesteps == 192
