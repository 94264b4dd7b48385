"""EnvPool's environments (C++, stepped by its own threads) behind Stable-Baselines3's interface.

EnvPool implements environments anew, so trajectories agree with Gymnasium's in distribution, not bit by
bit, and there are no Python objects behind them to read or wrap.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from sppo.envs.cores import available_processes


def make_envpool(
    env_id: str,
    n_envs: int = 1,
    seed: int | None = None,
    env_kwargs: dict[str, object] | None = None,
    unsupported: Sequence[str] = (),
) -> VecEnv:
    """Make ``n_envs`` EnvPool environments; its wrappers are its own, so Gymnasium's are refused.

    :param unsupported: arguments that the user gave and EnvPool does not know
    """
    if unsupported:
        names = ", ".join(unsupported)
        raise ValueError(f'backend="envpool" does not take {names}: write backend="gymnasium" instead')
    try:
        import envpool
    except ImportError as error:
        raise ImportError('backend="envpool" needs EnvPool: pip install ".[envpool]"') from error
    options = {**({} if seed is None else {"seed": seed}), **(env_kwargs or {})}
    threads = min(available_processes(), n_envs)
    with warnings.catch_warnings():
        # EnvPool gives Gymnasium the bounds of float32 spaces as float64.
        warnings.filterwarnings("ignore", message=".*precision lowered by casting")
        pool = envpool.make_gymnasium(env_id, num_envs=n_envs, num_threads=threads, **options)
        return VecMonitor(EnvPoolVecEnv(pool, n_envs))


class EnvPoolVecEnv(VecEnv):
    """Adapter that starts finished episodes again at once, as Stable-Baselines3 expects it."""

    render_mode = None

    def __init__(self, pool: Any, n_envs: int) -> None:
        self._pool = pool
        action_space = pool.action_space
        if isinstance(action_space, spaces.Box):
            low, high = action_space.low.astype(np.float32), action_space.high.astype(np.float32)
            action_space = spaces.Box(low, high, dtype=np.float32)
        super().__init__(n_envs, pool.observation_space, action_space)

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions.astype(self._pool.action_space.dtype)

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, terminated, truncated, extra = self._pool.step(self.actions)
        dones = terminated | truncated
        columns = {
            name: values
            for name, values in extra.items()
            if isinstance(values, np.ndarray) and len(values) == self.num_envs
        }
        columns["TimeLimit.truncated"] = (truncated & ~terminated).tolist()
        infos = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        if dones.any():
            ended, obs = np.flatnonzero(dones), obs.copy()
            for index in ended:
                infos[index]["terminal_observation"] = obs[index].copy()
            obs[ended], _ = self._pool.reset(ended.astype(np.int32))
        return obs, rewards.astype(np.float32), dones, infos

    def reset(self) -> np.ndarray:
        return self._pool.reset()[0]

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """EnvPool is seeded when it is made; a later seed has no effect."""
        return [None] * self.num_envs

    def close(self) -> None:
        self._pool.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list:
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        raise AttributeError("EnvPool's environments have no attributes to set")

    def env_method(
        self, method_name: str, *args: object, indices: VecEnvIndices = None, **kwargs: object
    ) -> list:
        raise AttributeError(f"EnvPool's environments have no method {method_name!r} to call")

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]
