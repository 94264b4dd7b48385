"""The surrogates on packets of eight states, compiled: gradients, values, trust-region directions.

The states whose action matters are copied side by side, action by action (column ``(packet · A + a) · 8 +
lane``), and every operation works on eight of them at once. A state of zero occupancy or of zero advantage
has a gradient of exactly zero for every objective; it gets no lane. Spare lanes of the last packet have
weight zero.

Symbols, per state: ``u`` = θ - θ_t and ``shift`` = lse(θ) - lse(θ_t), so that log p/p_t = u - shift.
Formulas in :mod:`sppo.exact.objectives`; tests tie the two together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sppo.exact.evaluation import Array, IntArray, inlined, leaf
from sppo.exact.vectors import WIDTH, Vector, exp, load, log, maximum, splat, store, total, where_less

SMDPO, MDPO, TRPO, PPO = range(4)
#: Armijo on J - C/η; on J alone with clipped logarithms, as published; trust region.
ARMIJO, PUBLISHED, TRUST_REGION = range(3)
#: Rows of ``Packets.pair``: one number per state and action; the last two are scratch.
LOGITS, OLD, P_OLD, ADVANTAGE, STEP, WEIGHT, FACTOR = range(7)
#: Rows of ``Packets.single``: one number per state. The normaliser is lse(θ_t).
OCCUPANCY, INV_ETA, NORMALISER = range(3)
#: The published runs clipped probabilities to [1e-8, 1 - 1e-8] inside logarithms.
LOWEST_LOG, HIGHEST_LOG = math.log(1e-8), math.log1p(-1e-8)
#: p_t/p is capped at the exponential of this in sMDPO's trust-region direction, far from overflow.
LARGEST_LOG_RATIO = 600.0


class Method(NamedTuple):
    """All numbers of a run: objective (or kind of closed form), inner steps, and how steps are searched."""

    objective: int
    per_state: bool = False
    inner_steps: int = 1
    alpha: float = 0.0
    epsilon: float = 0.0
    floor: float = 0.0
    rule: int = ARMIJO
    first_step: float = 0.0
    delta: float = 0.0
    cutoff: float = 0.0
    armijo: float = 0.0
    decay: float = 0.0
    warm_start: float = 0.0
    tries: int = 0


class Packets(NamedTuple):
    """Workspace: matrices with a row per quantity, and which state each lane holds."""

    pair: Array
    single: Array
    states: IntArray


def new_packets(states: int, actions: int) -> Packets:
    """An empty workspace with room for every state of an MDP."""
    lanes = (states + WIDTH - 1) // WIDTH * WIDTH
    pair, single = np.zeros((FACTOR + 1, lanes * actions)), np.zeros((NORMALISER + 1, lanes))
    return Packets(pair, single, np.zeros(lanes, dtype=np.int64))


@inlined
def weigh(alpha: float, packets: Packets, actions: int, k: int) -> tuple[Vector, Vector]:
    """Of the policy softmax(θ + α step): unnormalised probabilities into ``WEIGHT``; their sum, and shift."""
    pair, base = packets.pair, k * actions * WIDTH
    top = load(pair, LOGITS, base) + alpha * load(pair, STEP, base)
    for at in range(base + WIDTH, base + actions * WIDTH, WIDTH):
        top = maximum(top, load(pair, LOGITS, at) + alpha * load(pair, STEP, at))
    mass = splat(0.0)
    for at in range(base, base + actions * WIDTH, WIDTH):
        w = exp(load(pair, LOGITS, at) + alpha * load(pair, STEP, at) - top)
        store(pair, WEIGHT, at, w)
        mass = mass + w
    return mass, (top - load(packets.single, NORMALISER, k * WIDTH)) + log(mass)


@leaf
def gather(packets: Packets, logits: Array, advantage: Array, occupancy: Array, inv_eta: Array) -> int:
    """Copy the states where the action matters into packets; returns the number of packets."""
    pair, single = packets.pair, packets.single
    states, actions = logits.shape
    n = 0
    for s in range(states):
        matters = False
        for a in range(actions):
            matters |= advantage[s, a] != 0.0
        if not matters or not occupancy[s] > 0.0:
            continue
        packets.states[n] = s
        single[OCCUPANCY, n], single[INV_ETA, n] = occupancy[s], inv_eta[s]
        for a in range(actions):
            at = (n // WIDTH * actions + a) * WIDTH + n % WIDTH
            pair[LOGITS, at], pair[ADVANTAGE, at] = logits[s, a], advantage[s, a]
        n += 1
    packs = (n + WIDTH - 1) // WIDTH
    for spare in range(n, packs * WIDTH):
        packets.states[spare] = -1
        single[OCCUPANCY, spare], single[INV_ETA, spare] = 0.0, 0.0
        for a in range(actions):
            at = (spare // WIDTH * actions + a) * WIDTH + spare % WIDTH
            pair[LOGITS, at], pair[ADVANTAGE, at] = 0.0, 0.0
    for k in range(packs):
        for at in range(k * actions * WIDTH, (k + 1) * actions * WIDTH, WIDTH):
            store(pair, OLD, at, load(pair, LOGITS, at))
            store(pair, STEP, at, splat(0.0))
        store(single, NORMALISER, k * WIDTH, splat(0.0))
        mass, normaliser = weigh(0.0, packets, actions, k)
        store(single, NORMALISER, k * WIDTH, normaliser)
        for at in range(k * actions * WIDTH, (k + 1) * actions * WIDTH, WIDTH):
            store(pair, P_OLD, at, load(pair, WEIGHT, at) / mass)
    return packs


@leaf
def scatter(packets: Packets, packs: int, logits: Array) -> bool:
    """Copy the packets back into ``logits``; returns whether any number changed."""
    changed = False
    actions = logits.shape[1]
    for i in range(packs * WIDTH):
        s = packets.states[i]
        for a in range(actions if s >= 0 else 0):
            x = packets.pair[LOGITS, (i // WIDTH * actions + a) * WIDTH + i % WIDTH]
            changed |= logits[s, a] != x
            logits[s, a] = x
    return changed


@inlined
def clipped_log_ratio(x: Vector, old: Vector, shift: Vector, normaliser: Vector) -> Vector:
    """log p/p_t of both probabilities clipped; lse(θ) is shift + normaliser."""
    log_old = old - normaliser
    log_p = x - normaliser - shift
    log_old = maximum(where_less(log_old, HIGHEST_LOG, log_old, HIGHEST_LOG), LOWEST_LOG)
    return maximum(where_less(log_p, HIGHEST_LOG, log_p, HIGHEST_LOG), LOWEST_LOG) - log_old


@inlined
def packet_gradient(method: Method, packets: Packets, actions: int, k: int) -> Vector:
    """step = ∇_θ (J - C/η) of packet ``k``; returns the squares' sum, lane by lane."""
    pair, objective, base = packets.pair, method.objective, k * actions * WIDTH
    occupancy = load(packets.single, OCCUPANCY, k * WIDTH)
    inv_eta = load(packets.single, INV_ETA, k * WIDTH)
    normaliser = load(packets.single, NORMALISER, k * WIDTH)
    mass, shift = weigh(0.0, packets, actions, k)
    scale = 1.0 / mass
    mean, squares = splat(0.0), splat(0.0)
    if objective != SMDPO:
        for at in range(base, base + actions * WIDTH, WIDTH):
            p = load(pair, WEIGHT, at) * scale
            f = load(pair, ADVANTAGE, at)
            if objective == MDPO:
                x, old = load(pair, LOGITS, at), load(pair, OLD, at)
                if method.rule == PUBLISHED:
                    f = f - clipped_log_ratio(x, old, shift, normaliser) * inv_eta
                else:
                    f = f - (x - old) * inv_eta
            elif objective == PPO:
                p_old = load(pair, P_OLD, at)
                gain = where_less(0.0, f, where_less(p, (1.0 + method.epsilon) * p_old, f, 0.0), 0.0)
                loss = where_less(f, 0.0, where_less((1.0 - method.epsilon) * p_old, p, f, 0.0), 0.0)
                f = gain + loss
            store(pair, FACTOR, at, f)
            mean = mean + p * f
    for at in range(base, base + actions * WIDTH, WIDTH):
        p, p_old = load(pair, WEIGHT, at) * scale, load(pair, P_OLD, at)
        if objective == SMDPO:
            g = p_old * load(pair, ADVANTAGE, at) + inv_eta * (p_old - p)
        else:
            g = p * (load(pair, FACTOR, at) - mean)
            if objective == TRPO:
                g = g + inv_eta * (p_old - p)
        g = occupancy * g
        store(pair, STEP, at, g)
        squares = squares + g * g
    return squares


@leaf
def measure(method: Method, alpha: float, packets: Packets, actions: int, packs: int) -> tuple[float, float]:
    """(what the rule compares, C) of the policy softmax(θ + α step).

    Compared is J - C/η by the Armijo rule, else J, with A in place of Q (which shifts J by a constant).

    sMDPO: J = Σ d Σ p_t A (u - shift), where Σ p_t A = 0;  TRPO, MDPO: J = Σ d Σ p A;
    sMDPO, TRPO: C = Σ d (shift - Σ p_t u);  MDPO: C = Σ d (Σ p u - shift).
    """
    pair, objective = packets.pair, method.objective
    scores, divergences = splat(0.0), splat(0.0)
    for k in range(packs):
        normaliser = load(packets.single, NORMALISER, k * WIDTH)
        mass, shift = weigh(alpha, packets, actions, k)
        gain, moved = splat(0.0), splat(0.0)
        for at in range(k * actions * WIDTH, (k + 1) * actions * WIDTH, WIDTH):
            x, old = load(pair, LOGITS, at) + alpha * load(pair, STEP, at), load(pair, OLD, at)
            p_old, w, u = load(pair, P_OLD, at), load(pair, WEIGHT, at), x - old
            if objective == SMDPO and method.rule == PUBLISHED:
                w = p_old * clipped_log_ratio(x, old, shift, normaliser)
            elif objective == SMDPO:
                w = p_old * u
            gain = gain + w * load(pair, ADVANTAGE, at)
            moved = moved + (w if objective == MDPO else p_old) * u
        scale = 1.0 / mass
        divergence = moved * scale - shift if objective == MDPO else shift - moved
        if objective != SMDPO:
            gain = gain * scale
        occupancy = load(packets.single, OCCUPANCY, k * WIDTH)
        if method.rule == ARMIJO:
            gain = gain - load(packets.single, INV_ETA, k * WIDTH) * divergence
        scores = scores + occupancy * gain
        divergences = divergences + occupancy * divergence
    return total(scores), total(divergences)


@leaf
def largest_curvature(packets: Packets, actions: int, packs: int) -> float:
    """The largest eigenvalue of d (diag p - ppᵀ) over states, by the difference of its two likeliest actions.

    For v = (e_i - e_j)/√2 with the two largest probabilities, vᵀ(diag p - ppᵀ)v = ½(p_i + p_j - (p_i -
    p_j)²).
    """
    pair, largest = packets.pair, splat(0.0)
    for k in range(packs):
        mass, _ = weigh(0.0, packets, actions, k)
        p, q = splat(0.0), splat(0.0)
        for at in range(k * actions * WIDTH, (k + 1) * actions * WIDTH, WIDTH):
            w = load(pair, WEIGHT, at) / mass
            q = maximum(q, where_less(p, w, p, w))
            p = maximum(p, w)
        eigenvalue = 0.5 * (p + q - (p - q) * (p - q))
        largest = maximum(largest, load(packets.single, OCCUPANCY, k * WIDTH) * eigenvalue)
    store(pair, WEIGHT, 0, largest)
    result = 0.0
    for i in range(WIDTH):
        result = max(result, pair[WEIGHT, i])
    return result


@leaf
def packet_direction(objective: int, smallest: float, packets: Packets, actions: int, k: int) -> float:
    """step = H⁺g of packet ``k`` for g = ∇J and H = ∇²C; returns its share of sᵀHs = gᵀs.

    H⁺ picks, among the solutions (equal up to a constant per state), the one of mean zero.
    sMDPO: s = A p_t/p;  TRPO: s = A;  MDPO: s = (A - Σ pA + y)/τ with τ = log p/p_t - KL(p‖p_t) + 1
    and y = -Σ (p/τ)(A - Σ pA) / Σ p/τ, which makes Σ p s = 0. An action of curvature d p |τ| (τ = 1 but for
    MDPO) below ``smallest`` belongs to the numerical null space: its s is zero.
    """
    pair, columns = packets.pair, range(k * actions * WIDTH, (k + 1) * actions * WIDTH, WIDTH)
    occupancy = load(packets.single, OCCUPANCY, k * WIDTH)
    mass, shift = weigh(0.0, packets, actions, k)
    mean, moved = splat(0.0), splat(0.0)
    for at in columns:
        p = load(pair, WEIGHT, at) / mass
        store(pair, WEIGHT, at, p)
        mean = mean + p * load(pair, ADVANTAGE, at)
        moved = moved + p * (load(pair, LOGITS, at) - load(pair, OLD, at))
    # 1/τ, or 0 for the numerical null space
    numerator, denominator, count = splat(0.0), splat(0.0), splat(0.0)
    for at in columns:
        p, tau = load(pair, WEIGHT, at), splat(1.0)
        if objective == MDPO:
            tau = load(pair, LOGITS, at) - load(pair, OLD, at) - moved + 1.0
        size = occupancy * p * where_less(tau, 0.0, 0.0 - tau, tau)
        factor = where_less(smallest, size, 1.0 / tau, 0.0)
        store(pair, FACTOR, at, factor)
        numerator = numerator + p * factor * (load(pair, ADVANTAGE, at) - mean)
        denominator = denominator + p * factor
        count = count + where_less(smallest, size, splat(1.0), 0.0)
    offset = where_less(0.0, denominator * denominator, numerator / denominator, 0.0)
    average = splat(0.0)
    for at in columns:
        s = load(pair, ADVANTAGE, at)
        if objective == SMDPO:
            log_ratio = shift - (load(pair, LOGITS, at) - load(pair, OLD, at))
            s = s * exp(where_less(log_ratio, LARGEST_LOG_RATIO, log_ratio, LARGEST_LOG_RATIO))
        elif objective == MDPO:
            s = s - mean - offset
        s = s * load(pair, FACTOR, at)
        store(pair, STEP, at, s)
        average = average + s
    average = average / maximum(count, 1.0)
    slope = splat(0.0)
    for at in columns:
        factor, advantage = load(pair, FACTOR, at), load(pair, ADVANTAGE, at)
        s = where_less(0.0, factor * factor, load(pair, STEP, at) - average, 0.0)
        store(pair, STEP, at, s)
        if objective == SMDPO:
            slope = slope + load(pair, P_OLD, at) * advantage * s
        else:
            slope = slope + load(pair, WEIGHT, at) * (advantage - mean) * s
    return total(occupancy * slope)
