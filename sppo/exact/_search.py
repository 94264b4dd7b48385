"""Line searches of the inner loop, compiled: the trust region, and the published Armijo test on J."""

from __future__ import annotations

import numpy as np

from sppo.exact._inner import (
    LARGEST_LOG_RATIO,
    LARGEST_STEP,
    LOGITS,
    MDPO,
    OCCUPANCY,
    OLD,
    SMDPO,
    STEP,
    TRPO,
    TRUST_REGION,
    WEIGHT,
    Packets,
    Search,
    largest_curvature,
    measure,
    packet_direction,
    packet_gradient,
)
from sppo.exact._jit import inlined, leaf
from sppo.exact._simd import WIDTH, differs, exp, load, maximum, splat, store, total, where_less
from sppo.exact._types import Array

#: Whether C increases along the rest of the segment is asked once in so many trials.
RISING_PERIOD = 8


@leaf
def rising_until(alpha: float, packets: Packets, actions: int, n: int) -> bool:
    """Whether MDPO's C certainly increases along θ + xs for x from 0 to α.

    C'(x) = Σ d [Cov(u, s) + x Var(s)] under the policy at x, and the covariance falls at a rate of at most
    range(u) Var(s). There, Var(s) is at most exp(x range(s)) times the variance at θ, and at most
    range(s)²/4. So C'(x) ≥ Σ d [Cov(u, s) - α range(u) min(exp(α range(s)) Var(s), range(s)²/4)], both at θ.
    """
    slopes = splat(0.0)
    for k in range((n + WIDTH - 1) // WIDTH):
        base = k * actions * WIDTH
        top = load(packets.pair, LOGITS, base)
        for a in range(1, actions):
            top = maximum(top, load(packets.pair, LOGITS, base + a * WIDTH))
        mass, mean_u, mean_s = splat(0.0), splat(0.0), splat(0.0)
        high_u, high_s, low_u, low_s = splat(-1e308), splat(-1e308), splat(1e308), splat(1e308)
        for a in range(actions):
            at = base + a * WIDTH
            x, s = load(packets.pair, LOGITS, at), load(packets.pair, STEP, at)
            u, w = x - load(packets.pair, OLD, at), exp(x - top)
            store(packets.pair, WEIGHT, at, w)
            mass, mean_u, mean_s = mass + w, mean_u + w * u, mean_s + w * s
            high_u, high_s = maximum(high_u, u), maximum(high_s, s)
            low_u, low_s = where_less(u, low_u, u, low_u), where_less(s, low_s, s, low_s)
        mean_u, mean_s = mean_u / mass, mean_s / mass
        covariance, variance = splat(0.0), splat(0.0)
        for a in range(actions):
            at = base + a * WIDTH
            s = load(packets.pair, STEP, at) - mean_s
            ws = load(packets.pair, WEIGHT, at) * s
            u = load(packets.pair, LOGITS, at) - load(packets.pair, OLD, at) - mean_u
            covariance, variance = covariance + ws * u, variance + ws * s
        width = high_s - low_s
        largest = splat(LARGEST_LOG_RATIO)
        exponent = where_less(alpha * width, largest, alpha * width, largest)
        grown, cap = exp(exponent) * variance / mass, 0.25 * width * width
        fall = alpha * (high_u - low_u) * where_less(grown, cap, grown, cap)
        slopes = slopes + load(packets.single, OCCUPANCY, k * WIDTH) * (covariance / mass - fall)
    return bool(total(slopes) > 0.0)


@inlined
def last_outside(
    objective: int, search: Search, alpha: float, low: int, packets: Packets, actions: int, n: int
) -> int:
    """The last of the trials after ``low`` with C > δ, or ``low``, by bisection where C increases with α."""
    high = search.tries
    while high - low > 1:
        trial = (low + high) // 2
        step = alpha * search.decay**trial
        _, divergence = measure(objective, TRUST_REGION, step, packets, actions, n)
        if divergence <= search.delta:
            high = trial
        else:
            low = trial
    return low


@inlined
def find_step(
    objective: int,
    search: Search,
    alpha: float,
    slope: float,
    present: float,
    guess: int,
    packets: Packets,
    actions: int,
    n: int,
) -> tuple[float, float, int]:
    """The first accepted of α, α·decay, α·decay², ...: (step, value there, its index).

    Found by walking down, or, where the accepted steps are known to be an interval from zero, by bisection
    from ``guess``. They are for sMDPO (J is linear and C convex in θ) and for TRPO's trust region (along s =
    A every state's J increases, and C is convex). MDPO's trust region skips the trials that are outside of it
    for certain.
    """
    trust = search.rule == TRUST_REGION
    interval = objective == SMDPO or (objective == TRPO and trust)
    accepted, value = search.fallback, present
    # trials up to ``low`` are rejected; ``high`` is accepted, or one past the last
    low, high, stride = -1, search.tries, 1
    trial = guess if interval else 0
    skipping = trust and objective == MDPO
    while high - low > 1:
        step = alpha * search.decay**trial
        if skipping and trial % RISING_PERIOD == 0 and rising_until(step, packets, actions, n):
            low = last_outside(objective, search, alpha, low, packets, actions, n)
            trial, skipping = low + 1, False
            continue
        new, divergence = measure(objective, search.rule, step, packets, actions, n)
        if (trust and new >= present and divergence <= search.delta) or (
            not trust and new >= present + step * slope
        ):
            high, accepted, value = trial, step, new
        else:
            low = trial
        if not interval:
            trial = low + 1
        elif high == search.tries:
            trial = min(low + stride, high - 1)
        elif low == -1:
            trial = max(high - stride, 0)
        else:
            trial = (low + high) // 2
        stride *= 2
    if high == search.tries:
        value, _ = measure(objective, search.rule, accepted, packets, actions, n)
    return accepted, value, min(high, search.tries - 1)


@leaf
def search_steps(
    objective: int, search: Search, steps: int, packets: Packets, actions: int, n: int, used: Array
) -> None:
    """``steps`` steps with a line search each; ``used`` receives the accepted step sizes.

    The published Armijo rule follows the gradient g of J - C/η and accepts the first α with J(θ + αg) ≥
    J(θ) + armijo·α‖g‖²; the rule on J - C/η is in :mod:`sppo.exact._armijo`. The first inner step starts from
    ``first_step``, later ones from the last accepted step times ``warm_start``. The trust region follows
    s = H⁺g from min(√(2δ / sᵀHs), first_step) and accepts the first step with J not lower and C ≤ δ. Steps
    shrink by ``decay``; after ``tries`` of them the step is ``fallback``.
    """
    vectors = (n + WIDTH - 1) // WIDTH
    size = vectors * actions * WIDTH
    trust = search.rule == TRUST_REGION
    present, _ = measure(objective, search.rule, 0.0, packets, actions, n)
    accepted = 0.0
    guess = 0
    for i in range(steps):
        alpha = search.first_step
        slope = 0.0
        if trust:
            smallest = search.cutoff * largest_curvature(packets, actions, n)
            for k in range(vectors):
                slope += packet_direction(objective, smallest, packets, actions, k)
            if slope > 0.0:
                alpha = min(np.sqrt(2.0 * search.delta / slope), alpha)
        else:
            squares = splat(0.0)
            for k in range(vectors):
                packet_gradient(objective, 0.0, packets, actions, k)
            for at in range(0, size, WIDTH):
                squares = squares + load(packets.pair, STEP, at) * load(packets.pair, STEP, at)
            slope = search.armijo * total(squares)
            if total(squares) == 0.0:
                return
            if i > 0 and search.warm_start > 0.0:
                alpha = min(search.warm_start * accepted, LARGEST_STEP)
        accepted, present, guess = find_step(
            objective, search, alpha, slope, present, guess, packets, actions, n
        )
        moved = False
        for at in range(0, size, WIDTH):
            x = load(packets.pair, LOGITS, at)
            y = x + accepted * load(packets.pair, STEP, at)
            store(packets.pair, LOGITS, at, y)
            moved = moved or differs(x, y)
        if i < used.size:
            used[i] = accepted
        if trust and not moved:
            # a trust-region step depends on θ alone: every later one would be this one again
            return
