"""``make_vec_env``: Stable-Baselines3's, with the fastest way to step the environments chosen for you."""

from __future__ import annotations

import copy
import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator
from stable_baselines3.common import env_util, monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, patch_gym
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sppo.envs.cores import available_processes, idle_cores
from sppo.envs.group import Board, EnvFn, registered, step_each
from sppo.envs.worker_vec_env import WorkerVecEnv

Backend = Literal["auto", "gymnasium", "envpool", "subproc"]
Options = dict[str, Any] | None
BACKENDS: tuple[str, ...] = get_args(Backend)

#: what EnvPool does not take
_GYMNASIUM_ONLY = ["start_index", "monitor_dir", "wrapper_class", "wrapper_kwargs"]
_GYMNASIUM_ONLY += ["vec_env_kwargs", "monitor_kwargs"]
#: what a step of :class:`WorkerVecEnv` costs on top of the slowest process's environments, roughly
MEETING_SECONDS = 60e-6
_PROBE_STEPS = 20


class InProcessVecEnv(DummyVecEnv):
    """``DummyVecEnv`` that copies the arrays and infos of a step only as deeply as they can change."""

    def __init__(self, env_fns: Sequence[EnvFn]) -> None:
        super().__init__(list(env_fns))
        self._board = Board(self.num_envs, self.observation_space, self.action_space)

    def step_wait(self) -> VecEnvStepReturn:
        infos, reset_infos = step_each(self.envs, self.actions, self._board)
        for index, info in reset_infos.items():
            self.reset_infos[index] = info
        return *self._board.outcome(), infos


def make_vec_env(
    env_id: str | Callable[..., gym.Env],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[[gym.Env], gym.Env] | None = None,
    env_kwargs: Options = None,
    vec_env_cls: type[DummyVecEnv | SubprocVecEnv] | None = None,
    vec_env_kwargs: Options = None,
    monitor_kwargs: Options = None,
    wrapper_kwargs: Options = None,
    *,
    backend: Backend = "auto",
) -> VecEnv:
    """Make ``n_envs`` environments wrapped in ``Monitor``, as Stable-Baselines3's function does.

    :param env_id: an environment's id, or a function that makes one
    :param n_envs: how many
    :param seed: seed of the first; the others count up from it
    :param vec_env_cls: a class of vectorised environments to use instead of choosing a backend
    :param backend: ``"gymnasium"`` steps them one after the other in this process; ``"subproc"`` in as
        many processes as there are cores (``OMP_NUM_THREADS`` limits it); ``"envpool"`` uses EnvPool's own
        C++ implementations of the environments; ``"auto"`` chooses between the first two by how long a
        step takes and whether a core is idle. The trajectories do not depend on which of those two it is.

    The other parameters are Stable-Baselines3's.
    """
    given = locals()
    _check(env_id, n_envs, seed, vec_env_cls, backend)
    if backend == "envpool":
        from sppo.envs.envpool_adapter import make_envpool

        unsupported = [name for name in _GYMNASIUM_ONLY if given[name]]
        return make_envpool(str(env_id), n_envs, seed, env_kwargs, unsupported)
    # A worker that is sent these instead of importing them starts without PyTorch: 0.4 s instead of 2, and
    # 50 MB instead of 200. A wrapper of the user's own might ask for a Monitor by its class.
    by_value = (env_util, monitor, patch_gym) if wrapper_class is None else ()

    def in_processes(env_fns: list[EnvFn], **options: Any) -> VecEnv:
        if sys.platform != "linux":
            return SubprocVecEnv(env_fns, **options)
        try:
            return WorkerVecEnv(_sendable(env_id, env_fns), by_value=by_value, **options)
        except Exception:
            if backend == "subproc":
                raise
            # Environments that exist in this process only; what is wrong with them otherwise shows here.
            return InProcessVecEnv(env_fns, **options)

    kind: Callable[..., VecEnv] = vec_env_cls or InProcessVecEnv
    if backend == "subproc" or (
        backend == "auto" and vec_env_cls is None and _gains_from_processes(env_id, n_envs, env_kwargs)
    ):
        kind = in_processes
    return env_util.make_vec_env(
        *(env_id, n_envs, seed, start_index, monitor_dir, wrapper_class, env_kwargs),
        *(kind, vec_env_kwargs, monitor_kwargs, wrapper_kwargs),  # type: ignore[arg-type]
    )


def _sendable(env_id: str | Callable[..., gym.Env], env_fns: list[EnvFn]) -> list[EnvFn]:
    """The functions, with what other processes have to be told of a name that this program has registered."""
    spec = copy.copy(gym.registry.get(env_id)) if isinstance(env_id, str) else None
    if spec is None:
        return env_fns
    if isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):
        spec.entry_point = load_env_creator(spec.entry_point)  # type: ignore[assignment]
    return [functools.partial(registered, spec, fn) for fn in env_fns]


def _check(env_id: object, n_envs: object, seed: object, vec_env_cls: object, backend: object) -> None:
    """Refuse arguments that would fail, or be ignored, further down."""
    if backend not in BACKENDS:
        options = ", ".join(f'backend="{name}"' for name in BACKENDS)
        raise ValueError(f"unknown backend={backend!r}: write one of {options}")
    if vec_env_cls is not None and backend != "auto":
        raise ValueError(f"vec_env_cls and backend={backend!r} exclude each other: leave one of them out")
    if not isinstance(env_id, str) and (isinstance(env_id, gym.Env) or not callable(env_id)):
        raise ValueError(
            f"env_id={env_id!r} is neither an environment's id nor a function that makes one: "
            'write "CartPole-v1" or lambda: gym.make(...)'
        )
    if backend == "envpool" and not isinstance(env_id, str):
        raise ValueError('backend="envpool" needs an environment id: EnvPool has its own environments')
    if not _is_whole(n_envs, 1):
        raise ValueError(f"n_envs={n_envs!r}: write how many environments to make, a whole number from 1")
    if seed is not None and not _is_whole(seed, 0):
        raise ValueError(f"seed={seed!r}: write a whole number from 0, or None for another one every time")


def _is_whole(value: object, smallest: int) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= smallest)


def _gains_from_processes(env_id: str | Callable[..., gym.Env], n_envs: int, env_kwargs: Options) -> bool:
    """Whether the time that further processes save per step is more than their meeting costs."""
    processes = min(available_processes(), n_envs)
    # A function may make something too dear to try.
    if processes < 2 or not isinstance(env_id, str) or sys.platform != "linux":
        return False
    if (env_kwargs or {}).get("render_mode") == "human":
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
