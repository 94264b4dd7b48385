"""The compiled update: an epoch of minibatches without leaving machine code.

Arrays are float32 unless said otherwise. What the networks are is said in :mod:`sppo.engine.networks`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sppo.engine import distributions
from sppo.engine.distributions import CATEGORICAL, GAUSSIAN
from sppo.engine.networks import COLUMN, Array, Layout, Workspace, backward, clip, entry, forward, inline
from sppo.surrogates import Slope

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
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
    """Who is trained, see :class:`sppo.algorithms.trust_region.Halves`; together, all are the actor's.

    :param owners: whose each of the policy's tensors is: 0 for the actor's, 1 for the critic's
    :param segments: where in the parameters whose are: ``START``, ``END`` and ``OWNER`` in each row
    """

    apart: bool
    actor: bool
    critic: bool
    owners: Array
    segments: Array


class Adam(NamedTuple):
    """The optimizer's numbers, as PyTorch names them."""

    lr: float
    critic_lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    max_grad_norm: float


class Rollout(NamedTuple):
    """What was collected, one row per sample."""

    observations: Array
    actions: Array
    masks: Array
    values: Array
    log_probs: Array
    advantages: Array
    returns: Array


class Weights(NamedTuple):
    """The parameters, all flat, and what Adam keeps of them: two moments, and a count of steps per tensor."""

    parameters: Array
    gradient: Array
    first: Array
    second: Array
    steps: Array


@inline
def _surrogate(slope: Slope, log_ratio: float, ratio: float, advantage: float) -> tuple[float, float, float]:
    """Objective, its derivative by the log-ratio, and the estimated divergence of one sample (float64)."""
    if slope.use_softmax:
        distance, value, rise = log_ratio, advantage * log_ratio, advantage
        clipped = advantage * clip(log_ratio, -slope.below, slope.above)
        estimate, d_estimate = -log_ratio, -1.0
    else:
        excess = ratio - 1.0
        distance, value, rise = excess, advantage * ratio, advantage * ratio
        clipped = advantage * (1.0 + clip(excess, -slope.below, slope.above))
        estimate, d_estimate = ratio * log_ratio - excess, ratio * log_ratio
    if (distance > slope.above or distance < -slope.below) and (slope.two_sided or clipped < value):
        value, rise = clipped, 0.0
    if slope.inverse_eta > 0.0 and not slope.exact:
        value -= slope.inverse_eta * estimate
        rise -= slope.inverse_eta * d_estimate
    return value, rise, estimate


@inline
def _moments(values: Array, rows: Array) -> tuple[float, float]:
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
    layout: Layout,
    objective: Objective,
    weights: Weights,
    rows: Array,
    data: Rollout,
    old: tuple[Array, Array] | None,
    workspace: Workspace,
    measured: np.record,
) -> None:
    """Fill the policy's gradients and ``measured`` for the samples numbered ``rows``."""
    kind, sizes, heads, surrogate = layout.kind, layout.sizes, layout.heads, objective.slope
    log_std, d_log_std = weights.parameters[heads[2] : heads[3]], weights.gradient[heads[2] : heads[3]]
    d_entropy, towards, towards_std = workspace.d_entropy, workspace.towards, workspace.towards_std
    count, width = rows.shape[0], d_entropy.shape[0]
    policy = layout.layers[heads[0], COLUMN] * workspace.ones.shape[0]
    out, d_out = workspace.hidden[policy:], workspace.delta[policy:]
    scale, offset = 1.0, 0.0
    if objective.normalize_advantage and count > 1:
        offset, deviation = _moments(data.advantages, rows)
        scale = 1.0 / (deviation + 1e-8)
    for j in range(d_log_std.shape[0]):
        d_log_std[j] = _ZERO
    ent_weight = np.float32(-objective.ent_coef / count)
    pull = np.float32(surrogate.inverse_eta / count)
    for b in range(count):
        i = rows[b]
        mean, score = out[b * width : (b + 1) * width], d_out[b * width : (b + 1) * width]
        action, mask = data.actions[i], data.masks[i]
        if kind == GAUSSIAN:
            log_prob, entropy = distributions.gaussian(mean, action, log_std, score)
        elif kind == CATEGORICAL:
            log_prob, entropy = distributions.categorical(mean, action, sizes, mask, score, d_entropy)
        else:
            log_prob, entropy = distributions.bernoulli(mean, action, score, d_entropy)
        log_ratio = np.float64(log_prob) - np.float64(data.log_probs[i])
        ratio = np.exp(log_ratio)
        advantage = (data.advantages[i] - offset) * scale
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
                distributions.normalise(mean, sizes, mask)
            distance = np.float64(
                distributions.divergence(
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
    layout: Layout,
    objective: Objective,
    rows: Array,
    data: Rollout,
    workspace: Workspace,
    measured: np.record,
) -> None:
    """Fill the values' gradients and ``measured`` for the samples numbered ``rows``."""
    count, limit = rows.shape[0], objective.clip_range_vf
    value = layout.layers[layout.heads[1], COLUMN] * workspace.ones.shape[0]
    values, d_values = workspace.hidden[value:], workspace.delta[value:]
    for b in range(count):
        i = rows[b]
        change = np.float64(values[b]) - np.float64(data.values[i])
        error = data.values[i] + clip(change, -limit, limit) - data.returns[i]
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
def _squares(gradient: Array, segments: Array, owner: int) -> np.float32:
    """The gradient's squared norm, in one half's segments."""
    total = _ZERO
    for s in range(segments.shape[0]):
        if segments[s, OWNER] == owner:
            part = gradient[segments[s, START] : segments[s, END]]
            for i in range(part.shape[0]):
                total += part[i] * part[i]
    return total


@inline
def _adam(adam: Adam, lr: float, norm: float, weights: Weights, trained: Trained, owner: int) -> None:
    """Clip the norm of one half's gradient and take one step of Adam with it."""
    owners, segments = trained.owners, trained.segments
    step = 1.0
    for k in range(owners.shape[0]):
        if owners[k] == owner:
            step = np.float64(weights.steps[k]) + 1.0
            weights.steps[k] += _ONE
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
        parameters, gradient = weights.parameters[start:end], weights.gradient[start:end]
        first, second = weights.first[start:end], weights.second[start:end]
        for i in range(parameters.shape[0]):
            g = gradient[i] * clip + decay * parameters[i]
            m = beta1 * first[i] + rest1 * g
            v = beta2 * second[i] + rest2 * g * g
            first[i] = m
            second[i] = v
            parameters[i] -= size * m / (np.sqrt(v) * root + eps)


@entry
def run_epoch(
    layout: Layout,
    objective: Objective,
    adam: Adam,
    trained: Trained,
    order: Array,
    data: Rollout,
    old: tuple[Array, Array] | None,
    weights: Weights,
    workspace: Workspace,
    measured: Array,
) -> tuple[int, int, bool]:
    """One pass over the samples in ``order``, in minibatches of the workspace's size.

    :param old: the old policy's outputs and log standard deviations, if the divergence from it is exact
    :param measured: one record per minibatch, zero before, see :data:`~sppo.engine.measurements.MEASUREMENTS`
    :return: minibatches looked at, minibatches skipped because their loss or gradient was not finite,
        and whether the pass came to its end, not to ``kl_limit``
    """
    layers, parameters, gradient = layout.layers, weights.parameters, weights.gradient
    capacity, width, actor_end = workspace.ones.shape[0], data.observations.shape[1], layout.heads[0] + 1
    first, last = 0 if trained.actor else actor_end, layers.shape[0] if trained.critic else actor_end
    squares, rates = np.zeros(2, np.float32), np.array([adam.lr, adam.critic_lr])
    takes_steps = np.array([trained.actor, trained.apart and trained.critic])
    count, skipped = 0, 0
    for start in range(0, order.shape[0], capacity):
        rows, seen = order[start : min(start + capacity, order.shape[0])], measured[count]
        n = rows.shape[0]
        for b in range(n):
            source, target = data.observations[rows[b]], workspace.hidden[b * width : (b + 1) * width]
            for j in range(width):
                target[j] = source[j]
        forward(layers, parameters, workspace, n, first, last)
        if trained.actor:
            _actor_loss(layout, objective, weights, rows, data, old, workspace, seen)
        if trained.critic:
            _critic_loss(layout, objective, rows, data, workspace, seen)
        actor_loss = seen.policy_loss + objective.ent_coef * seen.entropy_loss
        seen.loss = loss = actor_loss + objective.vf_coef * seen.value_loss
        count += 1
        if seen.approx_kl > objective.kl_limit:
            return count, skipped, False
        backward(layers, parameters, gradient, workspace, n, first, last)
        for owner in range(2):
            squares[owner] = _squares(gradient, trained.segments, owner) if takes_steps[owner] else _ZERO
        # Not what is no number, nor infinite; a compiler that may reorder sums cannot simplify this.
        if squares[0] <= _LARGEST and squares[1] <= _LARGEST and abs(loss) <= _LARGEST:
            for owner in range(2):
                if takes_steps[owner]:
                    norm = np.sqrt(np.float64(squares[owner]))
                    _adam(adam, rates[owner], norm, weights, trained, owner)
        else:
            skipped += 1
    return count, skipped, True
