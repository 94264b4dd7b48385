"""Compiled bookkeeping of a rollout: advantages, and the statistics of ``VecNormalize``.

Unlike the networks' kernels these keep strictly to the written order of operations, so that their
results are Stable-Baselines3's.
"""

from __future__ import annotations

import numpy as np

from sppo.compiled import njit

_exact = njit(error_model="numpy", nogil=True, no_cfunc_wrapper=True)
_inline = njit(error_model="numpy", nogil=True, no_cfunc_wrapper=True, no_cpython_wrapper=True, cache=False)

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@_exact
def advantages_and_returns(
    rewards: np.ndarray,
    values: np.ndarray,
    episode_starts: np.ndarray,
    last_values: np.ndarray,
    last_starts: np.ndarray,
    gamma: np.float32,
    decay: np.float32,
    advantages: np.ndarray,
    returns: np.ndarray,
) -> None:
    r"""Generalised advantage estimation, :math:`A_t = \delta_t + \gamma\lambda A_{t+1}`, in place.

    The operations and their order are Stable-Baselines3's, in float32. ``decay`` is ``gamma * lambda``.
    """
    steps, n_envs = rewards.shape
    for e in range(n_envs):
        running = _ZERO
        for t in range(steps - 1, -1, -1):
            last = t == steps - 1
            go_on = _ONE - (last_starts[e] if last else episode_starts[t + 1, e])
            following = last_values[e] if last else values[t + 1, e]
            delta = rewards[t, e] + gamma * following * go_on - values[t, e]
            running = delta + decay * go_on * running
            advantages[t, e] = running
            returns[t, e] = running + values[t, e]


@_exact
def normalize_step(
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
        out_rewards[b] = _clip(rewards[b] / root, clip_reward)
    for j in range(width):
        if training:
            _update(moments, j, obs[:, j])
        root = np.sqrt(moments[1, j] + epsilon)
        for b in range(rows):
            out[b, j] = _clip((obs[b, j] - moments[0, j]) / root, clip_obs)


@_inline
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


@_inline
def _clip(x: float, limit: float) -> float:
    x = limit if x > limit else x
    return -limit if x < -limit else x
