"""Compiled bookkeeping of a rollout: advantages, and the statistics of ``VecNormalize``.

Unlike the networks' kernels these keep strictly to the written order of operations, so that their
results are Stable-Baselines3's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sppo.compiled import njit

_OPTIONS: Any = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
_exact = njit(**_OPTIONS)
_inline = njit(**{**_OPTIONS, "no_cpython_wrapper": True}, cache=False)

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@_exact
def advantages_and_returns(
    rewards: np.ndarray,
    values: np.ndarray,
    episode_starts: np.ndarray,
    last_values: np.ndarray,
    last_starts: np.ndarray,
    gamma: float,
    decay: float,
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


class Scaling(NamedTuple):
    """The settings of a ``VecNormalize``, under its names."""

    gamma: float
    epsilon: float
    clip_obs: float
    clip_reward: float
    norm_reward: bool
    training: bool


@_inline
def _merge(
    total: float, squares: float, rows: int, mean: float, var: float, count: float
) -> tuple[float, float]:
    """Mean and variance of what ``mean``, ``var`` and ``count`` describe together with ``rows`` more.

    :param total: sum of the new numbers
    :param squares: sum of the squares of their distances from their own mean
    """
    delta = total / rows - mean
    both = count + rows
    merged = mean + delta * rows / both
    return merged, (var * count + squares + delta * delta * count * rows / both) / both


@_inline
def _sums(column: np.ndarray) -> tuple[float, float]:
    """Sum, and sum of the squared distances from the mean."""
    total, squares = 0.0, 0.0
    for b in range(column.shape[0]):
        total += column[b]
    for b in range(column.shape[0]):
        distance = column[b] - total / column.shape[0]
        squares += distance * distance
    return total, squares


@_exact
def normalize_step(
    scaling: Scaling,
    obs: np.ndarray,
    rewards: np.ndarray,
    returns: np.ndarray,
    moments: np.ndarray,
    counts: np.ndarray,
    out: np.ndarray,
    out_rewards: np.ndarray,
) -> None:
    """Everything ``VecNormalize`` does with the numbers of a step (float64 arithmetic, float32 out).

    :param returns: discounted sums of rewards so far, brought up to date here
    :param moments: mean and variance of each observation, then of the returns, brought up to date here
    :param counts: how many observations and returns these describe
    """
    rows, width = obs.shape
    if scaling.training:
        for b in range(rows):
            returns[b] = returns[b] * scaling.gamma + rewards[b]
        total, squares = _sums(returns)
        moments[0, width], moments[1, width] = _merge(
            total, squares, rows, moments[0, width], moments[1, width], counts[1]
        )
    root = np.sqrt(moments[1, width] + scaling.epsilon)
    for b in range(rows):
        scaled = _clip(rewards[b] / root, scaling.clip_reward)
        out_rewards[b] = scaled if scaling.norm_reward else rewards[b]
    for j in range(width):
        if scaling.training:
            total, squares = _sums(obs[:, j])
            moments[0, j], moments[1, j] = _merge(
                total, squares, rows, moments[0, j], moments[1, j], counts[0]
            )
        root = np.sqrt(moments[1, j] + scaling.epsilon)
        for b in range(rows):
            out[b, j] = _clip((obs[b, j] - moments[0, j]) / root, scaling.clip_obs)


@_inline
def _clip(x: float, limit: float) -> float:
    x = limit if x > limit else x
    return -limit if x < -limit else x
