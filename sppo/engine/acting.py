"""The compiled policy: acting, and how far it has moved.

Arrays are float32 unless said otherwise.
"""

from __future__ import annotations

import numpy as np

from sppo.engine.distributions import CATEGORICAL, GAUSSIAN, HALF_LOG_TWO_PI, divergence, normalise, race
from sppo.engine.networks import COLUMN, Array, Layout, Workspace, entry, forward

_ZERO, _ONE, _HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)


@entry
def sample_actions(
    described: tuple[Array, Array, int, Array],
    parameters: Array,
    masks: Array,
    noise: Array,
    limits: Array,
    scratch: tuple[Array, ...],
    actions: Array,
    clipped: Array,
    log_probs: Array,
    values: Array,
) -> None:
    """Draw an action for each row of the workspace's features, with its log-probability, and value the state.

    :param described: the :class:`Layout` as a plain tuple, and ``scratch`` the :class:`Workspace`: with their
        names they would cost half a microsecond each at every step
    :param noise: standard normal numbers (one per action dimension) for Gaussian actions, standard
        exponential ones (one per choice, a block of rows per categorical action) for categorical ones,
        uniform ones for coins
    :param limits: lowest and highest value of each Gaussian action, to which ``clipped`` keeps
    """
    layout, workspace = Layout(*described), Workspace(*scratch)
    layers, heads, hidden = layout.layers, layout.heads, workspace.hidden
    rows, capacity, width = log_probs.shape[0], workspace.ones.shape[0], workspace.d_entropy.shape[0]
    forward(layers, parameters, workspace, rows, 0, layers.shape[0])
    policy, value = layers[heads[0], COLUMN] * capacity, layers[heads[1], COLUMN] * capacity
    for b in range(rows):
        out, action = hidden[policy + b * width : policy + (b + 1) * width], actions[b]
        log_prob = _ZERO
        if layout.kind == CATEGORICAL:
            log_prob = race(out, layout.sizes, masks[b], noise, b, rows, action)
        else:
            for j in range(width):
                number = noise[b * width + j]
                if layout.kind == GAUSSIAN:
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


@entry
def policy_outputs(
    layout: Layout, parameters: Array, features: Array, masks: Array, workspace: Workspace, outputs: Array
) -> None:
    """Fill ``outputs``: each state's means, logits of coins, or log-probabilities of categorical choices.

    :param features: flat, as many rows as ``outputs`` has
    """
    layers, last, hidden, n_out = layout.layers, layout.heads[0], workspace.hidden, outputs.shape[1]
    capacity, width = workspace.ones.shape[0], features.shape[0] // outputs.shape[0]
    policy = layers[last, COLUMN] * capacity
    for start in range(0, outputs.shape[0], capacity):
        n = min(capacity, outputs.shape[0] - start)
        for j in range(n * width):
            hidden[j] = features[start * width + j]
        forward(layers, parameters, workspace, n, 0, last + 1)
        for b in range(n):
            out = outputs[start + b]
            for j in range(n_out):
                out[j] = hidden[policy + b * n_out + j]
            if layout.kind == CATEGORICAL:
                normalise(out, layout.sizes, masks[start + b])


@entry
def mean_divergence(layout: Layout, new: Array, log_std: Array, old: Array, old_log_std: Array) -> float:
    """KL(old || new), averaged over states; outputs as :func:`policy_outputs` gives them."""
    scratch = np.empty((2, new.shape[1]), np.float32)
    total = np.float64(0.0)
    for b in range(new.shape[0]):
        total += divergence(
            layout.kind, layout.sizes, new[b], log_std, old[b], old_log_std, True, scratch[0], scratch[1]
        )
    return total / new.shape[0]
