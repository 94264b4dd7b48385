"""A step of ``VecNormalize`` without its dozens of small NumPy calls; same statistics, same outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sppo.engine import bookkeeping
from sppo.engine.coverage import Unsupported, check_pristine


def stepper(env: VecEnv) -> Callable[[np.ndarray], VecEnvStepReturn]:
    """``env.step``, with the arithmetic compiled if ``env`` is a ``VecNormalize`` as upstream wrote it."""
    if type(env) is not VecNormalize or type(getattr(env, "obs_rms", None)) is not RunningMeanStd:
        return env.step
    try:
        check_pristine(env)
    except Unsupported:
        return env.step
    return functools.partial(_fast_step, env)


def _fast_step(env: VecNormalize, actions: np.ndarray) -> VecEnvStepReturn:
    if not env.norm_obs:
        return env.step(actions)
    env.venv.step_async(actions)
    obs, rewards, dones, infos = env.venv.step_wait()
    if not isinstance(obs, np.ndarray) or obs.dtype not in (np.float32, np.float64):
        raise TypeError(f"VecNormalize needs arrays of floating-point observations, got {type(obs)}")
    env.old_obs, env.old_reward = obs, rewards
    normalized, rewards = _normalize(env, obs, rewards)
    if dones.any():
        for index in np.flatnonzero(dones):
            if "terminal_observation" in infos[index]:
                infos[index]["terminal_observation"] = env.normalize_obs(infos[index]["terminal_observation"])
        env.returns[dones] = 0
    return normalized, rewards, dones, infos


def _normalize(env: VecNormalize, obs: np.ndarray, rewards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    obs_rms, ret_rms = env.obs_rms, env.ret_rms
    assert isinstance(obs_rms, RunningMeanStd)
    rows, width = len(obs), obs_rms.mean.size
    moments = np.empty((2, width + 1))
    moments[0, :width], moments[1, :width] = obs_rms.mean.ravel(), obs_rms.var.ravel()
    moments[0, width], moments[1, width] = ret_rms.mean, ret_rms.var
    returns = np.array(env.returns, np.float64)
    normalized, scaled = np.empty(obs.shape, np.float32), np.empty(rewards.shape, np.float32)
    bookkeeping.normalize_step(
        *(float(env.clip_obs), float(env.clip_reward), float(env.gamma), float(env.epsilon)),
        *(bool(env.training), obs.reshape(rows, width), rewards, returns, moments),
        *(np.array([obs_rms.count, ret_rms.count]), normalized.reshape(rows, width), scaled),
    )
    if env.training:
        env.returns = returns
        obs_rms.mean = moments[0, :width].reshape(obs_rms.mean.shape)
        obs_rms.var = moments[1, :width].reshape(obs_rms.var.shape)
        ret_rms.mean, ret_rms.var = moments[0, width], moments[1, width]
        obs_rms.count += rows
        ret_rms.count += rows
    return normalized, scaled if env.norm_reward else rewards.astype(np.float32)
