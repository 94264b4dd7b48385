"""The compiled arithmetic: an epoch of minibatch updates without leaving machine code, and acting.

Arrays are float32 unless said otherwise. The networks are a table of layers, see :mod:`sppo.engine.networks`;
the last layer of the policy is ``heads[0]``, that of the value function ``heads[1]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sppo.compiled import njit
from sppo.engine.distributions import (
    CATEGORICAL,
    GAUSSIAN,
    HALF_LOG_TWO_PI,
    bernoulli,
    categorical,
    gaussian,
    race,
)
from sppo.engine.networks import COLUMN, OPTIONS, backward, forward, inline
from sppo.surrogates import Slope

_entry = njit(**OPTIONS)
_ZERO, _ONE, _HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)


class Objective(NamedTuple):
    """The numbers of the loss; an infinite limit is off."""

    slope: Slope
    clip_range_vf: float
    ent_coef: float
    vf_coef: float
    normalize_advantage: bool
    kl_limit: float


class Adam(NamedTuple):
    """The optimizer's numbers, as PyTorch names them."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    max_grad_norm: float


@inline
def _clip(x: float, low: float, high: float) -> float:
    x = high if x > high else x
    return low if x < low else x


@inline
def _surrogate(slope: Slope, log_ratio: float, ratio: float, advantage: float) -> tuple[float, float, float]:
    """Objective, its derivative by the log-ratio, and the divergence of one sample (float64)."""
    if slope.use_softmax:
        distance, value, rise = log_ratio, advantage * log_ratio, advantage
        clipped = advantage * _clip(log_ratio, -slope.below, slope.above)
        divergence, d_divergence = -log_ratio, -1.0
    else:
        excess = ratio - 1.0
        distance, value, rise = excess, advantage * ratio, advantage * ratio
        clipped = advantage * (1.0 + _clip(excess, -slope.below, slope.above))
        divergence, d_divergence = ratio * log_ratio - excess, ratio * log_ratio
    if (distance > slope.above or distance < -slope.below) and (slope.two_sided or clipped < value):
        value, rise = clipped, 0.0
    if slope.inverse_eta > 0.0:
        value -= slope.inverse_eta * divergence
        rise -= slope.inverse_eta * d_divergence
    return value, rise, divergence


@inline
def _moments(values: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """Mean and sample standard deviation of the values at ``rows``."""
    total, squares = 0.0, 0.0
    for b in range(rows.shape[0]):
        total += np.float64(values[rows[b]])
    mean = total / rows.shape[0]
    for b in range(rows.shape[0]):
        distance = np.float64(values[rows[b]]) - mean
        squares += distance * distance
    return mean, np.sqrt(squares / (rows.shape[0] - 1))


@inline
def _loss(
    kind: int,
    sizes: np.ndarray,
    objective: Objective,
    log_std: np.ndarray,
    out: np.ndarray,
    values: np.ndarray,
    rows: np.ndarray,
    data: tuple[np.ndarray, ...],
    d_out: np.ndarray,
    d_values: np.ndarray,
    d_log_std: np.ndarray,
    d_entropy: np.ndarray,
    measured: Any,
) -> None:
    """Fill the outputs' gradients and ``measured`` for the samples numbered ``rows``."""
    actions, masks, old_values, old_log_prob, advantages, returns = data
    count = rows.shape[0]
    width = d_entropy.shape[0]
    scale, offset = 1.0, 0.0
    if objective.normalize_advantage and count > 1:
        offset, deviation = _moments(advantages, rows)
        scale = 1.0 / (deviation + 1e-8)
    for j in range(d_log_std.shape[0]):
        d_log_std[j] = _ZERO
    ent_weight = np.float32(-objective.ent_coef / count)
    for b in range(count):
        i = rows[b]
        mean, score, action = out[b * width : (b + 1) * width], d_out[b * width : (b + 1) * width], actions[i]
        if kind == GAUSSIAN:
            log_prob, entropy = gaussian(mean, action, log_std, score)
        elif kind == CATEGORICAL:
            log_prob, entropy = categorical(mean, action, sizes, masks[i], score, d_entropy)
        else:
            log_prob, entropy = bernoulli(mean, action, score, d_entropy)
        log_ratio = np.float64(log_prob) - np.float64(old_log_prob[i])
        ratio = np.exp(log_ratio)
        advantage = (advantages[i] - offset) * scale
        value, rise, divergence = _surrogate(objective.slope, log_ratio, ratio, advantage)
        weight = np.float32(-rise / count)
        for j in range(width):
            if kind == GAUSSIAN:
                d_log_std[j] += weight * (score[j] * (action[j] - mean[j]) - _ONE) + ent_weight
                score[j] *= weight
            else:
                score[j] = weight * score[j] + ent_weight * d_entropy[j]
        _measure(objective.slope, measured, value, np.float64(entropy), log_ratio, ratio, divergence)
        change = np.float64(values[b]) - np.float64(old_values[i])
        limit = objective.clip_range_vf
        error = old_values[i] + _clip(change, -limit, limit) - returns[i]
        measured.value_loss += error * error
        inside = change <= limit and change >= -limit
        d_values[b] = np.float32(2.0 * objective.vf_coef * error / count) if inside else _ZERO
    measured.policy_loss /= count
    measured.value_loss /= count
    measured.entropy_loss /= count
    measured.approx_kl /= count
    measured.clipped_above /= count
    measured.clipped_below /= count
    measured.log_ratio_mean /= count
    measured.divergence /= count
    measured.loss = (
        measured.policy_loss
        + objective.ent_coef * measured.entropy_loss
        + objective.vf_coef * measured.value_loss
    )


@inline
def _measure(
    slope: Slope,
    measured: Any,
    value: float,
    entropy: float,
    log_ratio: float,
    ratio: float,
    divergence: float,
) -> None:
    """Add one sample to the sums in ``measured``, which begin at zero."""
    measured.policy_loss -= value
    measured.entropy_loss -= entropy
    excess = ratio - 1.0
    measured.approx_kl += excess - log_ratio
    distance = log_ratio if slope.use_softmax else excess
    measured.clipped_above += 1.0 if distance > slope.above else 0.0
    measured.clipped_below += 1.0 if distance < -slope.below else 0.0
    measured.log_ratio_mean += abs(log_ratio)
    measured.log_ratio_max = max(measured.log_ratio_max, abs(log_ratio))
    measured.divergence += divergence


@inline
def _adam(adam: Adam, norm: float, state: tuple[np.ndarray, ...]) -> None:
    """Clip the gradient's norm and take one step of Adam."""
    parameters, gradient, first, second, steps = state
    step = np.float64(steps[0]) + 1.0
    scale = adam.max_grad_norm / (norm + 1e-6)
    clip = np.float32(scale if scale < 1.0 else 1.0)
    decay = np.float32(adam.weight_decay)
    beta1, beta2 = np.float32(adam.beta1), np.float32(adam.beta2)
    rest1, rest2 = np.float32(1.0 - adam.beta1), np.float32(1.0 - adam.beta2)
    size = np.float32(adam.lr / (1.0 - adam.beta1**step))
    root = np.float32(1.0 / np.sqrt(1.0 - adam.beta2**step))
    eps = np.float32(adam.eps)
    for i in range(parameters.shape[0]):
        g = gradient[i] * clip + decay * parameters[i]
        m = beta1 * first[i] + rest1 * g
        v = beta2 * second[i] + rest2 * g * g
        first[i] = m
        second[i] = v
        parameters[i] -= size * m / (np.sqrt(v) * root + eps)
    for i in range(steps.shape[0]):
        steps[i] += _ONE


@_entry
def run_epoch(
    layers: np.ndarray,
    heads: np.ndarray,
    kind: int,
    sizes: np.ndarray,
    objective: Objective,
    adam: Adam,
    order: np.ndarray,
    observations: np.ndarray,
    data: tuple[np.ndarray, ...],
    state: tuple[np.ndarray, ...],
    workspace: tuple[np.ndarray, ...],
    measured: Any,
) -> tuple[int, int, bool]:
    """One pass over the samples in ``order``, in minibatches of the workspace's size.

    :param heads: the policy's and the value function's last layer, and where the log standard
        deviations start in the parameters
    :param sizes: how many choices each categorical action has
    :param data: actions, masks, old values, old log-probabilities, advantages, returns
    :param state: parameters, gradient, Adam's two moments and its counts of steps, all flat
    :param workspace: features, outputs and outputs' gradients of all layers, and a vector of as many
        ones as a minibatch has samples
    :param measured: one record per minibatch, zero before, see :data:`~sppo.engine.measurements.MEASUREMENTS`
    :return: minibatches looked at, minibatches skipped because their loss or gradient was not finite,
        and whether the pass came to its end, not to ``kl_limit``
    """
    parameters, gradient = state[0], state[1]
    features, hidden, delta, ones, d_entropy = workspace
    capacity, width = ones.shape[0], observations.shape[1]
    n_out = d_entropy.shape[0]
    n_std = n_out if kind == GAUSSIAN else 0
    log_std = parameters[heads[2] : heads[2] + n_std]
    d_log_std = gradient[heads[2] : heads[2] + n_std]
    policy, value = layers[heads[0], COLUMN] * capacity, layers[heads[1], COLUMN] * capacity
    count, skipped = 0, 0
    for start in range(0, order.shape[0], capacity):
        end = start + capacity
        rows = order[start : end if end < order.shape[0] else order.shape[0]]
        n = rows.shape[0]
        for b in range(n):
            source, target = observations[rows[b]], features[b * width : (b + 1) * width]
            for j in range(width):
                target[j] = source[j]
        forward(layers, parameters, features, hidden, ones, n)
        _loss(
            kind,
            sizes,
            objective,
            log_std,
            hidden[policy : policy + n * n_out],
            hidden[value : value + n],
            rows,
            data,
            delta[policy : policy + n * n_out],
            delta[value : value + n],
            d_log_std,
            d_entropy,
            measured[count],
        )
        loss = measured[count].loss
        too_far = measured[count].approx_kl > objective.kl_limit
        count += 1
        if too_far:
            return count, skipped, False
        backward(layers, parameters, gradient, features, hidden, delta, ones, n)
        squares = _ZERO
        for i in range(gradient.shape[0]):
            squares += gradient[i] * gradient[i]
        # The difference of a number with itself is zero only if the number is finite.
        if squares - squares == _ZERO and loss - loss == 0.0:
            _adam(adam, np.sqrt(np.float64(squares)), state)
        else:
            skipped += 1
    return count, skipped, True


@_entry
def sample_actions(
    layers: np.ndarray,
    heads: np.ndarray,
    kind: int,
    sizes: np.ndarray,
    parameters: np.ndarray,
    features: np.ndarray,
    masks: np.ndarray,
    noise: np.ndarray,
    limits: np.ndarray,
    workspace: tuple[np.ndarray, ...],
    actions: np.ndarray,
    clipped: np.ndarray,
    log_probs: np.ndarray,
    values: np.ndarray,
) -> None:
    """Draw an action for each row of ``features``, with its log-probability and the state's value.

    :param noise: standard normal numbers (one per action dimension) for Gaussian actions, standard
        exponential ones (one per choice, a block of rows per categorical action) for categorical ones,
        uniform ones for coins
    :param limits: lowest and highest value of each Gaussian action, to which ``clipped`` keeps
    """
    _, hidden, _, ones, d_entropy = workspace
    rows, capacity, width = log_probs.shape[0], ones.shape[0], d_entropy.shape[0]
    forward(layers, parameters, features, hidden, ones, rows)
    policy, value = layers[heads[0], COLUMN] * capacity, layers[heads[1], COLUMN] * capacity
    for b in range(rows):
        out, action = hidden[policy + b * width : policy + (b + 1) * width], actions[b]
        log_prob = _ZERO
        if kind == CATEGORICAL:
            log_prob = race(out, sizes, masks[b], noise, b, rows, action)
        else:
            for j in range(width):
                number = noise[b * width + j]
                if kind == GAUSSIAN:
                    log_std = parameters[heads[2] + j]
                    x = out[j] + np.exp(log_std) * number
                    log_prob -= _HALF * number * number + log_std + HALF_LOG_TWO_PI
                    action[j] = x
                    x = limits[0, j] if x < limits[0, j] else x
                    clipped[b, j] = limits[1, j] if x > limits[1, j] else x
                else:
                    p = _ONE / (_ONE + np.exp(-out[j]))
                    action[j] = _ONE if number < p else _ZERO
                    log_prob += np.log(p if number < p else _ONE - p)
        log_probs[b] = log_prob
        values[b] = hidden[value + b]
