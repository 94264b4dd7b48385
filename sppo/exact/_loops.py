"""The outer loop, compiled: evaluate the policy exactly, record J, improve, repeat.

``Problem`` is a small MDP as arrays, ``Buffers`` the workspace of one run. Each loop writes J(π_t) *before*
update t. It stops early only when an update changed no bit of the policy's logits: every later iteration
would repeat it, so the remaining values are filled in.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sppo.exact._armijo import armijo_steps
from sppo.exact._evaluate import evaluate_dense
from sppo.exact._inner import Packets, Search, fixed_steps, gather, new_packets, scatter
from sppo.exact._jit import entry, inlined
from sppo.exact._search import search_steps
from sppo.exact._types import Array, IntArray

#: Closed-form updates.
SMDPO_STEP, EXPONENTIAL_STEP, MIXTURE_STEP = range(3)


class Problem(NamedTuple):
    """A small MDP: CSR transitions with row s·A + a, rewards (S, A), start distribution, γ, r_l/(1 - γ)."""

    indptr: IntArray
    indices: IntArray
    data: Array
    reward: Array
    start: Array
    gamma: float
    lowest_value: float


class Buffers(NamedTuple):
    """What one run writes into: the state of the evaluation, and the packets."""

    policy: Array
    v: Array
    q: Array
    advantage: Array
    occupancy: Array
    inv_eta: Array
    matrix: Array
    packets: Packets


def new_buffers(states: int, actions: int, inv_eta: Array, dense: bool = True) -> Buffers:
    """Workspace of a run; ``dense`` runs also need room for an S × S matrix."""
    pair, single = (states, actions), (states,)
    return Buffers(
        policy=np.empty(pair),
        v=np.empty(single),
        q=np.empty(pair),
        advantage=np.empty(pair),
        occupancy=np.empty(single),
        inv_eta=inv_eta.copy(),
        matrix=np.empty((states, states) if dense else (1, 1)),
        packets=new_packets(states, actions),
    )


@entry
def softmax(logits: Array, policy: Array) -> None:
    """policy = softmax(logits) row by row; a logit of -inf is a probability of zero."""
    for s in range(logits.shape[0]):
        top = logits[s, 0]
        for a in range(1, logits.shape[1]):
            top = max(top, logits[s, a])
        total = 0.0
        for a in range(logits.shape[1]):
            policy[s, a] = np.exp(logits[s, a] - top)
            total += policy[s, a]
        for a in range(logits.shape[1]):
            policy[s, a] /= total


@inlined
def _evaluate(problem: Problem, logits: Array, buffers: Buffers) -> float:
    softmax(logits, buffers.policy)
    return evaluate_dense(
        problem.indptr,
        problem.indices,
        problem.data,
        problem.reward,
        problem.start,
        problem.gamma,
        buffers.policy,
        buffers.matrix,
        buffers.v,
        buffers.q,
        buffers.advantage,
        buffers.occupancy,
    )


@inlined
def set_per_state(lowest_value: float, buffers: Buffers) -> None:
    """1/η(s) = V(s) - r_l/(1 - γ)."""
    for s in range(buffers.v.size):
        buffers.inv_eta[s] = max(buffers.v[s] - lowest_value, 0.0)


@inlined
def improve_fixed(
    objective: int, epsilon: float, alpha: float, inner_steps: int, logits: Array, buffers: Buffers
) -> tuple[float, bool]:
    """One outer update with a fixed inner step; α < 0 stands for 1/β. Returns α and whether θ changed."""
    packets = buffers.packets
    n = gather(packets, logits, buffers.advantage, buffers.occupancy, buffers.inv_eta)
    if alpha < 0.0:
        # β = max_s d(s)/(2η(s)): the Hessian of lse has norm at most 1/2
        smoothness = 0.0
        for s in range(logits.shape[0]):
            smoothness = max(smoothness, 0.5 * buffers.occupancy[s] * buffers.inv_eta[s])
        alpha = 1.0 / smoothness
    fixed_steps(objective, epsilon, alpha, inner_steps, packets, logits.shape[1], n)
    return alpha, scatter(packets, n, logits)


@inlined
def improve_search(
    objective: int, search: Search, inner_steps: int, logits: Array, buffers: Buffers, used: Array
) -> bool:
    """One outer update with a search on J or in a trust region per inner step. Returns whether θ changed."""
    packets = buffers.packets
    n = gather(packets, logits, buffers.advantage, buffers.occupancy, buffers.inv_eta)
    search_steps(objective, search, inner_steps, packets, logits.shape[1], n, used)
    return scatter(packets, n, logits)


@inlined
def improve_armijo(
    objective: int, search: Search, inner_steps: int, logits: Array, buffers: Buffers, used: Array
) -> bool:
    """One outer update with an Armijo search on J - C/η per inner step. Returns whether θ changed."""
    packets = buffers.packets
    n = gather(packets, logits, buffers.advantage, buffers.occupancy, buffers.inv_eta)
    armijo_steps(objective, search, inner_steps, packets, logits.shape[1], n, used)
    return scatter(packets, n, logits)


@entry
def improve_closed_form(kind: int, floor: float, alpha: float, logits: Array, buffers: Buffers) -> float:
    """One exact update of every state, in log space; logits become log-probabilities.

    sMDPO: p ∝ p_t max(1 + ηA, floor), written p_t (1/η + A) so that 1/η = 0 is allowed;
    exponential (MDPO, natural gradient): p ∝ p_t exp(ηA);  mixture (CPI): p = (1 - α)p_t + α greedy(A), where
    α < 0 stands for min(1, |α| Σ d(s) max_a A(s, a)). Returns η (its least) or α.
    """
    policy, advantage, inv_eta = buffers.policy, buffers.advantage, buffers.inv_eta
    states, actions = logits.shape
    largest = 0.0
    surplus = 0.0
    for s in range(states):
        largest = max(largest, inv_eta[s])
        best_advantage = advantage[s, 0]
        for a in range(1, actions):
            best_advantage = max(best_advantage, advantage[s, a])
        surplus += buffers.occupancy[s] * best_advantage
    if alpha < 0.0:
        alpha = min(1.0, -alpha * surplus)
    for s in range(states):
        best = 0
        for a in range(1, actions):
            if advantage[s, a] > advantage[s, best]:
                best = a
        if kind == SMDPO_STEP:
            if inv_eta[s] + advantage[s, best] > 0.0:
                for a in range(actions):
                    logits[s, a] += np.log(max(inv_eta[s] + advantage[s, a], floor * inv_eta[s]))
        elif kind == EXPONENTIAL_STEP:
            for a in range(actions):
                logits[s, a] += advantage[s, a] / inv_eta[s]
        else:
            for a in range(actions):
                logits[s, a] = np.log((1.0 - alpha) * policy[s, a] + (alpha if a == best else 0.0))
        _normalise(logits, s)
    return alpha if kind == MIXTURE_STEP else 1.0 / largest


@inlined
def _normalise(logits: Array, s: int) -> None:
    """θ(s, ·) ← θ(s, ·) - lse."""
    top = logits[s, 0]
    for a in range(1, logits.shape[1]):
        top = max(top, logits[s, a])
    total = 0.0
    for a in range(logits.shape[1]):
        total += np.exp(logits[s, a] - top)
    shift = top + np.log(total)
    for a in range(logits.shape[1]):
        logits[s, a] -= shift


@entry
def run_fixed(
    problem: Problem,
    objective: int,
    per_state: bool,
    epsilon: float,
    alpha: float,
    inner_steps: int,
    logits: Array,
    buffers: Buffers,
    values: Array,
    used: Array,
) -> None:
    """Algorithm 1 with a fixed inner step size."""
    for t in range(values.size):
        values[t] = _evaluate(problem, logits, buffers)
        if per_state:
            set_per_state(problem.lowest_value, buffers)
        used[t], changed = improve_fixed(objective, epsilon, alpha, inner_steps, logits, buffers)
        if not changed:
            for later in range(t + 1, values.size):
                values[later] = values[t]
                used[later] = used[t]
            return


@inlined
def _repeat(t: int, values: Array, used: Array) -> None:
    """Iterations after a fixed point are the last one again."""
    for later in range(t + 1, values.size):
        values[later] = values[t]
        for i in range(used.shape[1]):
            used[later, i] = used[t, i]


@entry
def run_search(
    problem: Problem,
    objective: int,
    per_state: bool,
    search: Search,
    inner_steps: int,
    logits: Array,
    buffers: Buffers,
    values: Array,
    used: Array,
) -> None:
    """Algorithm 1 with a line search in every inner step; ``used`` is (iterations, recorded steps)."""
    for t in range(values.size):
        values[t] = _evaluate(problem, logits, buffers)
        if per_state:
            set_per_state(problem.lowest_value, buffers)
        changed = improve_search(objective, search, inner_steps, logits, buffers, used[t])
        if not changed:
            _repeat(t, values, used)
            return


@entry
def run_armijo(
    problem: Problem,
    objective: int,
    per_state: bool,
    search: Search,
    inner_steps: int,
    logits: Array,
    buffers: Buffers,
    values: Array,
    used: Array,
) -> None:
    """Algorithm 1 with an Armijo search on J - C/η in every inner step; ``used`` as in ``run_search``.

    Apart from ``run_search`` because a user's first call compiles all that it could reach.
    """
    for t in range(values.size):
        values[t] = _evaluate(problem, logits, buffers)
        if per_state:
            set_per_state(problem.lowest_value, buffers)
        changed = improve_armijo(objective, search, inner_steps, logits, buffers, used[t])
        if not changed:
            _repeat(t, values, used)
            return


@entry
def run_closed_form(
    problem: Problem,
    kind: int,
    per_state: bool,
    floor: float,
    alpha: float,
    logits: Array,
    buffers: Buffers,
    values: Array,
    used: Array,
) -> None:
    """Exact maximisation of the surrogate in every iteration. ``used`` receives η (its least) or α."""
    for t in range(values.size):
        values[t] = _evaluate(problem, logits, buffers)
        if per_state:
            set_per_state(problem.lowest_value, buffers)
        used[t] = improve_closed_form(kind, floor, alpha, logits, buffers)
