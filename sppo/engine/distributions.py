"""The action distributions in compiled code: log-probabilities, divergences, derivatives, samples."""

from __future__ import annotations

import numpy as np

from sppo.engine.networks import Array, inline

GAUSSIAN, CATEGORICAL, BERNOULLI = range(3)

_ZERO, _ONE, _HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)
HALF_LOG_TWO_PI = np.float32(0.9189385332046727)
#: the logit that sb3-contrib gives a forbidden action
_FORBIDDEN = np.float32(-1e8)


@inline
def gaussian(out: Array, action: Array, log_std: Array, score: Array) -> tuple[np.float32, np.float32]:
    """Log-probability and entropy of one action; ``score`` becomes the derivative by the mean."""
    log_prob, entropy = _ZERO, _ZERO
    for j in range(out.shape[0]):
        precision = np.exp(np.float32(-2.0) * log_std[j])
        distance = action[j] - out[j]
        score[j] = distance * precision
        log_prob -= _HALF * distance * score[j] + log_std[j] + HALF_LOG_TWO_PI
        entropy += _HALF + HALF_LOG_TWO_PI + log_std[j]
    return log_prob, entropy


@inline
def categorical(
    out: Array, action: Array, sizes: Array, mask: Array, score: Array, d_entropy: Array
) -> tuple[np.float32, np.float32]:
    """As :func:`gaussian` for independent categorical choices; ``mask`` is empty if all are allowed."""
    log_prob, entropy = _ZERO, _ZERO
    start = 0
    for i in range(sizes.shape[0]):
        end = start + sizes[i]
        log_total, own = _log_total(out, mask, start, end), _ZERO
        for j in range(start, end):
            log_p = out[j] - log_total
            p = np.exp(log_p)
            chosen = start + np.int64(action[i]) == j
            if chosen:
                log_prob += log_p
            # A forbidden action's logit is a constant: it has no derivative and counts as certain.
            score[j] = (_ONE if chosen and (mask.shape[0] == 0 or mask[j] != _ZERO) else _ZERO) - p
            d_entropy[j] = p
            own -= p * log_p if p > _ZERO else _ZERO
        for j in range(start, end):
            p = d_entropy[j]
            d_entropy[j] = -p * (out[j] - log_total + own) if p > _ZERO else _ZERO
        entropy += own
        start = end
    return log_prob, entropy


@inline
def _log_total(out: Array, mask: Array, start: int, end: int) -> np.float32:
    """What one choice's logits are normalised by; those of forbidden actions are set first."""
    top, total = np.float32(-np.inf), _ZERO
    for j in range(start, end):
        out[j] = _FORBIDDEN if mask.shape[0] > 0 and mask[j] == _ZERO else out[j]
        top = out[j] if out[j] > top else top
    for j in range(start, end):
        total += np.exp(out[j] - top)
    return np.log(total) + top


@inline
def bernoulli(out: Array, action: Array, score: Array, d_entropy: Array) -> tuple[np.float32, np.float32]:
    """As :func:`gaussian` for independent coins, ``out`` being the logits of 1."""
    log_prob, entropy = _ZERO, _ZERO
    for j in range(out.shape[0]):
        logit = out[j]
        small = np.exp(-abs(logit))
        softplus = (logit if logit > _ZERO else _ZERO) + np.log1p(small)
        p = (_ONE if logit >= _ZERO else small) / (_ONE + small)
        log_prob += action[j] * logit - softplus
        entropy += softplus - p * logit
        score[j] = action[j] - p
        d_entropy[j] = -logit * p * (_ONE - p)
    return log_prob, entropy


@inline
def normalise(out: Array, sizes: Array, mask: Array) -> None:
    """Turn logits into log-probabilities, for each categorical choice."""
    start = 0
    for i in range(sizes.shape[0]):
        end = start + sizes[i]
        log_total = _log_total(out, mask, start, end)
        for j in range(start, end):
            out[j] -= log_total
        start = end


@inline
def divergence(
    kind: int,
    sizes: Array,
    out: Array,
    log_std: Array,
    old: Array,
    old_log_std: Array,
    forward: bool,
    slope: Array,
    log_std_slope: Array,
) -> np.float32:
    """KL(old || new) of one state's distributions if ``forward``, else KL(new || old), with its derivatives.

    :param out: means, logits of coins, or the log-probabilities of categorical choices; ``old`` likewise
    :param slope: becomes the derivative by the means or logits, and ``log_std_slope`` by ``log_std``
    """
    total = _ZERO
    for j in range(out.shape[0]):
        if kind == GAUSSIAN:
            # In units of the distribution that the other is measured by.
            unit = log_std[j] if forward else old_log_std[j]
            change = out[j] - old[j]
            slope[j] = change * np.exp(np.float32(-2.0) * unit)
            widening = np.float32(2.0) * (old_log_std[j] - log_std[j])
            excess = np.expm1(widening if forward else -widening)
            total += _HALF * (excess - (widening if forward else -widening) + change * slope[j])
            log_std_slope[j] = -excess - change * slope[j] if forward else excess
        elif kind == CATEGORICAL:
            p, p_old = np.exp(out[j]), np.exp(old[j])
            difference = out[j] - old[j]
            # A choice without probability takes no part, however different the logits.
            total += -p_old * difference if forward and p_old > _ZERO else _ZERO
            total += p * difference if not forward and p > _ZERO else _ZERO
            slope[j] = p - p_old if forward else (p * difference if p > _ZERO else _ZERO)
        else:
            difference = out[j] - old[j]
            p, p_old = _ONE / (_ONE + np.exp(-out[j])), _ONE / (_ONE + np.exp(-old[j]))
            growth = _softplus(out[j]) - _softplus(old[j])
            total += growth - p_old * difference if forward else p * difference - growth
            slope[j] = p - p_old if forward else p * (_ONE - p) * difference
    if kind == CATEGORICAL and not forward:
        # The derivative by a logit, which moves all of its choice's log-probabilities.
        start = 0
        for choice in range(sizes.shape[0]):
            own = _ZERO
            for j in range(start, start + sizes[choice]):
                own += slope[j]
            for j in range(start, start + sizes[choice]):
                slope[j] -= np.exp(out[j]) * own
            start += sizes[choice]
    return _ZERO if total < _ZERO else total


@inline
def _softplus(x: np.float32) -> np.float32:
    return (x if x > _ZERO else _ZERO) + np.log1p(np.exp(-abs(x)))


@inline
def race(
    out: Array, sizes: Array, mask: Array, noise: Array, row: int, rows: int, action: Array
) -> np.float32:
    """Choose whose exponential clock, running at the choice's probability, rings first.

    Returns the choices' log-probability.
    """
    masked = mask.shape[0] > 0
    start, log_prob = 0, _ZERO
    for i in range(sizes.shape[0]):
        clocks = noise[start * rows + row * sizes[i] : start * rows + (row + 1) * sizes[i]]
        best, winner, top, total = np.float32(-np.inf), _ZERO, np.float32(-np.inf), _ZERO
        for j in range(sizes[i]):
            logit = _FORBIDDEN if masked and mask[start + j] == _ZERO else out[start + j]
            # The sum of exponentials so far, relative to the largest so far.
            if logit > top:
                total *= np.exp(top - logit)
                top = logit
            total += np.exp(logit - top)
            speed = logit - np.log(clocks[j])
            if speed > best:
                best, winner = speed, logit
                action[i] = np.float32(j)
        log_prob += winner - top - np.log(total)
        start += sizes[i]
    return log_prob
