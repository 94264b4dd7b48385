"""Line searches of the inner loop, compiled: Armijo backtracking and the trust region."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sppo.exact._inner import (
    LOGITS,
    SMDPO,
    STEP,
    TRPO,
    TRUST_REGION,
    Packets,
    largest_curvature,
    measure,
    packet_direction,
    packet_gradient,
)
from sppo.exact._jit import leaf
from sppo.exact._simd import WIDTH, differs, load, splat, store, total
from sppo.exact._types import Array

#: Warm starts stop growing here, where every finite step has long saturated the policy.
LARGEST_STEP = 1e100


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


@leaf
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
    A every state's J increases, and C is convex).
    """
    trust = search.rule == TRUST_REGION
    interval = objective == SMDPO or (objective == TRPO and trust)
    accepted, value = search.fallback, present
    # trials up to ``low`` are rejected; ``high`` is accepted, or one past the last
    low, high, stride = -1, search.tries, 1
    trial = guess if interval else 0
    while high - low > 1:
        step = alpha * search.decay**trial
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

    Armijo rules follow the gradient g and accept the first α with ℓ(θ + αg) ≥ ℓ(θ) + armijo·α‖g‖², ℓ being
    J - C/η or, by the published rule, J. The first inner step starts from ``first_step``, later ones from the
    last accepted step times ``warm_start``. The trust region follows s = H⁺g from min(√(2δ / sᵀHs),
    first_step) and accepts the first step with J not lower and C ≤ δ. Steps shrink by ``decay``; after
    ``tries`` of them the step is ``fallback``.
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
