"""Compiled bookkeeping of a rollout: advantages, and the statistics of ``VecNormalize``.

Unlike the networks' kernels these keep strictly to the written order of operations, so that their
results are Stable-Baselines3's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_exact = njit(error_model="numpy", nogil=True, cache=True)

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@_exact
def advantages_and_returns(
    rewards: Any,
    values: Any,
    episode_starts: Any,
    last_values: Any,
    last_starts: Any,
    gamma: Any,
    decay: Any,
    advantages: Any,
    returns: Any,
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
def update_moments(batch: Any, mean: Any, var: Any, count: float, new_mean: Any, new_var: Any) -> None:
    """Running mean and variance per column after another batch of rows (float64)."""
    rows = batch.shape[0]
    total = count + rows
    for j in range(batch.shape[1]):
        s = 0.0
        for b in range(rows):
            s += batch[b, j]
        batch_mean = s / rows
        s = 0.0
        for b in range(rows):
            s += (batch[b, j] - batch_mean) * (batch[b, j] - batch_mean)
        batch_var = s / rows
        delta = batch_mean - mean[j]
        new_mean[j] = mean[j] + delta * rows / total
        new_var[j] = (var[j] * count + batch_var * rows + delta * delta * count * rows / total) / total


@_exact
def standardize(batch: Any, mean: Any, var: Any, epsilon: float, limit: float, out: Any) -> None:
    """Rows minus mean over standard deviation, clipped to ``limit``; float64 arithmetic, float32 out."""
    for j in range(batch.shape[1]):
        root = np.sqrt(var[j] + epsilon)
        for b in range(batch.shape[0]):
            x = (batch[b, j] - mean[j]) / root
            x = limit if x > limit else x
            out[b, j] = -limit if x < -limit else x
