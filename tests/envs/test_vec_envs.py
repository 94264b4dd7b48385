"""Every backend of ``make_vec_env`` behaves as Stable-Baselines3's vectorised environments do."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env as upstream_make
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

import sppo
from sppo.envs import factory as vec_env_module
from sppo.envs.infos import InfoCodec
from sppo.envs.worker_vec_env import WorkerVecEnv
from tests.envs.chain_env import Chain


@pytest.fixture(autouse=True)
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr("sppo.envs.workers.os.sched_getaffinity", lambda _: {0, 1})


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


@pytest.mark.parametrize("backend", ["gymnasium", "subproc"])
def test_same_api(backend: Any) -> None:
    """Attributes, methods and wrappers of single environments, wherever they live."""
    env = sppo.make_vec_env(Chain, 5, seed=3, backend=backend, env_kwargs={"limit": 7})
    assert env.get_attr("_limit") == [7] * 5
    env.set_attr("_limit", 9, indices=[1, -1])
    assert env.env_method("get_wrapper_attr", "_limit") in ([7, 9, 7, 7, 9], [7, 7, 7, 7, 7])
    assert env.env_is_wrapped(Monitor) == [True] * 5
    assert env.env_is_wrapped(DummyVecEnv) == [False] * 5
    assert env.env_method("has_wrapper_attr", "_limit", indices=2) == [True]
    assert env.render_mode is None
    first = env.reset()
    env.seed(3)
    np.testing.assert_array_equal(env.reset(), first)
    env.close()
    env.close()


class Failing(Chain):
    def step(self, action: Any) -> Any:
        raise KeyError("broken joint")


def test_a_failing_environment_shows_its_traceback() -> None:
    env = WorkerVecEnv([Chain, Failing], n_processes=2)
    env.reset()
    with pytest.raises(RuntimeError, match="broken joint"):
        env.step(np.zeros((2, 3), np.float32))
    env.close()


def test_dictionaries_of_observations_go_through_upstreams_processes() -> None:
    env = sppo.make_vec_env(Chain, 2, backend="subproc", env_kwargs={"observation": "dict"})
    assert isinstance(env, SubprocVecEnv)
    assert set(env.reset()) == {"a"}
    env.close()
    env = sppo.make_vec_env(Chain, 2, seed=1, backend="gymnasium", env_kwargs={"observation": "dict"})
    before = env.reset()["a"].copy()
    after, *_ = env.step(np.zeros((2, 3), np.float32))
    assert not np.array_equal(before, after["a"])


def test_auto_stays_in_process_where_processes_do_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    # Threads that earlier tests left behind would forbid it.
    monkeypatch.setattr(vec_env_module, "can_fork", lambda: True)
    monkeypatch.setattr(vec_env_module, "idle_cores", lambda: 2.0)
    assert isinstance(sppo.make_vec_env("CartPole-v1", 2), DummyVecEnv)
    busy = sppo.make_vec_env("Humanoid-v5", 4)
    assert isinstance(busy, WorkerVecEnv)
    busy.close()
    monkeypatch.setattr(vec_env_module, "idle_cores", lambda: 0.4)
    assert isinstance(sppo.make_vec_env("Humanoid-v5", 4), DummyVecEnv)
    monkeypatch.setattr(vec_env_module, "idle_cores", lambda: 2.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert isinstance(sppo.make_vec_env("Humanoid-v5", 4), DummyVecEnv)


def test_processes_that_cannot_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside another thread, workers start from scratch; and ``auto`` does without."""
    monkeypatch.setattr(vec_env_module, "idle_cores", lambda: 2.0)
    release = threading.Event()
    other = threading.Thread(target=release.wait)
    other.start()
    try:
        assert isinstance(sppo.make_vec_env("Humanoid-v5", 4), DummyVecEnv)
        ours = sppo.make_vec_env("CartPole-v1", 2, seed=3, backend="subproc")
        assert isinstance(ours, WorkerVecEnv)
        assert_same_run(ours, upstream_make("CartPole-v1", 2, seed=3), steps=5)
        ours.close()
    finally:
        release.set()
        other.join()


def test_a_given_class_is_used() -> None:
    assert type(sppo.make_vec_env("CartPole-v1", 1, vec_env_cls=DummyVecEnv)) is DummyVecEnv


def test_workers_do_not_outlive_their_parent() -> None:
    code = (
        "import os, sppo\n"
        "env = sppo.make_vec_env('CartPole-v1', 2, backend='subproc')\n"
        "print(env._workers[0][0].pid, flush=True)\n"
        "os._exit(0)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    pid = int(run.stdout.split()[0])
    for _ in range(100):
        if not alive(pid):
            return
        subprocess.run(["sleep", "0.05"], check=True)
    raise AssertionError("the worker is still there")


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_bad_backends_say_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match='backend="gymnasium"'):
        sppo.make_vec_env("CartPole-v1", backend="threads")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="environment id"):
        sppo.make_vec_env(Chain, backend="envpool")
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r"sppo\[envpool\]"):
        sppo.make_vec_env("CartPole-v1", backend="envpool")


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


def test_infos_survive_the_shared_memory() -> None:
    writer, reader, row = InfoCodec(), InfoCodec(), np.zeros(InfoCodec.CAPACITY)
    infos: list[dict[str, Any]] = [
        {"a": 0.1, "b": np.float64(np.pi), "c": True, "d": 7, "e": np.arange(6.0).reshape(2, 3)},
        {"a": 0.2, "b": np.float64(1e300), "c": False, "d": -1, "e": np.zeros((2, 3))},
        {"a": np.float32(0.3)},
        {},
    ]
    for info in infos:
        number, form = writer.encode(info, row)
        if form is not None:
            reader.learn(form)
        decoded = reader.decode(number, row)
        assert list(decoded) == list(info)
        for name, value in info.items():
            assert type(decoded[name]) is type(value)
            np.testing.assert_array_equal(decoded[name], value)
    for other in ({"a": "text"}, {"a": 2**60}, {"a": np.zeros(100)}, {"a": np.zeros(2, np.int64)}):
        assert writer.encode(other, row)[0] == -1


def test_registered_environment_is_used_as_it_is() -> None:
    env = sppo.make_vec_env("Pendulum-v1", 2, seed=0, backend="gymnasium", env_kwargs={"g": 9.0})
    assert env.get_attr("g") == [9.0, 9.0]
    assert gym.spec("Pendulum-v1").max_episode_steps == 200
