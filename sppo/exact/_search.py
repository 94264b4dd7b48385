"""Line searches of the inner loop, compiled: Armijo backtracking and the trust region."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from sppo.exact._inner import (
    ARMIJO,
    TRUST_REGION,
    Packets,
    measure,
    packet_direction,
    packet_gradient,
)
from sppo.exact._simd import WIDTH, load, splat, store, total
from sppo.exact._types import Array


class Search(NamedTuple):
    """How steps are searched: the rule, the first trial, the radius δ, and the constants of backtracking."""

    rule: int
    first_step: float
    delta: float
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
    trust = search.rule == TRUST_REGION
    alpha = search.first_step
    for i in range(steps):
        slope = 0.0
        if trust:
            for k in range(vectors):
                slope += packet_direction(objective, packets, actions, k)
            alpha = search.first_step
            if slope > 0.0:
                alpha = min(np.sqrt(2.0 * search.delta / slope), alpha)
        else:
            squares = splat(0.0)
            for k in range(vectors):
                packet_gradient(objective, 0.0, packets, actions, k)
            for at in range(0, vectors * actions * WIDTH, WIDTH):
                squares = squares + load(packets.step, at) * load(packets.step, at)
            slope = search.armijo * total(squares)
            if i > 0:
                alpha *= search.warm_start
        present = 0.0
        for attempt in range(search.tries + 2):
            # attempt 0 measures where we stand; the last one is the fallback, taken whatever it gives
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
        alpha = step
        for at in range(0, vectors * actions * WIDTH, WIDTH):
            store(packets.logits, at, load(packets.logits, at) + alpha * load(packets.step, at))
        if i < used.size:
            used[i] = alpha
