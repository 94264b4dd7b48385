"""Every backend of ``make_vec_env`` behaves as Stable-Baselines3's vectorised environments do."""

from __future__ import annotations

import sys
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import register
from stable_baselines3.common.env_util import make_vec_env as upstream_make
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import sppo
from sppo.envs import factory
from sppo.envs.worker_vec_env import WorkerVecEnv
from tests.envs.chain_env import Chain


@pytest.fixture(autouse=True)
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr("sppo.envs.cores.os.sched_getaffinity", lambda _: {0, 1})


def assert_same_run(ours: Any, theirs: Any, steps: int = 40) -> None:
    """Same observations, rewards, endings and infos, values and types, from the same seed."""
    rng = np.random.default_rng(0)
    a, b = ours.reset(), theirs.reset()
    for _ in range(steps):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
        actions = np.array([theirs.action_space.sample() for _ in range(theirs.num_envs)])
        if actions.dtype == np.float32:
            actions = rng.uniform(-1, 1, actions.shape).astype(np.float32)
        a, rewards, dones, infos = ours.step(actions)
        b, expected_rewards, expected_dones, expected_infos = theirs.step(actions)
        np.testing.assert_array_equal(rewards, expected_rewards)
        np.testing.assert_array_equal(dones, expected_dones)
        assert (rewards.dtype, dones.dtype) == (expected_rewards.dtype, expected_dones.dtype)
        for info, expected in zip(infos, expected_infos, strict=True):
            assert list(info) == list(expected)
            for name, value in expected.items():
                assert type(info[name]) is type(value), name
                if name == "episode":
                    assert (info[name]["r"], info[name]["l"]) == (value["r"], value["l"])
                else:
                    np.testing.assert_array_equal(info[name], value, err_msg=name)
    assert [sorted(info) for info in ours.reset_infos] == [sorted(info) for info in theirs.reset_infos]


@pytest.mark.parametrize("backend", ["gymnasium", "subproc", "auto"])
@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Humanoid-v5", "CartPole-v1"])
def test_same_trajectories_as_upstream(backend: Any, env_id: str) -> None:
    ours, theirs = sppo.make_vec_env(env_id, 5, seed=3, backend=backend), upstream_make(env_id, 5, seed=3)
    assert_same_run(ours, theirs)
    ours.close()
    theirs.close()


class Board(gym.Wrapper):
    """Tells of one list and one array, at every step the same ones, which it goes on writing in."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.told: dict[str, Any] = {"actions": [], "state": np.zeros(1)}

    def step(self, action: Any) -> Any:
        *outcome, info = super().step(action)
        self.told["actions"].append(int(action))
        self.told["state"] += 1
        return *outcome, {**info, **self.told}


@pytest.mark.parametrize("backend", ["gymnasium", "subproc"])
def test_infos_stay_as_they_were_told(backend: Any) -> None:
    """A callback may keep them, as it may with Stable-Baselines3's."""
    env = sppo.make_vec_env(Chain, 4, seed=3, backend=backend, wrapper_class=Board)
    env.reset()
    kept = [env.step(np.full(4, number % 2))[3] for number in range(3)]
    for number, infos in enumerate(kept, start=1):
        assert [info["actions"] for info in infos] == [[0, 1, 0][:number]] * 4
        assert [info["state"].tolist() for info in infos] == [[number]] * 4
    env.close()


@pytest.mark.parametrize("backend", ["gymnasium", "subproc"])
def test_same_api(backend: Any) -> None:
    """Attributes, methods and wrappers of single environments, wherever they live."""
    env = sppo.make_vec_env(Chain, 5, seed=3, backend=backend, env_kwargs={"limit": 7})
    assert env.get_attr("_limit") == [7] * 5
    env.set_attr("_limit", 9, indices=[1, -1])
    assert env.env_method("get_wrapper_attr", "_limit") == [7, 9, 7, 7, 9]
    assert env.get_attr("_limit", indices=[4, 0]) == [9, 7]
    assert env.env_is_wrapped(Monitor) == [True] * 5
    assert env.env_is_wrapped(DummyVecEnv) == [False] * 5
    assert env.env_method("has_wrapper_attr", "_limit", indices=2) == [True]
    assert env.render_mode is None
    first = env.reset()
    env.seed(3)
    np.testing.assert_array_equal(env.reset(), first)
    env.close()
    env.close()


@pytest.mark.parametrize("backend", ["gymnasium", "subproc"])
def test_dictionaries_of_observations(backend: Any) -> None:
    ours = sppo.make_vec_env(Chain, 3, seed=1, backend=backend, env_kwargs={"observation": "dict"})
    theirs = upstream_make(Chain, 3, seed=1, env_kwargs={"observation": "dict"})
    actions = np.zeros((3, 3), np.float32)
    a, b = ours.reset(), theirs.reset()
    for _ in range(20):
        assert list(a) == list(b) == ["a"]
        np.testing.assert_array_equal(a["a"], b["a"])
        a, b = ours.step(actions)[0], theirs.step(actions)[0]
    ours.close()


def test_auto_stays_in_process_where_processes_do_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(factory, "idle_cores", lambda: 2.0)
    assert isinstance(sppo.make_vec_env("CartPole-v1", 2), DummyVecEnv)
    busy = sppo.make_vec_env("Humanoid-v5", 4)
    assert isinstance(busy, WorkerVecEnv)
    busy.close()
    monkeypatch.setattr(factory, "idle_cores", lambda: 0.4)
    assert isinstance(sppo.make_vec_env("Humanoid-v5", 4), DummyVecEnv)
    monkeypatch.setattr(factory, "idle_cores", lambda: 2.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert isinstance(sppo.make_vec_env("Humanoid-v5", 4), DummyVecEnv)


def test_auto_stays_in_process_where_environments_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "_gains_from_processes", lambda *_: True)
    lock = threading.Lock()
    register("SppoUnsendable-v0", entry_point=lambda: (lock, Chain())[1])
    try:
        env = sppo.make_vec_env("SppoUnsendable-v0", 2)
        assert isinstance(env, DummyVecEnv)
        assert env.reset().shape == (2, 5)
        with pytest.raises(ValueError, match="cannot be sent to another process"):
            sppo.make_vec_env("SppoUnsendable-v0", 2, backend="subproc")
    finally:
        del gym.registry["SppoUnsendable-v0"]


def test_a_given_class_is_used() -> None:
    assert type(sppo.make_vec_env("CartPole-v1", 1, vec_env_cls=DummyVecEnv)) is DummyVecEnv


BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"backend": "threads"}, 'backend="gymnasium"'),
    ({"env_id": Chain, "backend": "envpool"}, "environment id"),
    ({"backend": "envpool", "wrapper_class": Monitor}, "does not take wrapper_class:"),
    ({"backend": "envpool", "start_index": 3}, "does not take start_index:"),
    ({"backend": "subproc", "vec_env_cls": DummyVecEnv}, "leave one of them out"),
    ({"n_envs": 0}, "from 1"),
    ({"n_envs": -2}, "from 1"),
    ({"n_envs": 2.0}, "from 1"),
    ({"n_envs": True}, "from 1"),
    ({"seed": -1}, "from 0"),
    ({"seed": "7"}, "from 0"),
    ({"env_id": 5}, "function that makes one"),
    ({"env_id": gym.make("CartPole-v1")}, "function that makes one"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
def test_bad_arguments_say_what_to_write(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sppo.make_vec_env(**{"env_id": "CartPole-v1", **arguments})


def test_a_missing_envpool_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[envpool\]"'):
        sppo.make_vec_env("CartPole-v1", backend="envpool")


@pytest.mark.parametrize("backend", ["gymnasium", "subproc"])
def test_one_environment_twice_is_refused(backend: Any) -> None:
    env = gym.make("CartPole-v1")
    with pytest.raises(ValueError, match="same"):
        sppo.make_vec_env(lambda: env, 4, backend=backend)


@pytest.mark.slow
def test_envpool_reports_and_restarts_episodes() -> None:
    pytest.importorskip("envpool")
    env = sppo.make_vec_env("CartPole-v1", 3, seed=1, backend="envpool")
    env.reset()
    lengths = np.zeros(3, int)
    for _ in range(80):
        lengths += 1
        obs, _, dones, infos = env.step(np.ones(3, np.int64))
        for index in np.flatnonzero(dones):
            assert infos[index]["episode"]["l"] == lengths[index]
            assert abs(infos[index]["terminal_observation"][2]) > 0.2
            assert np.abs(obs[index]).max() <= 0.05
        lengths[dones] = 0
    model = sppo.SPPO("MlpPolicy", env, n_steps=64, device="cpu", engine="fast").learn(192)
    assert len(model.ep_info_buffer or []) > 3
    env.close()


@pytest.mark.slow
def test_envpool_tells_time_limits_from_falls() -> None:
    """Only an episode that was cut off is bootstrapped; CartPole cannot fall within two steps."""
    pytest.importorskip("envpool")
    env = sppo.make_vec_env("CartPole-v1", 2, seed=1, backend="envpool", env_kwargs={"max_episode_steps": 2})
    env.reset()
    for step in range(6):
        _, _, dones, infos = env.step(np.zeros(2, np.int64))
        assert dones.tolist() == [step % 2 == 1] * 2
        assert [info["TimeLimit.truncated"] for info in infos] == dones.tolist()
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_envpool_trains_normalised_with_continuous_actions(engine: str) -> None:
    """Its MuJoCo speaks float64, and SB3 float32; the model file then acts in Gymnasium's Hopper."""
    pytest.importorskip("envpool")
    env = VecNormalize(sppo.make_vec_env("Hopper-v5", 2, seed=1, backend="envpool"))
    model = sppo.SPPO("MlpPolicy", env, n_steps=64, device="cpu", engine=engine).learn(256)
    assert len(model.ep_info_buffer or []) > 3
    assert env.obs_rms.count > 256
    env.close()
    hopper = gym.make("Hopper-v5")
    assert hopper.observation_space.shape == model.observation_space.shape
    action, _ = model.predict(np.zeros(hopper.observation_space.shape or ()))
    assert hopper.action_space.contains(action)
    hopper.close()


def test_registered_environment_is_used_as_it_is() -> None:
    env = sppo.make_vec_env("Pendulum-v1", 2, seed=0, backend="gymnasium", env_kwargs={"g": 9.0})
    assert env.get_attr("g") == [9.0, 9.0]
    assert gym.spec("Pendulum-v1").max_episode_steps == 200
