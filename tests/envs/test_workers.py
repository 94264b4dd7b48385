"""Environments in worker processes under attack: errors, interrupts, deaths, and being forgotten."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sppo
from sppo.envs import worker
from sppo.envs.worker import WorkerError
from sppo.envs.worker_vec_env import WorkerVecEnv
from tests.envs.chain_env import Counter, Dice, Verbose
from tests.forks import Forks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes are used on Linux only")
ROOT = Path(__file__).resolve().parents[2]


def make(n_envs: int = 4, cls: Callable[[], Any] = Counter) -> WorkerVecEnv:
    return WorkerVecEnv([cls] * n_envs, n_processes=2)


def actions(n_envs: int = 4, **of: float) -> np.ndarray:
    """Zeros, but for the environments named ``e0=...``."""
    given = np.zeros((n_envs, 1), np.float32)
    for name, value in of.items():
        given[int(name[1:])] = value
    return given


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_dead(pids: list[int], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker is still there"
        time.sleep(0.02)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script of its own, which has no ``if __name__ == "__main__"``."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "2", **environment},
    )


@pytest.mark.parametrize("broken", ["e0", "e3"])
def test_an_environment_that_fails_once(broken: str) -> None:
    """In this process (e0) and in a worker (e3): the error comes as it is, and everything goes on."""
    env = make()
    env.reset()
    with pytest.raises(KeyError, match="broken joint"):
        env.step(actions(**{broken: Counter.FAIL}))
    assert env.get_attr("steps")[1:3] == [1, 1] or broken == "e0"
    assert env.env_method("echo", "hello") == ["hello"] * 4
    env.reset()
    for step in range(1, 4):
        observations, rewards, _, _ = env.step(actions())
        assert observations.ravel().tolist() == rewards.tolist() == [step] * 4
    env.close()


def test_the_error_of_a_worker_shows_where_it_was_raised() -> None:
    env = make()
    env.reset()
    with pytest.raises(KeyError) as caught:
        env.step(actions(e2=Counter.FAIL))
    (note,) = caught.value.__notes__
    assert "environments 2 to 3" in note
    assert 'raise KeyError("broken joint")' in note
    env.close()


def test_a_training_goes_on_after_a_caught_error() -> None:
    env = make()
    model = sppo.SPPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, device="cpu")
    step, failures = Counter.step, [5]

    def failing(self: Counter, action: Any) -> Any:
        failures[0] -= 1
        if failures[0] == 0:
            raise KeyError("once")
        return step(self, action)

    Counter.step = failing  # type: ignore[method-assign]
    try:
        with pytest.raises(KeyError, match="once"):
            model.learn(64)
    finally:
        Counter.step = step  # type: ignore[method-assign]
    assert model.learn(64).num_timesteps == 64
    env.close()


@pytest.mark.parametrize("moment", ["between", "in step_wait", "in get_attr"])
def test_an_interrupt(moment: str) -> None:
    """Ctrl-C while workers are busy: their late answers are not taken for answers to later questions."""
    # Ignored in what a shell has started in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    env = make()
    env.reset()
    if moment == "between":
        env.step_async(actions(e3=Counter.SLEEP))
    else:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        env.step_async(actions(e3=Counter.SLEEP))
        with pytest.raises(KeyboardInterrupt):
            env.step_wait() if moment == "in step_wait" else env.get_attr("steps")
    assert env.get_attr("steps", indices=[2, 3]) == [1, 1]
    observations = env.step(actions())[0]
    assert observations[2:].ravel().tolist() == [2, 2]
    assert env.reset().ravel().tolist() == [0] * 4
    assert env.step(actions())[0].ravel().tolist() == [1] * 4
    env.close()
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_steps_by_any_way(ordered: bool, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors of both kinds: infos of any length, actions as they were given."""
    monkeypatch.setattr(worker, "ORDERED", ordered)
    env = make(cls=Verbose)
    env.reset()
    for step in range(1, 8):
        given = np.linspace(0.1, 0.2 * step, 4, dtype=kind)[:, None]
        observations, rewards, _, infos = env.step(given)
        assert observations.ravel().tolist() == rewards.tolist() == [step] * 4
        for info, action in zip(infos, given, strict=True):
            assert info["action"].dtype == kind
            assert info["action"].tolist() == action.tolist()
            assert info["map"] is None if step % 3 else info["map"][-1] == 59_999 + step
    env.close()
    with pytest.raises(WorkerError, match="were closed"):
        env.step(actions())


def test_waiting_for_a_step_that_was_not_begun_is_refused() -> None:
    env = make()
    env.reset()
    with pytest.raises(RuntimeError, match="step_async"):
        env.step_wait()
    with pytest.raises(KeyError):
        env.step(actions(e0=Counter.FAIL))
    with pytest.raises(RuntimeError, match="step_async"):
        env.step_wait()
    env.step_async(actions())
    assert env.get_attr("steps", indices=3) == [2], "a question gives the step up that is under way"
    with pytest.raises(RuntimeError, match="step_async"):
        env.step_wait()
    env.close()


def test_interrupts_at_any_moment_lose_messages_but_never_mix_them() -> None:
    """Every answer belongs to its question, through a hundred interrupts of large messages."""
    env = make(2)
    large = np.arange(50_000)
    stop = threading.Event()

    def interrupt() -> None:
        rng = np.random.default_rng(0)
        while not stop.wait(float(rng.uniform(0.0, 0.05))):
            os.kill(os.getpid(), signal.SIGUSR1)

    def raise_interrupt(*_: Any) -> None:
        if not stop.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, raise_interrupt)
    thread = threading.Thread(target=interrupt)
    answered = interrupted = 0
    try:
        thread.start()
        while interrupted < 100 or not answered:
            try:
                number = answered + interrupted
                (answer,) = env.env_method("echo", large + number, indices=1)
                assert answer[0] == number
                assert len(answer) == len(large)
                answered += 1
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        while True:
            try:
                stop.set()
                thread.join()
                break
            except KeyboardInterrupt:
                continue
        signal.signal(signal.SIGUSR1, before)
    assert env.env_method("echo", 5) == [5, 5]
    env.close()


def test_a_dead_worker_is_named_by_every_call() -> None:
    env = make()
    env.reset()
    calls: list[Callable[[], Any]] = [
        lambda: env.step(actions(e3=Counter.DIE)),
        lambda: env.step(actions()),
        env.reset,
        lambda: env.get_attr("steps"),
        lambda: env.env_method("echo", 1, indices=3),
    ]
    for call in calls:
        with pytest.raises(WorkerError, match="environments 2 to 3 has died"):
            call()
    env.close()
    with pytest.raises(WorkerError, match="were closed"):
        env.reset()


def worker_of(env: Any) -> int:
    """The process of the last environment."""
    env.reset()
    (pid,) = {info["pid"] for info in env.step(actions(env.num_envs))[3]} - {os.getpid()}
    return int(pid)


def test_environments_that_are_dropped_take_their_workers_along() -> None:
    pids = []
    for _ in range(3):
        env = make()
        assert env.reset().ravel().tolist() == [0] * 4
        pids.append(worker_of(env))
        del env
    gc.collect()
    wait_until_dead(pids)


def test_failing_to_make_an_environment_leaves_no_worker() -> None:
    def first_fails() -> Any:
        raise OSError("no such robot")

    children = set(os.listdir(f"/proc/{os.getpid()}/task/{os.getpid()}"))
    with pytest.raises(OSError, match="no such robot"):
        WorkerVecEnv([Counter, first_fails], n_processes=2)
    with pytest.raises(OSError, match="no such robot"):
        WorkerVecEnv([first_fails, Counter], n_processes=2)
    assert set(os.listdir(f"/proc/{os.getpid()}/task/{os.getpid()}")) == children


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_workers_do_not_outlive_their_parent(end: str, fresh_process: Forks, tmp_path: Path) -> None:
    """However it ends, and although it has forked another process, which inherits its sockets."""
    program = f"""
        import os, time, sppo
        os.environ["OMP_NUM_THREADS"] = "2"
        from tests.envs.test_workers import worker_of
        from tests.envs.chain_env import Counter
        env = sppo.make_vec_env(Counter, 2, backend="subproc")
        print(worker_of(env), flush=True)
        if os.fork() == 0:
            os.close(1), os.close(2), time.sleep(20), os._exit(0)
        {end}
        """
    done = fresh_process.run(textwrap.dedent(program), tmp_path)
    wait_until_dead([int(done.out.split()[0])])


def test_a_script_without_a_main_guard_and_its_own_environments() -> None:
    """Classes and registrations of the script reach the workers, and the script is not run again."""
    done = run(
        """
        import gymnasium as gym, numpy as np, sppo
        from tests.envs.chain_env import Counter

        class Line(gym.spaces.Box):
            pass

        class Mine(Counter):
            def __init__(self):
                super().__init__()
                self.observation_space = Line(0.0, np.inf, (1,), np.float32)

            def echo(self, value):
                return (type(self).__name__, value, Point(3))

        class Point:
            def __init__(self, x):
                self.x = x

        print("script")
        gym.register("Mine-v0", entry_point="__main__:Mine")
        env = sppo.make_vec_env("Mine-v0", 4, seed=1, backend="subproc")
        env.reset()
        print([(a, b(1), type(c) is Point, c.x) for a, b, c in env.env_method("echo", lambda x: x + 1)])
        env.close()
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["script", str([("Mine", 2, True, 3)] * 4)]


def test_environments_that_use_torch_after_the_training_has() -> None:
    done = run(
        """
        import torch as th, sppo
        from tests.envs.chain_env import Torch
        th.set_num_threads(4)
        weights = th.ones((800, 800), requires_grad=True)
        (weights @ weights).sum().backward()
        env = sppo.make_vec_env(Torch, 4, backend="subproc")
        print(env.reset().mean())
        env.close()
        """,
        OMP_NUM_THREADS="4",
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 1.0


def test_workers_of_plain_environments_do_not_import_torch(fresh_process: Forks, tmp_path: Path) -> None:
    """Which is why they start in a third of a second, and take 50 MB each instead of 200."""
    program = """
        import glob, os, sppo
        os.environ["OMP_NUM_THREADS"] = "2"
        env = sppo.make_vec_env("Pendulum-v1", 2, backend="subproc")
        env.reset()
        for path in glob.glob("/proc/[0-9]*/stat"):
            fields = open(path).read().rsplit(")", 1)[1].split()
            if int(fields[1]) == os.getpid():
                print("libtorch" in open(path[:-4] + "maps").read())
        env.close()
        """
    done = fresh_process.run(textwrap.dedent(program), tmp_path)
    assert done.out.splitlines() == ["False"], done.err


def test_process_wide_generators_of_workers_follow_the_seed() -> None:
    rewards = []
    for _ in range(2):
        env = WorkerVecEnv([Dice] * 4, n_processes=2)
        env.seed(3)
        env.reset()
        rewards.append([env.step(actions())[1][2:].tolist() for _ in range(3)])
        env.close()
    assert rewards[0] == rewards[1]
    assert len(np.unique(rewards[0])) == 6


def test_large_answers_go_through_in_pieces() -> None:
    """Images of megabytes: longer than what a socket takes at once."""
    env = make()
    image = np.arange(3_000_000) % 251
    for answer in env.env_method("echo", image):
        np.testing.assert_array_equal(answer, image)
    env.close()
