"""A step of ``VecNormalize`` without its dozens of small NumPy calls; same statistics, same outputs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sppo.engine.coverage import Unsupported, check_pristine
from sppo.engine.networks import clip, exact, exact_inline


def stepper(env: VecEnv) -> Callable[[np.ndarray], VecEnvStepReturn]:
    """``env.step``, with the arithmetic compiled if ``env`` is a ``VecNormalize`` as upstream wrote it."""
    if type(env) is not VecNormalize:
        return env.step
    statistics: Any = getattr(env, "obs_rms", None)
    keys = list(statistics) if isinstance(statistics, dict) else None
    every = [statistics] if keys is None else list(statistics.values())
    if not every or keys != env.norm_obs_keys or any(type(one) is not RunningMeanStd for one in every):
        return env.step
    try:
        check_pristine(env)
    except Unsupported:
        return env.step
    ends = [0, *itertools.accumulate(one.mean.size for one in every)]
    columns = [slice(start, end) for start, end in itertools.pairwise(ends)]
    return functools.partial(_fast_step, env, keys, columns)


def _fast_step(
    env: VecNormalize, keys: list[str] | None, columns: list[slice], actions: np.ndarray
) -> VecEnvStepReturn:
    """``env.step``.

    :param keys: the parts of a dictionary that are normalised; ``None`` if observations are arrays
    :param columns: where these parts are when they stand side by side
    """
    if not env.norm_obs:
        return env.step(actions)
    env.venv.step_async(actions)
    obs: Any
    obs, rewards, dones, infos = env.venv.step_wait()
    statistics: Any = env.obs_rms
    env.old_obs, env.old_reward = obs, rewards
    if keys is None:
        (obs,), rewards = _normalize(env, [statistics], [obs], columns, rewards)
    else:
        every, before = [statistics[key] for key in keys], [obs[key] for key in keys]
        after, rewards = _normalize(env, every, before, columns, rewards)
        obs = type(obs)((key, part.copy()) for key, part in obs.items())
        obs.update(zip(keys, after, strict=True))
    if dones.any():
        for index in np.flatnonzero(dones):
            if "terminal_observation" in infos[index]:
                infos[index]["terminal_observation"] = env.normalize_obs(infos[index]["terminal_observation"])
        env.returns[dones] = 0
    return obs, rewards, dones, infos


def _normalize(
    env: VecNormalize,
    statistics: list[RunningMeanStd],
    parts: list[np.ndarray],
    columns: list[slice],
    rewards: np.ndarray,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Parts of the observations, and the rewards."""
    rows, ret_rms = len(rewards), env.ret_rms
    flat = [part.reshape(rows, -1) for part in parts]
    obs = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1, dtype=np.float64)
    moments = np.empty((3, obs.shape[1] + 1))
    for rms, column in zip(statistics, columns, strict=True):
        moments[0, column], moments[1, column] = rms.mean.ravel(), rms.var.ravel()
        moments[2, column] = rms.count
    moments[:, -1] = ret_rms.mean, ret_rms.var, ret_rms.count
    returns = np.array(env.returns, np.float64)
    normalized, scaled = np.empty(obs.shape, np.float32), np.empty(rewards.shape, np.float32)
    _normalize_step(
        *(float(env.clip_obs), float(env.clip_reward), float(env.gamma), float(env.epsilon)),
        bool(env.training),
        *(obs, rewards, returns, moments, normalized, scaled),
    )
    if env.training:
        env.returns = returns
        for rms, column in zip(statistics, columns, strict=True):
            rms.mean = moments[0, column].reshape(rms.mean.shape)
            rms.var = moments[1, column].reshape(rms.var.shape)
            rms.count += rows
        ret_rms.mean, ret_rms.var = moments[:2, -1]
        ret_rms.count += rows
    after = [normalized[:, column].reshape(part.shape) for part, column in zip(parts, columns, strict=True)]
    return after, scaled if env.norm_reward else rewards.astype(np.float32)


@exact
def _normalize_step(
    clip_obs: float,
    clip_reward: float,
    gamma: float,
    epsilon: float,
    training: bool,
    obs: np.ndarray,
    rewards: np.ndarray,
    returns: np.ndarray,
    moments: np.ndarray,
    out: np.ndarray,
    out_rewards: np.ndarray,
) -> None:
    """Everything ``VecNormalize`` does with the numbers of a step (float64 arithmetic, float32 out).

    :param returns: discounted sums of rewards so far, brought up to date here
    :param moments: mean and variance of each observation, then of the returns, brought up to date here,
        and how many numbers they describe, which is not
    """
    rows, width = obs.shape
    if training:
        for b in range(rows):
            returns[b] = returns[b] * gamma + rewards[b]
        _update(moments, width, returns)
    root = np.sqrt(moments[1, width] + epsilon)
    for b in range(rows):
        out_rewards[b] = clip(rewards[b] / root, -clip_reward, clip_reward)
    for j in range(width):
        if training:
            _update(moments, j, obs[:, j])
        root = np.sqrt(moments[1, j] + epsilon)
        for b in range(rows):
            out[b, j] = clip((obs[b, j] - moments[0, j]) / root, -clip_obs, clip_obs)


@exact_inline
def _update(moments: np.ndarray, j: int, new: np.ndarray) -> None:
    """Column ``j`` of the moments with ``new`` numbers added."""
    rows = new.shape[0]
    total, squares = 0.0, 0.0
    for b in range(rows):
        total += new[b]
    for b in range(rows):
        distance = new[b] - total / rows
        squares += distance * distance
    mean, var, count = moments[0, j], moments[1, j], moments[2, j]
    delta = total / rows - mean
    both = count + rows
    moments[0, j] = mean + delta * rows / both
    moments[1, j] = (var * count + squares + delta * delta * count * rows / both) / both
