"""Armijo backtracking on ℓ = J - C/η, compiled, with few of its trials made.

Backtracking accepts the first of α, α·decay, ... with ℓ(θ + αg) ≥ ℓ(θ) + armijo·α‖g‖². Where ℓ is concave
along the segment, the accepted steps are an interval from zero, and one accepted trial whose tangent already
fails the test at the trial before it settles the search. Its gradient is the next step's direction, so that
most inner steps cost one evaluation.

Concavity, per state, with v = g - Σ pg and w = h - Σ ph: ℓ'' = d Σ p v²(w - 1/η) ≤ d (max h - min h - 1/η)
Σ p v², where h = 0 for sMDPO, A for TRPO and A - (θ - θ_t)/η for MDPO. In h the policy does not occur, and
max h - min h is convex along the segment: it is at most 1/η if it is so at both ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sppo.exact._inner import (
    ADVANTAGE,
    ARMIJO,
    INV_ETA,
    LARGEST_STEP,
    LOGITS,
    MDPO,
    NEXT,
    NORMALISER,
    OCCUPANCY,
    OLD,
    P_OLD,
    SMDPO,
    STEP,
    TRPO,
    WEIGHT,
    Packets,
    Search,
    measure,
)
from sppo.exact._jit import inlined, leaf
from sppo.exact._simd import WIDTH, differs, exp, load, log, maximum, splat, store, total, where_less
from sppo.exact._types import Array


class Probe(NamedTuple):
    """ℓ at a trial, its slope there along the step, and of its gradient g there ‖g‖² and -gᵀ∇²ℓg."""

    value: float
    slope: float
    squares: float
    curvature: float


@leaf
def probe(objective: int, alpha: float, packets: Packets, actions: int, n: int) -> Probe:
    """ℓ and its derivatives at θ + α step; the gradient is written to the row ``NEXT``.

    Formulas as in ``measure`` and ``packet_gradient``, from the same exponentials.
    """
    scores, slopes, squares, curvatures = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    for k in range((n + WIDTH - 1) // WIDTH):
        base = k * actions * WIDTH
        occupancy = load(packets.single, OCCUPANCY, k * WIDTH)
        inv_eta = load(packets.single, INV_ETA, k * WIDTH)
        top = load(packets.pair, LOGITS, base) + alpha * load(packets.pair, STEP, base)
        for a in range(1, actions):
            at = base + a * WIDTH
            top = maximum(top, load(packets.pair, LOGITS, at) + alpha * load(packets.pair, STEP, at))
        mass, gain, moved = splat(0.0), splat(0.0), splat(0.0)
        for a in range(actions):
            at = base + a * WIDTH
            x = load(packets.pair, LOGITS, at) + alpha * load(packets.pair, STEP, at)
            w = exp(x - top)
            store(packets.pair, WEIGHT, at, w)
            mass = mass + w
            u = x - load(packets.pair, OLD, at)
            old = load(packets.pair, P_OLD, at)
            moved = moved + (w if objective == MDPO else old) * u
            gain = gain + (old * u if objective == SMDPO else w) * load(packets.pair, ADVANTAGE, at)
        scale = 1.0 / mass
        shift = (top - load(packets.single, NORMALISER, k * WIDTH)) + log(mass)
        if objective == MDPO:
            moved = moved * scale
        divergence = moved - shift if objective == MDPO else shift - moved
        if objective != SMDPO:
            gain = gain * scale
        scores = scores + occupancy * (gain - inv_eta * divergence)
        mean = gain - inv_eta * moved if objective == MDPO else gain
        first, weighted, second = splat(0.0), splat(0.0), splat(0.0)
        for a in range(actions):
            at = base + a * WIDTH
            p = load(packets.pair, WEIGHT, at) * scale
            h = load(packets.pair, ADVANTAGE, at)
            step = load(packets.pair, STEP, at)
            if objective == SMDPO:
                old = load(packets.pair, P_OLD, at)
                g = occupancy * (old * h + inv_eta * (old - p))
                bend = inv_eta
            elif objective == MDPO:
                u = (load(packets.pair, LOGITS, at) - load(packets.pair, OLD, at)) + alpha * step
                h = h - u * inv_eta - mean
                g = occupancy * (p * h)
                bend = inv_eta - h
            else:
                h = h - mean
                g = occupancy * (p * h + inv_eta * (load(packets.pair, P_OLD, at) - p))
                bend = inv_eta - h
            store(packets.pair, NEXT, at, g)
            slopes = slopes + g * step
            squares = squares + g * g
            pg = p * g
            first = first + pg
            weighted = weighted + pg * bend
            second = second + pg * g * bend
        # Σ p (g - Σ pg)² bend, multiplied out; Σ p bend = 1/η
        curvatures = curvatures + occupancy * (second - first * (weighted + weighted - first * inv_eta))
    return Probe(total(scores), total(slopes), total(squares), total(curvatures))


@leaf
def concave_until(objective: int, alpha: float, packets: Packets, actions: int, n: int) -> bool:
    """Whether max h - min h ≤ 1/η in every state at θ + α step; h as above."""
    zero = splat(0.0)
    excess = zero
    for k in range((n + WIDTH - 1) // WIDTH):
        base = k * actions * WIDTH
        inv_eta = load(packets.single, INV_ETA, k * WIDTH)
        highest, lowest = splat(-1e308), splat(1e308)
        for a in range(actions):
            at = base + a * WIDTH
            h = load(packets.pair, ADVANTAGE, at)
            if objective == MDPO:
                u = load(packets.pair, LOGITS, at) - load(packets.pair, OLD, at)
                h = h - (u + alpha * load(packets.pair, STEP, at)) * inv_eta
            highest = maximum(highest, h)
            lowest = where_less(h, lowest, h, lowest)
        excess = maximum(excess, highest - lowest - inv_eta)
    return not differs(excess, zero)


@inlined
def accept(alpha: float, packets: Packets, size: int) -> None:
    """θ ← θ + α step, and the gradient there becomes the step."""
    for at in range(0, size, WIDTH):
        x = load(packets.pair, LOGITS, at) + alpha * load(packets.pair, STEP, at)
        store(packets.pair, LOGITS, at, x)
        store(packets.pair, STEP, at, load(packets.pair, NEXT, at))


@inlined
def armijo_step(
    objective: int,
    search: Search,
    alpha: float,
    here: Probe,
    concave: bool,
    packets: Packets,
    actions: int,
    n: int,
) -> tuple[float, Probe]:
    """The first accepted of α, α·decay, ..., or ``fallback``, and the probe there.

    Trials are made one by one until ℓ is concave on the rest of the segment; then the search starts where a
    parabola with ℓ's slope and curvature at θ would cross the line of the test.
    """
    decay, slope = search.decay, search.armijo * here.squares
    # trials up to ``low`` are rejected; ``high`` is accepted, or one past the last
    low, high, stride = -1, search.tries, 1
    becomes_concave = objective == MDPO and concave_until(objective, 0.0, packets, actions, n)
    while not concave and high - low > 1:
        step = alpha * decay ** (low + 1)
        if becomes_concave and concave_until(objective, step, packets, actions, n):
            break
        new, _ = measure(objective, ARMIJO, step, packets, actions, n)
        if new >= here.value + step * slope:
            return step, probe(objective, step, packets, actions, n)
        low += 1
    trial = low + 1
    if here.curvature > 0.0:
        crossing = 2.0 * (here.squares - slope) / here.curvature
        if 0.0 < crossing < alpha:
            trial = min(max(trial, int(np.ceil(np.log(crossing / alpha) / np.log(decay)))), high - 1)
    accepted, probed, there = search.fallback, -1, here
    while high - low > 1:
        step = alpha * decay**trial
        if high == search.tries:
            there = probe(objective, step, packets, actions, n)
            new, probed = there.value, trial
        else:
            new, _ = measure(objective, ARMIJO, step, packets, actions, n)
        if new >= here.value + step * slope:
            high, accepted = trial, step
            longer = step / decay
            if probed == trial and new + there.slope * (longer - step) < here.value + longer * slope:
                low = trial - 1
        else:
            low = trial
        if high == search.tries:
            trial = min(low + stride, high - 1)
        elif low == -1:
            trial = max(high - stride, 0)
        else:
            trial = (low + high) // 2
        stride *= 2
    if high == search.tries or probed != high:
        there = probe(objective, accepted, packets, actions, n)
    return accepted, there


@leaf
def armijo_steps(
    objective: int, search: Search, steps: int, packets: Packets, actions: int, n: int, used: Array
) -> None:
    """``steps`` times θ ← θ + αg, α by backtracking; ``used`` receives the accepted step sizes.

    The first inner step starts from ``first_step``, later ones from the last accepted step times
    ``warm_start``.
    """
    size = (n + WIDTH - 1) // WIDTH * actions * WIDTH
    for at in range(0, size, WIDTH):
        store(packets.pair, STEP, at, splat(0.0))
    here = probe(objective, 0.0, packets, actions, n)
    accept(0.0, packets, size)
    concave = objective == SMDPO or (objective == TRPO and concave_until(objective, 0.0, packets, actions, n))
    accepted = 0.0
    for i in range(steps):
        if here.squares == 0.0:
            return
        alpha = search.first_step
        if i > 0 and search.warm_start > 0.0:
            alpha = min(search.warm_start * accepted, LARGEST_STEP)
        accepted, here = armijo_step(objective, search, alpha, here, concave, packets, actions, n)
        accept(accepted, packets, size)
        if i < used.size:
            used[i] = accepted
