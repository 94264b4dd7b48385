"""``make_vec_env``: Stable-Baselines3's, with the fastest way to step the environments chosen for you."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common import env_util
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from sppo.engine.forking import can_fork
from sppo.envs.worker_vec_env import WorkerVecEnv
from sppo.envs.workers import available_processes, idle_cores, keeps_order_of_writes

Backend = Literal["auto", "gymnasium", "envpool", "subproc"]
BACKENDS: tuple[str, ...] = get_args(Backend)

#: what a step of :class:`WorkerVecEnv` costs on top of the slowest process's environments, roughly
MEETING_SECONDS = 60e-6
_PROBE_STEPS = 20


class InProcessVecEnv(DummyVecEnv):
    """``DummyVecEnv`` that hands out the arrays and infos of a step without deep copies of them."""

    def step_wait(self) -> Any:
        n_envs = self.num_envs
        simple = self.keys[0] is None
        rewards, dones = np.empty(n_envs, np.float32), np.empty(n_envs, np.bool_)
        infos = []
        observations = np.empty_like(self.buf_obs[self.keys[0]]) if simple else None
        for index, (env, action) in enumerate(zip(self.envs, self.actions, strict=True)):
            obs, rewards[index], terminated, truncated, info = env.step(action)
            info = dict(info)
            done = terminated or truncated
            dones[index] = done
            info["TimeLimit.truncated"] = truncated and not terminated
            if done:
                info["terminal_observation"] = obs
                obs, self.reset_infos[index] = env.reset()
            if observations is not None:
                observations[index] = obs
            else:
                self._save_obs(index, obs)
            infos.append(info)
        return (self._obs_from_buf() if observations is None else observations), rewards, dones, infos


def make_vec_env(
    env_id: str | Callable[..., gym.Env],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[[gym.Env], gym.Env] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env_cls: type[DummyVecEnv | SubprocVecEnv] | None = None,
    vec_env_kwargs: dict[str, Any] | None = None,
    monitor_kwargs: dict[str, Any] | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    *,
    backend: Backend = "auto",
) -> VecEnv:
    """Make ``n_envs`` environments wrapped in ``Monitor``, as Stable-Baselines3's function does.

    :param env_id: an environment's id, or a function that makes one
    :param n_envs: how many
    :param seed: seed of the first; the others count up from it
    :param vec_env_cls: a class of vectorised environments to use instead of choosing a backend
    :param backend: ``"gymnasium"`` steps them one after the other in this process; ``"subproc"`` in as
        many processes as there are cores (``OMP_NUM_THREADS`` limits it), through shared memory where
        spaces and machine allow it; ``"envpool"`` uses EnvPool's own C++ implementations of the
        environments; ``"auto"`` chooses between the first two by how long a step takes and whether a
        core is idle. The trajectories do not depend on which of those two it is.

    The other parameters are Stable-Baselines3's.
    """
    if backend not in BACKENDS:
        options = ", ".join(f'backend="{name}"' for name in BACKENDS)
        raise ValueError(f"unknown backend={backend!r}: write one of {options}")
    if backend == "envpool":
        from sppo.envs.envpool_adapter import make_envpool

        foreign = {"monitor_dir": monitor_dir, "wrapper_class": wrapper_class, "vec_env_cls": vec_env_cls}
        return make_envpool(env_id, n_envs, seed, env_kwargs, **foreign)
    kind: Any = vec_env_cls
    if kind is None:
        parallel = backend == "subproc" or (
            backend == "auto" and _gains_from_processes(env_id, n_envs, env_kwargs)
        )
        kind = _in_processes if parallel else InProcessVecEnv
    return env_util.make_vec_env(
        *(env_id, n_envs, seed, start_index, monitor_dir, wrapper_class, env_kwargs),
        *(kind, vec_env_kwargs, monitor_kwargs, wrapper_kwargs),
    )


def _in_processes(env_fns: list[Callable[[], gym.Env]], **options: Any) -> VecEnv:
    """Through shared memory if the spaces are plain arrays of fixed size, else upstream's processes."""
    env = env_fns[0]()
    plain = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    fits = isinstance(env.observation_space, plain) and isinstance(env.action_space, plain)
    env.close()
    kind: Any = WorkerVecEnv if fits and keeps_order_of_writes() else SubprocVecEnv
    return kind(env_fns, **options)


def _gains_from_processes(
    env_id: str | Callable[..., gym.Env], n_envs: int, env_kwargs: dict[str, Any] | None
) -> bool:
    """Whether the time that further processes save per step is more than their meeting costs."""
    processes = min(available_processes(), n_envs)
    # Processes of a pool may not have children, a function may make something too dear to try, and a
    # script that is not written for it cannot be imported anew by a process that was not forked.
    if processes < 2 or not isinstance(env_id, str) or mp.current_process().daemon:
        return False
    if not (can_fork() and keeps_order_of_writes()) or (env_kwargs or {}).get("render_mode") == "human":
        return False
    env = gym.make(env_id, **(env_kwargs or {}))
    action = env.action_space.sample()
    env.reset()
    durations = []
    for _ in range(_PROBE_STEPS):
        start = time.perf_counter()
        _, _, terminated, truncated, _ = env.step(action)
        durations.append(time.perf_counter() - start)
        if terminated or truncated:
            env.reset()
    env.close()
    if idle_cores() < 1.5:
        return False
    saved = n_envs - -(-n_envs // processes)
    return float(np.median(durations)) * saved > MEETING_SECONDS
