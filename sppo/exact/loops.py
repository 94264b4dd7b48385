"""Algorithm 1, compiled: evaluate the policy exactly, record J, improve it by inner steps, repeat.

J(π_t) is written *before* update t. A loop stops early only when an update changed no bit of the policy's
logits: every later iteration would repeat it. There is an outer loop per way of improving, because a user's
first call compiles all that it could reach.

A search accepts the first of α, α·decay, α·decay², ... that passes its test. Where the accepted steps are
known to be an interval from zero it is found by bisection, with few of the trials made:

* Armijo's test on ℓ = J - C/η where ℓ is concave along the segment. Per state, with v = g - Σ pg, ℓ'' ≤
  d (max h - min h - 1/η) Σ p v², where h = 0 for sMDPO, A for TRPO and A - (θ - θ_t)/η for MDPO. In h the
  policy does not occur, and max h - min h is convex along the segment: if it is at most 1/η at both ends,
  ℓ is concave in between.
* The trust region of sMDPO (J is linear and C convex in θ) and of TRPO (along s = A every state's J
  increases, and C is convex). MDPO's skips the trials that are outside of it for certain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sppo.exact.evaluation import Array, Evaluation, Model, entry, evaluate_dense, inlined, leaf
from sppo.exact.kernels import (
    ARMIJO,
    CPI,
    MDPO,
    SMDPO,
    TRUST_REGION,
    Method,
    Packets,
    concave_until,
    gather,
    largest_curvature,
    measure,
    move,
    packet_direction,
    packet_gradient,
    rising_until,
    scatter,
)
from sppo.exact.vectors import splat, total

#: A fixed point is looked for once in so many steps, and whether C increases once in so many trials.
FIXED_POINT_PERIOD, RISING_PERIOD = 16, 8
#: Warm starts stop growing here, where every finite step has long saturated the policy.
LARGEST_STEP = 1e100
#: The step when no trial is accepted.
FALLBACK = 1e-16


class State(NamedTuple):
    """What one run writes into: π_t and all that is known of it, 1/η(s), scratch (S, S), and packets.

    Without scratch, the MDP is too large to be evaluated here, and π_t has been evaluated already.
    """

    at: Evaluation
    inv_eta: Array
    matrix: Array
    packets: Packets


@leaf
def fixed_steps(method: Method, alpha: float, packets: Packets) -> None:
    """m times θ ← θ + α ∇(J - C/η); states do not interact, so packet by packet.

    Stops early at a fixed point only: a step that changes no bit of θ would be repeated for ever.
    """
    for k in range(packets.packs):
        for i in range(method.inner_steps):
            packet_gradient(method, packets, k)
            if not move(alpha, packets, k) and i % FIXED_POINT_PERIOD == 0:
                break


@inlined
def find_step(
    method: Method, alpha: float, slope: float, present: float, guess: int, packets: Packets
) -> tuple[float, float, int]:
    """The first accepted of α, α·decay, α·decay², ...: (step, value there, its index).

    Found by walking down, or, where the accepted steps are an interval, by bisection from ``guess``.
    """
    objective, trust = method.objective, method.rule == TRUST_REGION
    skipping, interval = trust and objective == MDPO, trust and objective != MDPO
    if method.rule == ARMIJO:
        interval = concave_until(objective, 0.0, packets) and (
            objective != MDPO or concave_until(objective, alpha, packets)
        )
    accepted, value = FALLBACK, present
    # trials up to ``low`` are rejected; ``high`` is accepted, or one past the last
    low, high, stride = -1, method.tries, 1
    trial = guess if interval else 0
    while high - low > 1:
        step = alpha * method.decay**trial
        if skipping and trial % RISING_PERIOD == 0 and rising_until(step, packets):
            # C increases up to here, and at smaller steps: the trials outside of the region by bisection
            inside, skipping = high, False
            while inside - low > 1:
                trial = (low + inside) // 2
                if measure(method, alpha * method.decay**trial, packets)[1] <= method.delta:
                    inside = trial
                else:
                    low = trial
            trial = low + 1
            continue
        new, divergence = measure(method, step, packets)
        if new >= present + step * slope and (not trust or divergence <= method.delta):
            high, accepted, value = trial, step, new
        else:
            low = trial
        if not interval:
            trial = low + 1
        elif high == method.tries:
            trial = min(low + stride, high - 1)
        elif low == -1:
            trial = max(high - stride, 0)
        else:
            trial = (low + high) // 2
        stride *= 2
    if high == method.tries:
        value, _ = measure(method, accepted, packets)
    return accepted, value, min(high, method.tries - 1)


@leaf
def search_steps(method: Method, packets: Packets, used: Array) -> None:
    """m steps with a search each; ``used`` receives the accepted step sizes.

    Armijo's rule follows the gradient g of J - C/η and accepts the first α with ℓ(θ + αg) ≥ ℓ(θ) +
    armijo·α‖g‖², where ℓ is J - C/η or, in the published rule, J. The first inner step starts from
    ``first_step``, later ones from the last accepted step times ``warm_start``. The trust region follows
    s = H⁺g from min(√(2δ / sᵀHs), first_step) and accepts the first step with J not lower and C ≤ δ.
    """
    trust = method.rule == TRUST_REGION
    present, _ = measure(method, 0.0, packets)
    accepted, guess = 0.0, 0
    for i in range(method.inner_steps):
        alpha, slope = method.first_step, 0.0
        if trust:
            smallest, curvature = method.cutoff * largest_curvature(packets), 0.0
            for k in range(packets.packs):
                curvature += packet_direction(method.objective, smallest, packets, k)
            if curvature > 0.0:
                alpha = min(np.sqrt(2.0 * method.delta / curvature), alpha)
        else:
            squares = splat(0.0)
            for k in range(packets.packs):
                squares = squares + packet_gradient(method, packets, k)
            slope = method.armijo * total(squares)
            if total(squares) == 0.0:
                return
            if i > 0 and method.warm_start > 0.0:
                alpha = min(method.warm_start * accepted, LARGEST_STEP)
        accepted, present, guess = find_step(method, alpha, slope, present, guess, packets)
        moved = False
        for k in range(packets.packs):
            moved |= move(accepted, packets, k)
        used[i] = accepted
        if trust and not moved:
            # a trust-region step depends on θ alone: every later one would be this one again
            return


@leaf
def _largest(matrix: Array, s: int) -> int:
    """Where the largest number of row s is, the first of equals."""
    best = 0
    for a in range(1, matrix.shape[1]):
        if matrix[s, a] > matrix[s, best]:
            best = a
    return best


@leaf
def _softmax(logits: Array, s: int, policy: Array) -> float:
    """policy = softmax(logits) in row s; a logit of -inf is a probability of zero. Returns lse."""
    top, total = logits[s, _largest(logits, s)], 0.0
    for a in range(logits.shape[1]):
        policy[s, a] = np.exp(logits[s, a] - top)
        total += policy[s, a]
    for a in range(logits.shape[1]):
        policy[s, a] /= total
    return top + np.log(total)


@leaf
def _evaluate(model: Model, method: Method, logits: Array, state: State, value: float) -> float:
    """J, or ``value`` if π_t is evaluated already; also fills in 1/η(s) = V(s) - r_l/(1 - γ) if asked for."""
    if state.matrix.size > 0:
        for s in range(len(logits)):
            _softmax(logits, s, state.at.policy)
        value = evaluate_dense(model, state.at, state.matrix)
    if method.per_state:
        for s in range(len(logits)):
            state.inv_eta[s] = max(state.at.v[s] - method.lowest_value, 0.0)
    return value


@leaf
def _closed_form(method: Method, logits: Array, state: State) -> float:
    """One exact update of every state, in log space; logits become log-probabilities.

    sMDPO: p ∝ p_t max(1 + ηA, floor), written p_t (1/η + A) so that 1/η = 0 is allowed;
    MDPO: p ∝ p_t exp(ηA);  CPI: p = (1 - α)p_t + α greedy(A), where α < 0 stands for
    min(1, |α| Σ d(s) max_a A(s, a)). Returns η (its least) or α.
    """
    policy, advantage, inv_eta = state.at.policy, state.at.advantage, state.inv_eta
    states, actions = logits.shape
    alpha, surplus, weakest = method.alpha, 0.0, 0.0
    for s in range(states):
        surplus += state.at.occupancy[s] * advantage[s, _largest(advantage, s)]
        weakest = max(weakest, inv_eta[s])
    if alpha < 0.0:
        alpha = min(1.0, -alpha * surplus)
    for s in range(states):
        best = _largest(advantage, s)
        if method.objective == SMDPO:
            if inv_eta[s] + advantage[s, best] > 0.0:
                for a in range(actions):
                    logits[s, a] += np.log(max(inv_eta[s] + advantage[s, a], method.floor * inv_eta[s]))
        elif method.objective == MDPO:
            for a in range(actions):
                logits[s, a] += advantage[s, a] / inv_eta[s]
        else:
            for a in range(actions):
                logits[s, a] = np.log((1.0 - alpha) * policy[s, a] + (alpha if a == best else 0.0))
        shift = _softmax(logits, s, policy)
        for a in range(actions):
            logits[s, a] -= shift
    return alpha if method.objective == CPI else 1.0 / weakest


@entry
def run_fixed(model: Model, method: Method, logits: Array, state: State, values: Array, used: Array) -> int:
    """Algorithm 1 with a fixed inner step size, in ``used`` (iterations, 1); α < 0 stands for 1/β.

    Returns, as all loops do, the number of iterations made.
    """
    for t in range(values.size):
        values[t] = _evaluate(model, method, logits, state, values[t])
        alpha, at = method.alpha, state.at
        if alpha < 0.0:
            # β = max_s d(s)/(2η(s)): the Hessian of lse has norm at most 1/2
            smoothness = 0.0
            for s in range(len(logits)):
                smoothness = max(smoothness, 0.5 * at.occupancy[s] * state.inv_eta[s])
            alpha = 1.0 / smoothness
        used[t, 0] = alpha
        packets = gather(state.packets, logits, at.advantage, at.occupancy, state.inv_eta)
        fixed_steps(method, alpha, packets)
        if not scatter(packets, logits):
            return t + 1
    return values.size


@entry
def run_search(model: Model, method: Method, logits: Array, state: State, values: Array, used: Array) -> int:
    """Algorithm 1 with a search in every inner step; ``used`` is (iterations, m)."""
    for t in range(values.size):
        values[t] = _evaluate(model, method, logits, state, values[t])
        packets = gather(state.packets, logits, state.at.advantage, state.at.occupancy, state.inv_eta)
        search_steps(method, packets, used[t])
        if not scatter(packets, logits):
            return t + 1
    return values.size


@entry
def run_closed_form(
    model: Model, method: Method, logits: Array, state: State, values: Array, used: Array
) -> int:
    """Exact maximisation of the surrogate in every iteration; ``used`` is (iterations, 1)."""
    for t in range(values.size):
        values[t] = _evaluate(model, method, logits, state, values[t])
        used[t, 0] = _closed_form(method, logits, state)
    return values.size


LOOPS = {
    "fixed": run_fixed,
    "line_search": run_search,
    "constrained": run_search,
    "closed_form": run_closed_form,
}
