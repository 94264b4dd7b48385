"""Line searches of the inner loop, compiled: Armijo backtracking and the trust region."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from sppo.exact._inner import (
    ARMIJO,
    TRUST_REGION,
    Packets,
    largest_curvature,
    measure,
    packet_direction,
    packet_gradient,
)
from sppo.exact._simd import WIDTH, differs, load, splat, store, total
from sppo.exact._types import Array


#: Warm starts stop growing here, where every finite step has long saturated the policy.
LARGEST_STEP = 1e100


class Search(NamedTuple):
    """How steps are searched: the rule, the first trial, the radius δ, the cutoff of the pseudo-inverse, and the constants of backtracking."""

    rule: int
    first_step: float
    delta: float
    cutoff: float
    armijo: float
    decay: float
    warm_start: float
    tries: int
    fallback: float


@njit(cache=True, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
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
    accepted = 0.0
    present = 0.0
    value = 0.0
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
                squares = squares + load(packets.step, at) * load(packets.step, at)
            slope = total(squares)
            if slope == 0.0:
                return
            slope *= search.armijo
            if i > 0 and search.warm_start > 0.0:
                alpha = min(search.warm_start * accepted, LARGEST_STEP)
        step = 0.0
        # attempt 0 measures where the first step begins, later ones begin where the last one was measured;
        # the last attempt is the fallback, taken whatever it gives
        for attempt in range(0 if i == 0 else 1, search.tries + 2):
            step = 0.0 if attempt == 0 else (alpha if attempt <= search.tries else search.fallback)
            gain, divergence, regularized = measure(objective, step, packets, actions, n)
            value = regularized if search.rule == ARMIJO else gain
            if attempt == 0:
                present = value
            elif (trust and value >= present and divergence <= search.delta) or (
                not trust and value >= present + step * slope
            ):
                break
            else:
                alpha *= search.decay
        present = value
        moved = False
        for at in range(0, size, WIDTH):
            x = load(packets.logits, at)
            new = x + step * load(packets.step, at)
            store(packets.logits, at, new)
            moved = moved or differs(x, new)
        accepted = step
        if i < used.size:
            used[i] = step
        if trust and not moved:
            # a trust-region step depends on θ alone: every later one would be this one again
            return
