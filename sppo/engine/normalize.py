"""A step of ``VecNormalize`` without its dozens of small NumPy calls; same statistics, same outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sppo.engine import bookkeeping

Step = tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]


def fast_step(env: VecEnv, actions: np.ndarray) -> Step:
    """``env.step(actions)``, with the arithmetic compiled if ``env`` is a plain ``VecNormalize``."""
    if type(env) is not VecNormalize or not env.norm_obs or type(env.obs_rms) is not RunningMeanStd:
        return env.step(actions)
    env.venv.step_async(actions)
    obs, rewards, dones, infos = env.venv.step_wait()
    if not isinstance(obs, np.ndarray) or obs.ndim != 2 or obs.dtype not in (np.float32, np.float64):
        raise TypeError(f"expected rows of floating-point observations, got {type(obs)}")
    env.old_obs, env.old_reward = obs, rewards
    if env.training:
        _update(env.obs_rms, obs)
        env.returns = env.returns * env.gamma + rewards
        _update(env.ret_rms, env.returns.reshape(-1, 1))
    normalized = np.empty(obs.shape, np.float32)
    rms = env.obs_rms
    bookkeeping.standardize(obs, rms.mean, rms.var, float(env.epsilon), float(env.clip_obs), normalized)
    rewards = env.normalize_reward(rewards)
    if dones.any():
        for index in np.flatnonzero(dones):
            if "terminal_observation" in infos[index]:
                infos[index]["terminal_observation"] = env.normalize_obs(infos[index]["terminal_observation"])
        env.returns[dones] = 0
    return normalized, rewards, dones, infos


def _update(rms: RunningMeanStd, batch: np.ndarray) -> None:
    shape = np.shape(rms.mean)
    mean, var = np.empty(batch.shape[1]), np.empty(batch.shape[1])
    old_mean, old_var = np.reshape(rms.mean, -1), np.reshape(rms.var, -1)
    bookkeeping.update_moments(batch, old_mean, old_var, float(rms.count), mean, var)
    rms.mean, rms.var = mean.reshape(shape), var.reshape(shape)
    rms.count += len(batch)
