"""The inner loop of Algorithm 1, compiled: fixed steps, Armijo line searches and trust-region searches.

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

import numpy as np

from sppo.exact.evaluation import Array, inlined, leaf
from sppo.exact.kernels import (
    ADVANTAGE,
    ARMIJO,
    INV_ETA,
    LARGEST_LOG_RATIO,
    LOGITS,
    MDPO,
    OCCUPANCY,
    OLD,
    SMDPO,
    STEP,
    TRUST_REGION,
    WEIGHT,
    Method,
    Packets,
    largest_curvature,
    measure,
    packet_direction,
    packet_gradient,
    weigh,
)
from sppo.exact.vectors import WIDTH, differs, exp, load, maximum, splat, store, total, where_less

#: A fixed point is looked for once in so many steps, and whether C increases once in so many trials.
FIXED_POINT_PERIOD, RISING_PERIOD = 16, 8
#: Warm starts stop growing here, where every finite step has long saturated the policy.
LARGEST_STEP = 1e100
#: The step when no trial is accepted.
FALLBACK = 1e-16


@inlined
def move(alpha: float, packets: Packets, actions: int, k: int) -> bool:
    """θ ← θ + α step in packet ``k``; returns whether any bit changed."""
    pair, moved = packets.pair, False
    for at in range(k * actions * WIDTH, (k + 1) * actions * WIDTH, WIDTH):
        x = load(pair, LOGITS, at)
        y = x + alpha * load(pair, STEP, at)
        store(pair, LOGITS, at, y)
        moved = moved or differs(x, y)
    return moved


@leaf
def fixed_steps(method: Method, alpha: float, packets: Packets, actions: int, packs: int) -> None:
    """m times θ ← θ + α ∇(J - C/η); states do not interact, so packet by packet.

    Stops early at a fixed point only: a step that changes no bit of θ would be repeated for ever.
    """
    for k in range(packs):
        for i in range(method.inner_steps):
            packet_gradient(method, packets, actions, k)
            if not move(alpha, packets, actions, k) and i % FIXED_POINT_PERIOD == 0:
                break


@leaf
def concave_until(objective: int, alpha: float, packets: Packets, actions: int, packs: int) -> bool:
    """Whether max h - min h ≤ 1/η in every state at θ + α step; h as above."""
    if objective == SMDPO:
        return True
    pair, excess = packets.pair, splat(0.0)
    for k in range(packs):
        inv_eta = load(packets.single, INV_ETA, k * WIDTH)
        highest, lowest = splat(-1e308), splat(1e308)
        for at in range(k * actions * WIDTH, (k + 1) * actions * WIDTH, WIDTH):
            h = load(pair, ADVANTAGE, at)
            if objective == MDPO:
                u = load(pair, LOGITS, at) - load(pair, OLD, at)
                h = h - (u + alpha * load(pair, STEP, at)) * inv_eta
            highest = maximum(highest, h)
            lowest = where_less(h, lowest, h, lowest)
        excess = maximum(excess, highest - lowest - inv_eta)
    return not differs(excess, 0.0)


@leaf
def rising_until(alpha: float, packets: Packets, actions: int, packs: int) -> bool:
    """Whether MDPO's C certainly increases along θ + xs for x from 0 to α.

    C'(x) = Σ d [Cov(u, s) + x Var(s)] under the policy at x, and the covariance falls at a rate of at most
    range(u) Var(s). There, Var(s) is at most exp(x range(s)) times the variance at θ, and at most
    range(s)²/4. So C'(x) ≥ Σ d [Cov(u, s) - α range(u) min(exp(α range(s)) Var(s), range(s)²/4)], both at θ.
    """
    pair, slopes = packets.pair, splat(0.0)
    for k in range(packs):
        mass, _ = weigh(0.0, packets, actions, k)
        mean_u, mean_s, product, square = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        high_u, high_s, low_u, low_s = splat(-1e308), splat(-1e308), splat(1e308), splat(1e308)
        for at in range(k * actions * WIDTH, (k + 1) * actions * WIDTH, WIDTH):
            u, s = load(pair, LOGITS, at) - load(pair, OLD, at), load(pair, STEP, at)
            p = load(pair, WEIGHT, at) / mass
            mean_u, mean_s = mean_u + p * u, mean_s + p * s
            high_u, high_s = maximum(high_u, u), maximum(high_s, s)
            low_u, low_s = where_less(u, low_u, u, low_u), where_less(s, low_s, s, low_s)
        for at in range(k * actions * WIDTH, (k + 1) * actions * WIDTH, WIDTH):
            u, s = load(pair, LOGITS, at) - load(pair, OLD, at) - mean_u, load(pair, STEP, at) - mean_s
            p = load(pair, WEIGHT, at) / mass
            product, square = product + p * u * s, square + p * s * s
        width = alpha * (high_s - low_s)
        grown = exp(where_less(width, LARGEST_LOG_RATIO, width, LARGEST_LOG_RATIO)) * square
        cap = 0.25 * (high_s - low_s) * (high_s - low_s)
        fall = alpha * (high_u - low_u) * where_less(grown, cap, grown, cap)
        slopes = slopes + load(packets.single, OCCUPANCY, k * WIDTH) * (product - fall)
    return bool(total(slopes) > 0.0)


@inlined
def find_step(
    method: Method,
    alpha: float,
    slope: float,
    present: float,
    guess: int,
    packets: Packets,
    actions: int,
    packs: int,
) -> tuple[float, float, int]:
    """The first accepted of α, α·decay, α·decay², ...: (step, value there, its index).

    Found by walking down, or, where the accepted steps are an interval, by bisection from ``guess``.
    """
    objective, trust = method.objective, method.rule == TRUST_REGION
    skipping, interval = trust and objective == MDPO, trust and objective != MDPO
    if method.rule == ARMIJO:
        interval = concave_until(objective, 0.0, packets, actions, packs) and (
            objective != MDPO or concave_until(objective, alpha, packets, actions, packs)
        )
    accepted, value = FALLBACK, present
    # trials up to ``low`` are rejected; ``high`` is accepted, or one past the last
    low, high, stride = -1, method.tries, 1
    trial = guess if interval else 0
    while high - low > 1:
        step = alpha * method.decay**trial
        if skipping and trial % RISING_PERIOD == 0 and rising_until(step, packets, actions, packs):
            # C increases up to here, and at smaller steps: the trials outside of the region by bisection
            inside, skipping = high, False
            while inside - low > 1:
                trial = (low + inside) // 2
                if measure(method, alpha * method.decay**trial, packets, actions, packs)[1] <= method.delta:
                    inside = trial
                else:
                    low = trial
            trial = low + 1
            continue
        new, divergence = measure(method, step, packets, actions, packs)
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
        value, _ = measure(method, accepted, packets, actions, packs)
    return accepted, value, min(high, method.tries - 1)


@leaf
def search_steps(method: Method, packets: Packets, actions: int, packs: int, used: Array) -> None:
    """m steps with a search each; ``used`` receives the accepted step sizes.

    Armijo's rule follows the gradient g of J - C/η and accepts the first α with ℓ(θ + αg) ≥ ℓ(θ) +
    armijo·α‖g‖², where ℓ is J - C/η or, in the published rule, J. The first inner step starts from
    ``first_step``, later ones from the last accepted step times ``warm_start``. The trust region follows
    s = H⁺g from min(√(2δ / sᵀHs), first_step) and accepts the first step with J not lower and C ≤ δ.
    """
    trust = method.rule == TRUST_REGION
    present, _ = measure(method, 0.0, packets, actions, packs)
    accepted, guess = 0.0, 0
    for i in range(method.inner_steps):
        alpha, slope = method.first_step, 0.0
        if trust:
            smallest, curvature = method.cutoff * largest_curvature(packets, actions, packs), 0.0
            for k in range(packs):
                curvature += packet_direction(method.objective, smallest, packets, actions, k)
            if curvature > 0.0:
                alpha = min(np.sqrt(2.0 * method.delta / curvature), alpha)
        else:
            squares = splat(0.0)
            for k in range(packs):
                squares = squares + packet_gradient(method, packets, actions, k)
            slope = method.armijo * total(squares)
            if total(squares) == 0.0:
                return
            if i > 0 and method.warm_start > 0.0:
                alpha = min(method.warm_start * accepted, LARGEST_STEP)
        accepted, present, guess = find_step(method, alpha, slope, present, guess, packets, actions, packs)
        moved = False
        for k in range(packs):
            moved |= move(accepted, packets, actions, k)
        if i < used.size:
            used[i] = accepted
        if trust and not moved:
            # a trust-region step depends on θ alone: every later one would be this one again
            return
