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
from sppo.exact.vectors import WIDTH, Vector, differs, exp, if_less, load, log, maximum, splat, store, total

#: CPI is a closed form only; the natural gradient's is MDPO's, and the policy gradient MDPO's with 1/η = 0.
SMDPO, MDPO, TRPO, PPO, CPI = range(5)
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
    """All numbers of a run: objective, step sizes, and how steps are searched."""

    objective: int
    per_state: bool = False
    lowest_value: float = 0.0
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
    """Workspace: matrices with a row per quantity, which state each lane holds, and how much is in use."""

    pair: Array
    single: Array
    states: IntArray
    actions: int
    packs: int = 0


def new_packets(states: int, actions: int) -> Packets:
    """An empty workspace with room for every state of an MDP."""
    lanes = (states + WIDTH - 1) // WIDTH * WIDTH
    pair, single = np.zeros((FACTOR + 1, lanes * actions)), np.zeros((NORMALISER + 1, lanes))
    return Packets(pair, single, np.zeros(lanes, dtype=np.int64), actions)


@inlined
def columns(packets: Packets, k: int) -> range:
    """Where the actions of packet ``k`` are."""
    width = packets.actions * WIDTH
    return range(k * width, (k + 1) * width, WIDTH)


@inlined
def weigh(alpha: float, packets: Packets, k: int) -> tuple[Vector, Vector]:
    """Of the policy softmax(θ + α step): unnormalised probabilities into ``WEIGHT``; their sum, and shift."""
    pair, top, mass = packets.pair, splat(-1e308), splat(0.0)
    for at in columns(packets, k):
        top = maximum(top, load(pair, LOGITS, at) + alpha * load(pair, STEP, at))
    for at in columns(packets, k):
        w = exp(load(pair, LOGITS, at) + alpha * load(pair, STEP, at) - top)
        store(pair, WEIGHT, at, w)
        mass = mass + w
    return mass, (top - load(packets.single, NORMALISER, k * WIDTH)) + log(mass)


@leaf
def gather(room: Packets, logits: Array, advantage: Array, occupancy: Array, inv_eta: Array) -> Packets:
    """The states where the action matters, copied into packets."""
    pair, single, actions, n = room.pair, room.single, room.actions, 0
    pair[:], single[:], room.states[:] = 0.0, 0.0, -1
    for s in range(len(occupancy)):
        matters = False
        for a in range(actions):
            matters |= advantage[s, a] != 0.0
        if not matters or not occupancy[s] > 0.0:
            continue
        room.states[n] = s
        single[OCCUPANCY, n], single[INV_ETA, n] = occupancy[s], inv_eta[s]
        for a in range(actions):
            at = (n // WIDTH * actions + a) * WIDTH + n % WIDTH
            pair[LOGITS, at], pair[ADVANTAGE, at] = logits[s, a], advantage[s, a]
        n += 1
    packets = Packets(pair, single, room.states, actions, (n + WIDTH - 1) // WIDTH)
    for k in range(packets.packs):
        mass, normaliser = weigh(0.0, packets, k)
        store(single, NORMALISER, k * WIDTH, normaliser)
        for at in columns(packets, k):
            store(pair, OLD, at, load(pair, LOGITS, at))
            store(pair, P_OLD, at, load(pair, WEIGHT, at) / mass)
    return packets


@leaf
def scatter(packets: Packets, logits: Array) -> bool:
    """Copy the packets back into ``logits``; returns whether any number changed."""
    changed, actions = False, packets.actions
    for i in range(packets.packs * WIDTH):
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
    log_old = maximum(if_less(log_old, HIGHEST_LOG, log_old, HIGHEST_LOG), LOWEST_LOG)
    return maximum(if_less(log_p, HIGHEST_LOG, log_p, HIGHEST_LOG), LOWEST_LOG) - log_old


@inlined
def packet_gradient(method: Method, packets: Packets, k: int) -> Vector:
    """step = ∇_θ (J - C/η) of packet ``k``; returns the squares' sum, lane by lane."""
    pair, objective = packets.pair, method.objective
    occupancy = load(packets.single, OCCUPANCY, k * WIDTH)
    inv_eta = load(packets.single, INV_ETA, k * WIDTH)
    normaliser = load(packets.single, NORMALISER, k * WIDTH)
    mass, shift = weigh(0.0, packets, k)
    scale = 1.0 / mass
    mean, squares = splat(0.0), splat(0.0)
    if objective != SMDPO:
        for at in columns(packets, k):
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
                gain = if_less(0.0, f, if_less(p, (1.0 + method.epsilon) * p_old, f, 0.0), 0.0)
                loss = if_less(f, 0.0, if_less((1.0 - method.epsilon) * p_old, p, f, 0.0), 0.0)
                f = gain + loss
            store(pair, FACTOR, at, f)
            mean = mean + p * f
    for at in columns(packets, k):
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
def measure(method: Method, alpha: float, packets: Packets) -> tuple[float, float]:
    """(what the rule compares, C) of the policy softmax(θ + α step).

    Compared is J - C/η by the Armijo rule, else J, with A in place of Q (which shifts J by a constant).

    sMDPO: J = Σ d Σ p_t A (u - shift), where Σ p_t A = 0;  TRPO, MDPO: J = Σ d Σ p A;
    sMDPO, TRPO: C = Σ d (shift - Σ p_t u);  MDPO: C = Σ d (Σ p u - shift).
    """
    pair, objective = packets.pair, method.objective
    scores, divergences = splat(0.0), splat(0.0)
    for k in range(packets.packs):
        normaliser = load(packets.single, NORMALISER, k * WIDTH)
        mass, shift = weigh(alpha, packets, k)
        gain, moved = splat(0.0), splat(0.0)
        for at in columns(packets, k):
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
def largest_curvature(packets: Packets) -> float:
    """The largest eigenvalue of d (diag p - ppᵀ) over states, by the difference of its two likeliest actions.

    For v = (e_i - e_j)/√2 with the two largest probabilities, vᵀ(diag p - ppᵀ)v = ½(p_i + p_j - (p_i -
    p_j)²).
    """
    pair, largest = packets.pair, splat(0.0)
    for k in range(packets.packs):
        mass, _ = weigh(0.0, packets, k)
        p, q = splat(0.0), splat(0.0)
        for at in columns(packets, k):
            w = load(pair, WEIGHT, at) / mass
            q = maximum(q, if_less(p, w, p, w))
            p = maximum(p, w)
        eigenvalue = 0.5 * (p + q - (p - q) * (p - q))
        largest = maximum(largest, load(packets.single, OCCUPANCY, k * WIDTH) * eigenvalue)
    store(pair, WEIGHT, 0, largest)
    result = 0.0
    for i in range(WIDTH):
        result = max(result, pair[WEIGHT, i])
    return result


@leaf
def packet_direction(objective: int, smallest: float, packets: Packets, k: int) -> float:
    """step = H⁺g of packet ``k`` for g = ∇J and H = ∇²C; returns its share of sᵀHs = gᵀs.

    H⁺ picks, among the solutions (equal up to a constant per state), the one of mean zero.
    sMDPO: s = A p_t/p;  TRPO: s = A;  MDPO: s = (A - Σ pA + y)/τ with τ = log p/p_t - KL(p‖p_t) + 1
    and y = -Σ (p/τ)(A - Σ pA) / Σ p/τ, which makes Σ p s = 0. An action of curvature d p |τ| (τ = 1 but for
    MDPO) below ``smallest`` belongs to the numerical null space: its s is zero.
    """
    pair = packets.pair
    occupancy = load(packets.single, OCCUPANCY, k * WIDTH)
    mass, shift = weigh(0.0, packets, k)
    mean, moved = splat(0.0), splat(0.0)
    for at in columns(packets, k):
        p = load(pair, WEIGHT, at) / mass
        store(pair, WEIGHT, at, p)
        mean = mean + p * load(pair, ADVANTAGE, at)
        moved = moved + p * (load(pair, LOGITS, at) - load(pair, OLD, at))
    # 1/τ, or 0 for the numerical null space
    numerator, denominator, count = splat(0.0), splat(0.0), splat(0.0)
    for at in columns(packets, k):
        p, tau = load(pair, WEIGHT, at), splat(1.0)
        if objective == MDPO:
            tau = load(pair, LOGITS, at) - load(pair, OLD, at) - moved + 1.0
        size = occupancy * p * if_less(tau, 0.0, 0.0 - tau, tau)
        factor = if_less(smallest, size, 1.0 / tau, 0.0)
        store(pair, FACTOR, at, factor)
        numerator = numerator + p * factor * (load(pair, ADVANTAGE, at) - mean)
        denominator = denominator + p * factor
        count = count + if_less(smallest, size, splat(1.0), 0.0)
    offset = if_less(0.0, denominator * denominator, numerator / denominator, 0.0)
    average = splat(0.0)
    for at in columns(packets, k):
        s = load(pair, ADVANTAGE, at)
        if objective == SMDPO:
            log_ratio = shift - (load(pair, LOGITS, at) - load(pair, OLD, at))
            s = s * exp(if_less(log_ratio, LARGEST_LOG_RATIO, log_ratio, LARGEST_LOG_RATIO))
        elif objective == MDPO:
            s = s - mean - offset
        s = s * load(pair, FACTOR, at)
        store(pair, STEP, at, s)
        average = average + s
    average = average / maximum(count, 1.0)
    slope = splat(0.0)
    for at in columns(packets, k):
        factor, advantage = load(pair, FACTOR, at), load(pair, ADVANTAGE, at)
        s = if_less(0.0, factor * factor, load(pair, STEP, at) - average, 0.0)
        store(pair, STEP, at, s)
        if objective == SMDPO:
            slope = slope + load(pair, P_OLD, at) * advantage * s
        else:
            slope = slope + load(pair, WEIGHT, at) * (advantage - mean) * s
    return total(occupancy * slope)


@inlined
def move(alpha: float, packets: Packets, k: int) -> bool:
    """θ ← θ + α step in packet ``k``; returns whether any bit changed."""
    pair, moved = packets.pair, False
    for at in columns(packets, k):
        x = load(pair, LOGITS, at)
        y = x + alpha * load(pair, STEP, at)
        store(pair, LOGITS, at, y)
        moved = moved or differs(x, y)
    return moved


@leaf
def concave_until(objective: int, alpha: float, packets: Packets) -> bool:
    """Whether max h - min h ≤ 1/η in every state at θ + α step; h as in :mod:`sppo.exact.loops`."""
    if objective == SMDPO:
        return True
    pair, excess = packets.pair, splat(0.0)
    for k in range(packets.packs):
        inv_eta = load(packets.single, INV_ETA, k * WIDTH)
        highest, lowest = splat(-1e308), splat(1e308)
        for at in columns(packets, k):
            h = load(pair, ADVANTAGE, at)
            if objective == MDPO:
                u = load(pair, LOGITS, at) - load(pair, OLD, at)
                h = h - (u + alpha * load(pair, STEP, at)) * inv_eta
            highest = maximum(highest, h)
            lowest = if_less(h, lowest, h, lowest)
        excess = maximum(excess, highest - lowest - inv_eta)
    return not differs(excess, 0.0)


@leaf
def rising_until(alpha: float, packets: Packets) -> bool:
    """Whether MDPO's C certainly increases along θ + xs for x from 0 to α.

    C'(x) = Σ d [Cov(u, s) + x Var(s)] under the policy at x, and the covariance falls at a rate of at most
    range(u) Var(s). There, Var(s) is at most exp(x range(s)) times the variance at θ, and at most
    range(s)²/4. So C'(x) ≥ Σ d [Cov(u, s) - α range(u) min(exp(α range(s)) Var(s), range(s)²/4)], both at θ.
    """
    pair, slopes = packets.pair, splat(0.0)
    for k in range(packets.packs):
        mass, _ = weigh(0.0, packets, k)
        mean_u, mean_s, product, square = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        high_u, high_s, low_u, low_s = splat(-1e308), splat(-1e308), splat(1e308), splat(1e308)
        for at in columns(packets, k):
            u, s = load(pair, LOGITS, at) - load(pair, OLD, at), load(pair, STEP, at)
            p = load(pair, WEIGHT, at) / mass
            mean_u, mean_s = mean_u + p * u, mean_s + p * s
            high_u, high_s = maximum(high_u, u), maximum(high_s, s)
            low_u, low_s = if_less(u, low_u, u, low_u), if_less(s, low_s, s, low_s)
        for at in columns(packets, k):
            u, s = load(pair, LOGITS, at) - load(pair, OLD, at) - mean_u, load(pair, STEP, at) - mean_s
            p = load(pair, WEIGHT, at) / mass
            product, square = product + p * u * s, square + p * s * s
        width = alpha * (high_s - low_s)
        grown = exp(if_less(width, LARGEST_LOG_RATIO, width, LARGEST_LOG_RATIO)) * square
        cap = 0.25 * (high_s - low_s) * (high_s - low_s)
        fall = alpha * (high_u - low_u) * if_less(grown, cap, grown, cap)
        slopes = slopes + load(packets.single, OCCUPANCY, k * WIDTH) * (product - fall)
    return bool(total(slopes) > 0.0)
