"""The inner loop of Algorithm 1, compiled: gradients, line searches and trust-region steps.

Layout: *packets* of eight states. The states whose action matters are copied side by side, action by action
(column ``(packet · A + a) · 8 + lane``), and every operation below works on eight of them at once. A state
of zero occupancy or of zero advantage has a gradient of exactly zero for every objective; it gets no lane.
Spare lanes of the last packet have weight zero.

Symbols, per state: ``u`` = θ - θ_t and ``shift`` = lse(θ) - lse(θ_t), so that log p/p_t = u - shift.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sppo.exact._jit import inlined, leaf
from sppo.exact._simd import WIDTH, differs, exp, load, log, maximum, splat, store, total, where_less
from sppo.exact._types import Array, IntArray

SMDPO, MDPO, TRPO, PPO = range(4)
#: Armijo on the regularised objective; Armijo on the unregularised one; trust region.
ARMIJO, ARMIJO_UNREGULARIZED, TRUST_REGION = range(3)
#: A fixed point is looked for once in so many steps.
FIXED_POINT_PERIOD = 16
#: p_t/p is capped at the exponential of this in sMDPO's trust-region direction, far from overflow.
LARGEST_LOG_RATIO = 600.0
#: Warm starts stop growing here, where every finite step has long saturated the policy.
LARGEST_STEP = 1e100


#: Rows of ``Packets.pair``: one number per state and action; the last three are scratch.
LOGITS, OLD, P_OLD, ADVANTAGE, STEP, NEXT, WEIGHT, FACTOR = range(8)
#: Rows of ``Packets.single``: one number per state. The normaliser is lse(θ_t).
OCCUPANCY, INV_ETA, NORMALISER = range(3)


class Search(NamedTuple):
    """How steps are searched: the rule, the first trial, the radius δ, the cutoff of the pseudo-inverse, and
    the constants of backtracking."""

    rule: int
    first_step: float
    delta: float
    cutoff: float
    armijo: float
    decay: float
    warm_start: float
    tries: int
    fallback: float


class Packets(NamedTuple):
    """Workspace: matrices with a row per quantity, and which state each lane holds."""

    pair: Array
    single: Array
    states: IntArray


def new_packets(states: int, actions: int) -> Packets:
    """An empty workspace with room for every state of an MDP."""
    lanes = (states + WIDTH - 1) // WIDTH * WIDTH
    return Packets(
        np.zeros((FACTOR + 1, lanes * actions)),
        np.zeros((NORMALISER + 1, lanes)),
        np.zeros(lanes, dtype=np.int64),
    )


@leaf
def gather(packets: Packets, logits: Array, advantage: Array, occupancy: Array, inv_eta: Array) -> int:
    """Copy the states where the action matters into packets; returns the number of states copied."""
    states, actions = logits.shape
    n = 0
    for s in range(states):
        matters = False
        for a in range(actions):
            matters |= advantage[s, a] != 0.0
        if not matters or not occupancy[s] > 0.0:
            continue
        packets.states[n] = s
        packets.single[OCCUPANCY, n] = occupancy[s]
        packets.single[INV_ETA, n] = inv_eta[s]
        for a in range(actions):
            flat = (n // WIDTH * actions + a) * WIDTH + n % WIDTH
            packets.pair[OLD, flat] = logits[s, a]
            packets.pair[ADVANTAGE, flat] = advantage[s, a]
        n += 1
    for spare in range(n, (n + WIDTH - 1) // WIDTH * WIDTH):
        packets.single[OCCUPANCY, spare] = 0.0
        packets.single[INV_ETA, spare] = 0.0
        for a in range(actions):
            flat = (spare // WIDTH * actions + a) * WIDTH + spare % WIDTH
            packets.pair[OLD, flat] = 0.0
            packets.pair[ADVANTAGE, flat] = 0.0
    for k in range((n + WIDTH - 1) // WIDTH):
        base = k * actions * WIDTH
        top = load(packets.pair, OLD, base)
        for a in range(1, actions):
            top = maximum(top, load(packets.pair, OLD, base + a * WIDTH))
        mass = splat(0.0)
        for a in range(actions):
            mass = mass + exp(load(packets.pair, OLD, base + a * WIDTH) - top)
        store(packets.single, NORMALISER, k * WIDTH, top + log(mass))
        for a in range(actions):
            x = load(packets.pair, OLD, base + a * WIDTH)
            store(packets.pair, LOGITS, base + a * WIDTH, x)
            store(packets.pair, P_OLD, base + a * WIDTH, exp(x - top) / mass)
    return n


@leaf
def scatter(packets: Packets, n: int, logits: Array) -> bool:
    """Copy the packets back into ``logits``; returns whether any number changed."""
    changed = False
    actions = logits.shape[1]
    for i in range(n):
        s = packets.states[i]
        for a in range(actions):
            x = packets.pair[LOGITS, (i // WIDTH * actions + a) * WIDTH + i % WIDTH]
            changed |= logits[s, a] != x
            logits[s, a] = x
    return changed


@inlined
def packet_gradient(objective: int, epsilon: float, packets: Packets, actions: int, k: int) -> None:
    """step = ∇_θ (J - C/η) of packet ``k``; formulas in :mod:`sppo.exact.objectives`."""
    base = k * actions * WIDTH
    occupancy = load(packets.single, OCCUPANCY, k * WIDTH)
    inv_eta = load(packets.single, INV_ETA, k * WIDTH)
    zero = splat(0.0)
    top = load(packets.pair, LOGITS, base)
    for a in range(1, actions):
        top = maximum(top, load(packets.pair, LOGITS, base + a * WIDTH))
    mass = zero
    for a in range(actions):
        w = exp(load(packets.pair, LOGITS, base + a * WIDTH) - top)
        store(packets.pair, WEIGHT, base + a * WIDTH, w)
        mass = mass + w
    scale = 1.0 / mass
    if objective == SMDPO:
        for a in range(actions):
            at = base + a * WIDTH
            p_old = load(packets.pair, P_OLD, at)
            pull = inv_eta * (p_old - load(packets.pair, WEIGHT, base + a * WIDTH) * scale)
            store(packets.pair, STEP, at, occupancy * (p_old * load(packets.pair, ADVANTAGE, at) + pull))
        return
    mean = zero
    for a in range(actions):
        at = base + a * WIDTH
        p = load(packets.pair, WEIGHT, base + a * WIDTH) * scale
        store(packets.pair, WEIGHT, base + a * WIDTH, p)
        f = load(packets.pair, ADVANTAGE, at)
        if objective == MDPO:
            f = f - (load(packets.pair, LOGITS, at) - load(packets.pair, OLD, at)) * inv_eta
        elif objective == PPO:
            p_old = load(packets.pair, P_OLD, at)
            gain = where_less(zero, f, where_less(p, (1.0 + epsilon) * p_old, f, zero), zero)
            loss = where_less(f, zero, where_less((1.0 - epsilon) * p_old, p, f, zero), zero)
            f = gain + loss
        store(packets.pair, STEP, at, f)
        mean = mean + p * f
    for a in range(actions):
        at = base + a * WIDTH
        p = load(packets.pair, WEIGHT, base + a * WIDTH)
        f = p * (load(packets.pair, STEP, at) - mean)
        if objective == TRPO:
            f = f + inv_eta * (load(packets.pair, P_OLD, at) - p)
        store(packets.pair, STEP, at, occupancy * f)


@leaf
def fixed_steps(
    objective: int, epsilon: float, alpha: float, steps: int, packets: Packets, actions: int, n: int
) -> None:
    """``steps`` times θ ← θ + α ∇(J - C/η); states do not interact, so packet by packet.

    Stops early at a fixed point only: a step that changes no bit of θ would be repeated for ever.
    """
    for k in range((n + WIDTH - 1) // WIDTH):
        for i in range(steps):
            packet_gradient(objective, epsilon, packets, actions, k)
            moved = i % FIXED_POINT_PERIOD != 0
            for a in range(actions):
                at = (k * actions + a) * WIDTH
                x = load(packets.pair, LOGITS, at)
                new = x + alpha * load(packets.pair, STEP, at)
                store(packets.pair, LOGITS, at, new)
                moved = moved or differs(x, new)
            if not moved:
                break


@leaf
def measure(
    objective: int, rule: int, alpha: float, packets: Packets, actions: int, n: int
) -> tuple[float, float]:
    """(what the rule compares, C) of the policy softmax(θ + α step).

    Compared is J - C/η by the Armijo rule, else J, with A in place of Q (which shifts J by a constant); C is
    computed for the trust region only.

    sMDPO: J = Σ d Σ p_t A (u - shift);  TRPO, MDPO: J = Σ d Σ p A;
    sMDPO, TRPO: C = Σ d (shift - Σ p_t u);  MDPO: C = Σ d (Σ p u - shift).
    """
    scores = splat(0.0)
    divergences = splat(0.0)
    for k in range((n + WIDTH - 1) // WIDTH):
        base = k * actions * WIDTH
        top = load(packets.pair, LOGITS, base) + alpha * load(packets.pair, STEP, base)
        for a in range(1, actions):
            at = base + a * WIDTH
            top = maximum(top, load(packets.pair, LOGITS, at) + alpha * load(packets.pair, STEP, at))
        mass = splat(0.0)
        gain = splat(0.0)
        moved = splat(0.0)
        for a in range(actions):
            at = base + a * WIDTH
            x = load(packets.pair, LOGITS, at) + alpha * load(packets.pair, STEP, at)
            w = exp(x - top)
            mass = mass + w
            u = x - load(packets.pair, OLD, at)
            if objective == SMDPO:
                pu = load(packets.pair, P_OLD, at) * u
                moved = moved + pu
                gain = gain + pu * load(packets.pair, ADVANTAGE, at)
            else:
                gain = gain + w * load(packets.pair, ADVANTAGE, at)
                moved = moved + (load(packets.pair, P_OLD, at) if objective == TRPO else w) * u
        shift = (top - load(packets.single, NORMALISER, k * WIDTH)) + log(mass)
        divergence = shift - moved
        if objective != SMDPO:
            scale = 1.0 / mass
            gain = gain * scale
            if objective == MDPO:
                divergence = moved * scale - shift
        occupancy = load(packets.single, OCCUPANCY, k * WIDTH)
        if rule == ARMIJO:
            gain = gain - load(packets.single, INV_ETA, k * WIDTH) * divergence
        scores = scores + occupancy * gain
        if rule == TRUST_REGION:
            divergences = divergences + occupancy * divergence
    return total(scores), (total(divergences) if rule == TRUST_REGION else 0.0)


@leaf
def largest_curvature(packets: Packets, actions: int, n: int) -> float:
    """The largest eigenvalue of d (diag p - ppᵀ) over states, by the difference of its two likeliest actions.

    For v = (e_i - e_j)/√2 with the two largest probabilities, vᵀ(diag p - ppᵀ)v = ½(p_i + p_j - (p_i -
    p_j)²).
    """
    largest = splat(0.0)
    for k in range((n + WIDTH - 1) // WIDTH):
        base = k * actions * WIDTH
        first = load(packets.pair, LOGITS, base)
        second = splat(-1e308)
        for a in range(1, actions):
            x = load(packets.pair, LOGITS, base + a * WIDTH)
            second = maximum(second, where_less(first, x, first, x))
            first = maximum(first, x)
        mass = splat(0.0)
        for a in range(actions):
            mass = mass + exp(load(packets.pair, LOGITS, base + a * WIDTH) - first)
        p = 1.0 / mass
        q = exp(second - first) * p
        eigenvalue = 0.5 * (p + q - (p - q) * (p - q))
        largest = maximum(largest, load(packets.single, OCCUPANCY, k * WIDTH) * eigenvalue)
    store(packets.pair, WEIGHT, 0, largest)
    result = 0.0
    for i in range(WIDTH):
        result = max(result, packets.pair[WEIGHT, i])
    return result


@leaf
def packet_direction(objective: int, smallest: float, packets: Packets, actions: int, k: int) -> float:
    """step = H⁺g of packet ``k`` for g = ∇J and H = ∇²C; returns its share of sᵀHs = gᵀs.

    H⁺ picks, among the solutions (equal up to a constant per state), the one of mean zero.
    sMDPO: s = A p_t/p;  TRPO: s = A;  MDPO: s = (A - Σ pA + y)/τ with τ = log p/p_t - KL(p‖p_t) + 1
    and y = -Σ (p/τ)(A - Σ pA) / Σ p/τ, which makes Σ p s = 0. An action of curvature d p |τ| (τ = 1 but for
    MDPO) below ``smallest`` belongs to the numerical null space: its s is zero.
    """
    base = k * actions * WIDTH
    occupancy = load(packets.single, OCCUPANCY, k * WIDTH)
    zero = splat(0.0)
    one = splat(1.0)
    least = splat(smallest)
    largest = splat(LARGEST_LOG_RATIO)
    top = load(packets.pair, LOGITS, base)
    for a in range(1, actions):
        top = maximum(top, load(packets.pair, LOGITS, base + a * WIDTH))
    mass = zero
    mean = zero
    moved = zero
    for a in range(actions):
        at = base + a * WIDTH
        x = load(packets.pair, LOGITS, at)
        w = exp(x - top)
        store(packets.pair, WEIGHT, base + a * WIDTH, w)
        mass = mass + w
        mean = mean + w * load(packets.pair, ADVANTAGE, at)
        moved = moved + w * (x - load(packets.pair, OLD, at))
    mean = mean / mass
    shift = (top - load(packets.single, NORMALISER, k * WIDTH)) + log(mass)
    divergence = moved / mass - shift
    # 1/τ, or 0 for the numerical null space, in the second half of the scratch array
    numerator = zero
    denominator = zero
    count = zero
    for a in range(actions):
        at = base + a * WIDTH
        w = load(packets.pair, WEIGHT, base + a * WIDTH)
        tau = one
        if objective == MDPO:
            tau = load(packets.pair, LOGITS, at) - load(packets.pair, OLD, at) - shift - divergence + 1.0
        size = occupancy * w / mass * where_less(tau, zero, zero - tau, tau)
        factor = where_less(least, size, one / tau, zero)
        store(packets.pair, FACTOR, base + a * WIDTH, factor)
        numerator = numerator + w * factor * (load(packets.pair, ADVANTAGE, at) - mean)
        denominator = denominator + w * factor
        count = count + where_less(least, size, one, zero)
    offset = where_less(zero, denominator * denominator, numerator / denominator, zero)
    average = zero
    for a in range(actions):
        at = base + a * WIDTH
        s = load(packets.pair, ADVANTAGE, at)
        if objective == SMDPO:
            log_ratio = shift - (load(packets.pair, LOGITS, at) - load(packets.pair, OLD, at))
            s = s * exp(where_less(log_ratio, largest, log_ratio, largest))
        elif objective == MDPO:
            s = s - mean - offset
        s = s * load(packets.pair, FACTOR, base + a * WIDTH)
        store(packets.pair, STEP, at, s)
        average = average + s
    average = average / maximum(count, one)
    slope = zero
    for a in range(actions):
        at = base + a * WIDTH
        factor = load(packets.pair, FACTOR, base + a * WIDTH)
        s = where_less(zero, factor * factor, load(packets.pair, STEP, at) - average, zero)
        store(packets.pair, STEP, at, s)
        advantage = load(packets.pair, ADVANTAGE, at)
        if objective == SMDPO:
            slope = slope + load(packets.pair, P_OLD, at) * advantage * s
        else:
            slope = slope + load(packets.pair, WEIGHT, base + a * WIDTH) / mass * (advantage - mean) * s
    return total(occupancy * slope)
