"""A step of ``VecNormalize`` without its dozens of small NumPy calls; same statistics, same outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sppo.engine import bookkeeping
from sppo.engine.coverage import Unsupported, check_pristine

Step = tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]


def stepper(env: VecEnv) -> Callable[[np.ndarray], Step]:
    """``env.step``, with the arithmetic compiled if ``env`` is a ``VecNormalize`` as upstream wrote it."""
    if type(env) is not VecNormalize or type(getattr(env, "obs_rms", None)) is not RunningMeanStd:
        return env.step
    try:
        check_pristine(env)
    except Unsupported:
        return env.step
    return functools.partial(_fast_step, env)


def _fast_step(env: VecNormalize, actions: np.ndarray) -> Step:
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
    width = obs_rms.mean.size
    moments = np.empty((2, width + 1))
    moments[0, :width], moments[1, :width] = obs_rms.mean.ravel(), obs_rms.var.ravel()
    moments[0, width], moments[1, width] = ret_rms.mean, ret_rms.var
    counts = np.array([obs_rms.count, ret_rms.count])
    scaling = bookkeeping.Scaling(
        *(float(env.gamma), float(env.epsilon), float(env.clip_obs), float(env.clip_reward)),
        *(bool(env.norm_reward), bool(env.training)),
    )
    normalized, scaled = np.empty(obs.shape, np.float32), np.empty(rewards.shape, np.float32)
    rows = len(obs)
    returns = np.array(env.returns, np.float64)
    bookkeeping.normalize_step(
        *(scaling, obs.reshape(rows, width), rewards, returns, moments, counts),
        *(normalized.reshape(rows, width), scaled),
    )
    if env.training:
        env.returns = returns
        obs_rms.mean = moments[0, :width].reshape(obs_rms.mean.shape)
        obs_rms.var = moments[1, :width].reshape(obs_rms.var.shape)
        ret_rms.mean, ret_rms.var = moments[0, width], moments[1, width]
        obs_rms.count += rows
        ret_rms.count += rows
    return normalized, scaled
