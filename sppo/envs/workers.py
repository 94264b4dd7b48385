"""The processes behind :class:`sppo.envs.worker_vec_env.WorkerVecEnv`, and the memory they share."""

from __future__ import annotations

import os
import platform
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper
from stable_baselines3.common.vec_env.patch_gym import _patch_env

from sppo.engine.forking import quiet_start
from sppo.envs.infos import InfoCodec

EnvFn = Callable[[], gym.Env]

#: how long a process looks for work before it sleeps: longer than a policy needs, shorter than an update
SPIN_SECONDS = 4e-4
#: how often a sleeping process looks up by itself, to notice that its parent is gone
NAP_SECONDS = 0.05
STEP, MESSAGE = 0, 1

#: let another process have the core, if one waits for it
give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class Board:
    """The shared memory: one row per environment, and each worker's counters."""

    def __init__(self, raw: Any, space: dict[str, tuple[tuple[int, ...], Any]]) -> None:
        offset = 0
        for name, (shape, dtype) in space.items():
            count = int(np.prod(shape))
            view = np.frombuffer(raw, dtype, count, offset).reshape(shape)
            setattr(self, name, view)
            offset += -(-view.nbytes // 64) * 64

    actions: np.ndarray
    observations: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray
    infos: np.ndarray
    info_kinds: np.ndarray
    kinds: np.ndarray
    requests: np.ndarray
    answers: np.ndarray
    asleep: np.ndarray
    mail: np.ndarray

    @staticmethod
    def layout(n_envs: int, n_workers: int, obs: Any, action: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Names, shapes and types of the parts."""
        # One cache line per worker and counter, so that spinning processes do not disturb each other.
        lines = (max(n_workers, 1), 8)
        return {
            "observations": ((n_envs, *obs.shape), obs.dtype),
            "actions": ((n_envs, *action.shape), action.dtype),
            "rewards": ((n_envs,), np.float32),
            "dones": ((n_envs,), np.bool_),
            "infos": ((n_envs, InfoCodec.CAPACITY), np.float64),
            "info_kinds": ((n_envs,), np.int64),
            **dict.fromkeys(("kinds", "requests", "answers", "asleep", "mail"), (lines, np.int64)),
        }

    @staticmethod
    def size(space: dict[str, tuple[tuple[int, ...], Any]]) -> int:
        """Bytes the parts need, each from the start of a cache line."""
        return sum(-(-int(np.prod(s)) * np.dtype(d).itemsize // 64) * 64 for s, d in space.values())


class Crew:
    """Some of the environments, stepped one after the other in the process that holds them."""

    def __init__(self, env_fns: Sequence[EnvFn], first: int, board: Board | None) -> None:
        self.envs = [_patch_env(fn()) for fn in env_fns]
        self.first = first
        self.board = board
        self.codec = InfoCodec()

    def step(self) -> list[dict[str, Any]]:
        """Step all environments by the board's actions; returns their infos."""
        board = self.board
        assert board is not None
        infos = []
        for index, env in enumerate(self.envs, self.first):
            obs, reward, terminated, truncated, info = env.step(board.actions[index].copy())
            done = terminated or truncated
            info = dict(info)
            info["TimeLimit.truncated"] = truncated and not terminated
            if done:
                info["terminal_observation"] = obs
                obs, reset_info = env.reset()
                info["_reset_info"] = reset_info
            board.observations[index] = obs
            board.rewards[index] = reward
            board.dones[index] = done
            infos.append(info)
        return infos

    def reset(self, seeds: Sequence[int | None], options: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Reset all environments; returns their infos."""
        assert self.board is not None
        infos = []
        for index, (env, seed, option) in enumerate(zip(self.envs, seeds, options, strict=True), self.first):
            obs, info = env.reset(seed=seed, **({"options": option} if option else {}))
            self.board.observations[index] = obs
            infos.append(info)
        return infos

    def call(self, what: str, name: Any, local: int, *args: Any, **kwargs: Any) -> Any:
        """Read, set or call something of one environment."""
        env = self.envs[local]
        if what == "get":
            return env.get_wrapper_attr(name)
        if what == "set":
            return setattr(env, name, args[0])
        if what == "wrapped":
            return is_wrapped(env, name)
        return env.get_wrapper_attr(name)(*args, **kwargs)


def available_processes() -> int:
    """Processes a training may use: the cores it may run on, and not more than ``OMP_NUM_THREADS``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdigit() and int(limit) > 0 else cores


def idle_cores(samples: int = 20, pause: float = 1e-3) -> float:
    """Cores nobody is using just now, this process's own counted as idle; all of them if unknown.

    The scheduler's count of runnable processes, seen a few times within some milliseconds. (The load
    average would still remember a training that ended a minute ago.)
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    others = 0
    try:
        for _ in range(samples):
            with open("/proc/loadavg") as file:
                others += int(file.read().split()[3].split("/")[0]) - 1
            time.sleep(pause)
    except (OSError, ValueError, IndexError):
        return cores
    return max(cores - others / samples, 0.0)


def keeps_order_of_writes() -> bool:
    """Whether another process sees this one's writes to memory in the order in which they were made.

    The counters on the :class:`Board` rely on it; other processors than x86 do not promise it.
    """
    return platform.machine().lower() in ("x86_64", "amd64")


def start_worker(
    context: Any, fns: Sequence[EnvFn], first: int, worker: int, raw: Any, space: Any
) -> tuple[Any, Any, Any]:
    """Start a process for some environments; returns it, this end of its pipe, and the bell to wake it."""
    here, there = context.Pipe()
    bell = context.Semaphore(0)
    args = (CloudpickleWrapper(list(fns)), first, worker, raw, space, there, bell, os.getpid())
    process = context.Process(target=_work, args=args, daemon=True)
    quiet_start(process)
    there.close()
    return process, here, bell


def _work(fns: Any, first: int, worker: int, raw: Any, space: Any, pipe: Any, bell: Any, parent: int) -> None:
    """A worker's life: wait for a request, answer it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    board = Board(raw, space)
    try:
        crew = Crew(fns.var, first, board)
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
        return
    pipe.send(("ready", None))
    seen = 0
    while _wait_for_request(board, worker, seen, bell, parent):
        seen += 1
        try:
            if board.kinds[worker, 0] == STEP:
                mail = _encode(crew, crew.step())
            else:
                what, args, kwargs = pipe.recv()
                if what == "close":
                    for env in crew.envs:
                        env.close()
                mail = None if what == "close" else getattr(crew, what)(*args, **kwargs)
                pipe.send(("result", mail))
                mail = None
            board.mail[worker, 0] = mail is not None
            if mail is not None:
                pipe.send(("infos", mail))
        except BaseException:
            board.mail[worker, 0] = 1
            pipe.send(("error", traceback.format_exc()))
        board.answers[worker, 0] = seen


def _wait_for_request(board: Board, worker: int, seen: int, bell: Any, parent: int) -> bool:
    """Return ``True`` on a new request, ``False`` if the parent has gone."""
    requests, asleep = board.requests[worker], board.asleep[worker]
    deadline = time.perf_counter() + SPIN_SECONDS
    while requests[0] == seen:
        give_way()
        if time.perf_counter() < deadline:
            continue
        asleep[0] = 1
        # The nap's end also covers a request that was made just before the flag became visible.
        while requests[0] == seen and not bell.acquire(timeout=NAP_SECONDS):
            if os.getppid() != parent:
                return False
        asleep[0] = 0
        deadline = time.perf_counter() + SPIN_SECONDS
    return True


def _encode(crew: Crew, infos: list[dict[str, Any]]) -> list[tuple[int, Any, Any]] | None:
    """Put numeric infos on the board; what does not fit there goes by mail, as do new forms of infos."""
    assert crew.board is not None
    mail = []
    for index, info in enumerate(infos, crew.first):
        kind, form = crew.codec.encode(info, crew.board.infos[index])
        crew.board.info_kinds[index] = kind
        if form is not None or kind < 0:
            mail.append((index, form, info if kind < 0 else None))
    return mail or None
