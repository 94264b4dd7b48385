"""The compiled arithmetic: an epoch of minibatch updates without leaving machine code, and acting.

Arrays are float32 unless said otherwise. The networks are a table of layers, see :mod:`sppo.engine.networks`;
the last layer of the policy is ``heads[0]``, that of the value function ``heads[1]``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sppo.compiled import njit
from sppo.engine.distributions import (
    CATEGORICAL,
    GAUSSIAN,
    HALF_LOG_TWO_PI,
    bernoulli,
    categorical,
    divergence,
    gaussian,
    normalise,
    race,
)
from sppo.engine.networks import COLUMN, OPTIONS, backward, forward, inline
from sppo.surrogates import Slope

_entry = njit(**OPTIONS, cache=True)
_ZERO, _ONE, _HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)
_LARGEST = np.finfo(np.float32).max
START, END, OWNER = range(3)


class Objective(NamedTuple):
    """The numbers of the loss; an infinite limit is off."""

    slope: Slope
    clip_range_vf: float
    ent_coef: float
    vf_coef: float
    normalize_advantage: bool
    kl_limit: float


class Trained(NamedTuple):
    """Who is trained, see :class:`sppo.algorithms.trust_region.Halves`; together, all are the actor's."""

    apart: bool
    actor: bool
    critic: bool


class Adam(NamedTuple):
    """The optimizer's numbers, as PyTorch names them."""

    lr: float
    critic_lr: float
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
    """Objective, its derivative by the log-ratio, and the estimated divergence of one sample (float64)."""
    if slope.use_softmax:
        distance, value, rise = log_ratio, advantage * log_ratio, advantage
        clipped = advantage * _clip(log_ratio, -slope.below, slope.above)
        estimate, d_estimate = -log_ratio, -1.0
    else:
        excess = ratio - 1.0
        distance, value, rise = excess, advantage * ratio, advantage * ratio
        clipped = advantage * (1.0 + _clip(excess, -slope.below, slope.above))
        estimate, d_estimate = ratio * log_ratio - excess, ratio * log_ratio
    if (distance > slope.above or distance < -slope.below) and (slope.two_sided or clipped < value):
        value, rise = clipped, 0.0
    if slope.inverse_eta > 0.0 and not slope.exact:
        value -= slope.inverse_eta * estimate
        rise -= slope.inverse_eta * d_estimate
    return value, rise, estimate


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
def _actor_loss(
    kind: int,
    sizes: np.ndarray,
    objective: Objective,
    log_std: np.ndarray,
    out: np.ndarray,
    rows: np.ndarray,
    data: tuple[np.ndarray, ...],
    old: tuple[np.ndarray, np.ndarray] | None,
    d_out: np.ndarray,
    d_log_std: np.ndarray,
    scratch: tuple[np.ndarray, ...],
    measured: np.record,
) -> None:
    """Fill the policy's gradients and ``measured`` for the samples numbered ``rows``."""
    actions, masks, _, old_log_prob, advantages, _ = data
    d_entropy, towards, towards_std = scratch
    surrogate = objective.slope
    count = rows.shape[0]
    width = d_entropy.shape[0]
    scale, offset = 1.0, 0.0
    if objective.normalize_advantage and count > 1:
        offset, deviation = _moments(advantages, rows)
        scale = 1.0 / (deviation + 1e-8)
    for j in range(d_log_std.shape[0]):
        d_log_std[j] = _ZERO
    ent_weight = np.float32(-objective.ent_coef / count)
    pull = np.float32(surrogate.inverse_eta / count)
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
        value, rise, distance = _surrogate(surrogate, log_ratio, ratio, advantage)
        weight = np.float32(-rise / count)
        for j in range(width):
            if kind == GAUSSIAN:
                d_log_std[j] += weight * (score[j] * (action[j] - mean[j]) - _ONE) + ent_weight
                score[j] *= weight
            else:
                score[j] = weight * score[j] + ent_weight * d_entropy[j]
        # Compiled only if there is an old policy to measure by: most trainings have none.
        if old is not None:
            if kind == CATEGORICAL:
                normalise(mean, sizes, masks[i])
            distance = np.float64(
                divergence(
                    *(kind, sizes, mean, log_std, old[0][i], old[1]),
                    *(surrogate.use_softmax, towards, towards_std),
                )
            )
            value -= surrogate.inverse_eta * distance
            for j in range(width):
                score[j] += pull * towards[j]
            for j in range(d_log_std.shape[0]):
                d_log_std[j] += pull * towards_std[j]
        _measure(surrogate, measured, value, np.float64(entropy), log_ratio, ratio, distance)
    measured.policy_loss /= count
    measured.entropy_loss /= count
    measured.approx_kl /= count
    measured.clipped_above /= count
    measured.clipped_below /= count
    measured.log_ratio_mean /= count
    measured.divergence /= count


@inline
def _critic_loss(
    objective: Objective,
    values: np.ndarray,
    rows: np.ndarray,
    data: tuple[np.ndarray, ...],
    d_values: np.ndarray,
    measured: np.record,
) -> None:
    """Fill the values' gradients and ``measured`` for the samples numbered ``rows``."""
    old_values, returns = data[2], data[5]
    count, limit = rows.shape[0], objective.clip_range_vf
    for b in range(count):
        i = rows[b]
        change = np.float64(values[b]) - np.float64(old_values[i])
        error = old_values[i] + _clip(change, -limit, limit) - returns[i]
        measured.value_loss += error * error
        inside = change <= limit and change >= -limit
        d_values[b] = np.float32(2.0 * objective.vf_coef * error / count) if inside else _ZERO
    measured.value_loss /= count


@inline
def _measure(
    slope: Slope,
    measured: np.record,
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
def _squares(gradient: np.ndarray, segments: np.ndarray, owner: int) -> np.float32:
    """The gradient's squared norm, in one half's segments."""
    total = _ZERO
    for s in range(segments.shape[0]):
        if segments[s, OWNER] == owner:
            part = gradient[segments[s, START] : segments[s, END]]
            for i in range(part.shape[0]):
                total += part[i] * part[i]
    return total


@inline
def _adam(
    adam: Adam,
    lr: float,
    norm: float,
    state: tuple[np.ndarray, ...],
    segments: np.ndarray,
    owners: np.ndarray,
    owner: int,
) -> None:
    """Clip the norm of one half's gradient and take one step of Adam with it."""
    step = 1.0
    for k in range(owners.shape[0]):
        if owners[k] == owner:
            step = np.float64(state[4][k]) + 1.0
            state[4][k] += _ONE
    scale = adam.max_grad_norm / (norm + 1e-6)
    clip = np.float32(scale if scale < 1.0 else 1.0)
    decay = np.float32(adam.weight_decay)
    beta1, beta2 = np.float32(adam.beta1), np.float32(adam.beta2)
    rest1, rest2 = np.float32(1.0 - adam.beta1), np.float32(1.0 - adam.beta2)
    size = np.float32(lr / (1.0 - adam.beta1**step))
    root = np.float32(1.0 / np.sqrt(1.0 - adam.beta2**step))
    eps = np.float32(adam.eps)
    for s in range(segments.shape[0]):
        if segments[s, OWNER] != owner:
            continue
        start, end = segments[s, START], segments[s, END]
        parameters, gradient = state[0][start:end], state[1][start:end]
        first, second = state[2][start:end], state[3][start:end]
        for i in range(parameters.shape[0]):
            g = gradient[i] * clip + decay * parameters[i]
            m = beta1 * first[i] + rest1 * g
            v = beta2 * second[i] + rest2 * g * g
            first[i] = m
            second[i] = v
            parameters[i] -= size * m / (np.sqrt(v) * root + eps)


@_entry
def run_epoch(
    layers: np.ndarray,
    heads: np.ndarray,
    kind: int,
    sizes: np.ndarray,
    objective: Objective,
    adam: Adam,
    trained: Trained,
    segments: np.ndarray,
    owners: np.ndarray,
    order: np.ndarray,
    observations: np.ndarray,
    data: tuple[np.ndarray, ...],
    old: tuple[np.ndarray, np.ndarray] | None,
    state: tuple[np.ndarray, ...],
    workspace: tuple[np.ndarray, ...],
    measured: np.ndarray,
) -> tuple[int, int, bool]:
    """One pass over the samples in ``order``, in minibatches of the workspace's size.

    :param heads: the policy's and the value function's last layer, and where the log standard
        deviations start in the parameters
    :param sizes: how many choices each categorical action has
    :param segments: where in the parameters whose are: ``START``, ``END`` and ``OWNER`` in each row
    :param owners: whose each of the policy's tensors is: 0 for the actor's, 1 for the critic's
    :param data: actions, masks, old values, old log-probabilities, advantages, returns
    :param old: the old policy's outputs and log standard deviations, if the divergence from it is exact
    :param state: parameters, gradient, Adam's two moments and its counts of steps, all flat
    :param workspace: features, outputs and outputs' gradients of all layers, a vector of as many
        ones as a minibatch has samples, and three of as many numbers as the policy has outputs
    :param measured: one record per minibatch, zero before, see :data:`~sppo.engine.measurements.MEASUREMENTS`
    :return: minibatches looked at, minibatches skipped because their loss or gradient was not finite,
        and whether the pass came to its end, not to ``kl_limit``
    """
    parameters, gradient = state[0], state[1]
    features, hidden, delta, ones = workspace[0], workspace[1], workspace[2], workspace[3]
    scratch = workspace[4], workspace[5], workspace[6]
    capacity, width = ones.shape[0], observations.shape[1]
    n_out = scratch[0].shape[0]
    n_std = n_out if kind == GAUSSIAN else 0
    log_std = parameters[heads[2] : heads[2] + n_std]
    d_log_std = gradient[heads[2] : heads[2] + n_std]
    policy, value = layers[heads[0], COLUMN] * capacity, layers[heads[1], COLUMN] * capacity
    first = 0 if trained.actor else heads[0] + 1
    last = layers.shape[0] if trained.critic else heads[0] + 1
    squares, rates = np.zeros(2, np.float32), np.array([adam.lr, adam.critic_lr])
    takes_steps = np.array([trained.actor, trained.apart and trained.critic])
    count, skipped = 0, 0
    for start in range(0, order.shape[0], capacity):
        end = start + capacity
        rows = order[start : end if end < order.shape[0] else order.shape[0]]
        n = rows.shape[0]
        for b in range(n):
            source, target = observations[rows[b]], features[b * width : (b + 1) * width]
            for j in range(width):
                target[j] = source[j]
        forward(layers, parameters, features, hidden, ones, n, first, last)
        if trained.actor:
            _actor_loss(
                *(kind, sizes, objective, log_std, hidden[policy : policy + n * n_out], rows, data, old),
                *(delta[policy : policy + n * n_out], d_log_std, scratch, measured[count]),
            )
        if trained.critic:
            values, d_values = hidden[value : value + n], delta[value : value + n]
            _critic_loss(objective, values, rows, data, d_values, measured[count])
        loss = (
            measured[count].policy_loss
            + objective.ent_coef * measured[count].entropy_loss
            + objective.vf_coef * measured[count].value_loss
        )
        measured[count].loss = loss
        too_far = measured[count].approx_kl > objective.kl_limit
        count += 1
        if too_far:
            return count, skipped, False
        backward(layers, parameters, gradient, features, hidden, delta, ones, n, first, last)
        for owner in range(2):
            squares[owner] = _squares(gradient, segments, owner) if takes_steps[owner] else _ZERO
        # Not what is no number, nor infinite; a compiler that may reorder sums cannot simplify this.
        if squares[0] <= _LARGEST and squares[1] <= _LARGEST and abs(loss) <= _LARGEST:
            for owner in range(2):
                if takes_steps[owner]:
                    lr, norm = rates[owner], np.sqrt(np.float64(squares[owner]))
                    _adam(adam, lr, norm, state, segments, owners, owner)
        else:
            skipped += 1
    return count, skipped, True


@_entry
def policy_outputs(
    layers: np.ndarray,
    heads: np.ndarray,
    kind: int,
    sizes: np.ndarray,
    parameters: np.ndarray,
    features: np.ndarray,
    masks: np.ndarray,
    workspace: tuple[np.ndarray, ...],
    outputs: np.ndarray,
) -> None:
    """Fill ``outputs``: each state's means, logits of coins, or log-probabilities of categorical choices.

    :param features: flat, as many rows as ``outputs`` has
    """
    hidden, ones, n_out = workspace[1], workspace[3], outputs.shape[1]
    capacity, width = ones.shape[0], features.shape[0] // outputs.shape[0]
    policy = layers[heads[0], COLUMN] * capacity
    for start in range(0, outputs.shape[0], capacity):
        n = min(capacity, outputs.shape[0] - start)
        forward(layers, parameters, features[start * width :], hidden, ones, n, 0, heads[0] + 1)
        for b in range(n):
            out = outputs[start + b]
            for j in range(n_out):
                out[j] = hidden[policy + b * n_out + j]
            if kind == CATEGORICAL:
                normalise(out, sizes, masks[start + b])


@_entry
def mean_divergence(
    kind: int,
    sizes: np.ndarray,
    new: np.ndarray,
    log_std: np.ndarray,
    old: np.ndarray,
    old_log_std: np.ndarray,
) -> float:
    """KL(old || new), averaged over states; outputs as :func:`policy_outputs` gives them."""
    scratch = np.empty((2, new.shape[1]), np.float32)
    total = np.float64(0.0)
    for b in range(new.shape[0]):
        total += divergence(kind, sizes, new[b], log_std, old[b], old_log_std, True, scratch[0], scratch[1])
    return total / new.shape[0]


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
    hidden, ones = workspace[1], workspace[3]
    rows, capacity, width = log_probs.shape[0], ones.shape[0], workspace[4].shape[0]
    forward(layers, parameters, features, hidden, ones, rows, 0, layers.shape[0])
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
