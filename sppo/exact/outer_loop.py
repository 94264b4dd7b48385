"""The outer loop, compiled: evaluate the policy exactly, record J, improve, repeat.

``Problem`` is a small MDP as arrays, ``Buffers`` the workspace of one run. Each loop writes J(π_t) *before*
update t. It stops early only when an update changed no bit of the policy's logits: every later iteration
would repeat it, so the remaining values are filled in. There is a loop per way of improving, because a
user's first call compiles all that it could reach.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sppo.exact.evaluation import Array, IntArray, entry, evaluate_dense, leaf
from sppo.exact.kernels import Method, Packets, gather, new_packets, scatter
from sppo.exact.searches import fixed_steps, search_steps

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


@leaf
def _largest(matrix: Array, s: int) -> int:
    """Where the largest number of row s is, the first of equals."""
    best = 0
    for a in range(1, matrix.shape[1]):
        if matrix[s, a] > matrix[s, best]:
            best = a
    return best


@leaf
def _softmax(logits: Array, s: int, policy: Array) -> float:
    """policy = softmax(logits) in row s; a logit of -inf is a probability of zero. Returns lse."""
    top, total = logits[s, _largest(logits, s)], 0.0
    for a in range(logits.shape[1]):
        policy[s, a] = np.exp(logits[s, a] - top)
        total += policy[s, a]
    for a in range(logits.shape[1]):
        policy[s, a] /= total
    return top + np.log(total)


@leaf
def _evaluate(problem: Problem, logits: Array, buffers: Buffers) -> float:
    for s in range(logits.shape[0]):
        _softmax(logits, s, buffers.policy)
    mdp = (problem.indptr, problem.indices, problem.data, problem.reward, problem.start, problem.gamma)
    b = buffers
    return evaluate_dense(*mdp, b.policy, b.matrix, b.v, b.q, b.advantage, b.occupancy)


@leaf
def _set_per_state(method: Method, lowest_value: float, buffers: Buffers) -> None:
    """1/η(s) = V(s) - r_l/(1 - γ), if it was asked for."""
    if method.per_state:
        for s in range(buffers.v.size):
            buffers.inv_eta[s] = max(buffers.v[s] - lowest_value, 0.0)


@leaf
def _improve_fixed(method: Method, lowest_value: float, logits: Array, buffers: Buffers, used: Array) -> bool:
    """One outer update with a fixed inner step; α < 0 stands for 1/β. Returns whether θ changed."""
    _set_per_state(method, lowest_value, buffers)
    alpha = method.alpha
    if alpha < 0.0:
        # β = max_s d(s)/(2η(s)): the Hessian of lse has norm at most 1/2
        smoothness = 0.0
        for s in range(logits.shape[0]):
            smoothness = max(smoothness, 0.5 * buffers.occupancy[s] * buffers.inv_eta[s])
        alpha = 1.0 / smoothness
    packs = gather(buffers.packets, logits, buffers.advantage, buffers.occupancy, buffers.inv_eta)
    fixed_steps(method, alpha, buffers.packets, logits.shape[1], packs)
    used[0] = alpha
    return scatter(buffers.packets, packs, logits)


@leaf
def _improve_search(
    method: Method, lowest_value: float, logits: Array, buffers: Buffers, used: Array
) -> bool:
    """One outer update with a search in every inner step. Returns whether θ changed."""
    _set_per_state(method, lowest_value, buffers)
    packs = gather(buffers.packets, logits, buffers.advantage, buffers.occupancy, buffers.inv_eta)
    search_steps(method, buffers.packets, logits.shape[1], packs, used)
    return scatter(buffers.packets, packs, logits)


@leaf
def _improve_closed_form(
    method: Method, lowest_value: float, logits: Array, buffers: Buffers, used: Array
) -> bool:
    """One exact update of every state, in log space; logits become log-probabilities.

    sMDPO: p ∝ p_t max(1 + ηA, floor), written p_t (1/η + A) so that 1/η = 0 is allowed;
    exponential (MDPO, natural gradient): p ∝ p_t exp(ηA);  mixture (CPI): p = (1 - α)p_t + α greedy(A), where
    α < 0 stands for min(1, |α| Σ d(s) max_a A(s, a)). ``used`` receives η (its least) or α.
    """
    _set_per_state(method, lowest_value, buffers)
    policy, advantage, inv_eta = buffers.policy, buffers.advantage, buffers.inv_eta
    states, actions = logits.shape
    alpha, surplus, weakest = method.alpha, 0.0, 0.0
    for s in range(states):
        surplus += buffers.occupancy[s] * advantage[s, _largest(advantage, s)]
        weakest = max(weakest, inv_eta[s])
    if alpha < 0.0:
        alpha = min(1.0, -alpha * surplus)
    for s in range(states):
        best = _largest(advantage, s)
        if method.objective == SMDPO_STEP:
            if inv_eta[s] + advantage[s, best] > 0.0:
                for a in range(actions):
                    logits[s, a] += np.log(max(inv_eta[s] + advantage[s, a], method.floor * inv_eta[s]))
        elif method.objective == EXPONENTIAL_STEP:
            for a in range(actions):
                logits[s, a] += advantage[s, a] / inv_eta[s]
        else:
            for a in range(actions):
                logits[s, a] = np.log((1.0 - alpha) * policy[s, a] + (alpha if a == best else 0.0))
        shift = _softmax(logits, s, policy)
        for a in range(actions):
            logits[s, a] -= shift
    used[0] = alpha if method.objective == MIXTURE_STEP else 1.0 / weakest
    return True


@leaf
def _repeat(t: int, values: Array, used: Array) -> None:
    """Iterations after a fixed point are the last one again."""
    for later in range(t + 1, values.size):
        values[later] = values[t]
        for i in range(used.shape[1]):
            used[later, i] = used[t, i]


@entry
def run_fixed(
    problem: Problem, method: Method, logits: Array, buffers: Buffers, values: Array, used: Array
) -> None:
    """Algorithm 1 with a fixed inner step size; ``used`` is (iterations, 1)."""
    for t in range(values.size):
        values[t] = _evaluate(problem, logits, buffers)
        if not _improve_fixed(method, problem.lowest_value, logits, buffers, used[t]):
            _repeat(t, values, used)
            break


@entry
def run_search(
    problem: Problem, method: Method, logits: Array, buffers: Buffers, values: Array, used: Array
) -> None:
    """Algorithm 1 with a search in every inner step; ``used`` is (iterations, recorded steps)."""
    for t in range(values.size):
        values[t] = _evaluate(problem, logits, buffers)
        if not _improve_search(method, problem.lowest_value, logits, buffers, used[t]):
            _repeat(t, values, used)
            break


@entry
def run_closed_form(
    problem: Problem, method: Method, logits: Array, buffers: Buffers, values: Array, used: Array
) -> None:
    """Exact maximisation of the surrogate in every iteration; ``used`` is (iterations, 1)."""
    for t in range(values.size):
        values[t] = _evaluate(problem, logits, buffers)
        _improve_closed_form(method, problem.lowest_value, logits, buffers, used[t])


# Compiled for Python only if an MDP is too large for the loops above, or a certificate is wanted.


@entry
def improve_fixed(method: Method, lowest_value: float, logits: Array, buffers: Buffers, used: Array) -> bool:
    """One update of ``run_fixed``."""
    return _improve_fixed(method, lowest_value, logits, buffers, used)


@entry
def improve_search(method: Method, lowest_value: float, logits: Array, buffers: Buffers, used: Array) -> bool:
    """One update of ``run_search``."""
    return _improve_search(method, lowest_value, logits, buffers, used)


@entry
def improve_closed_form(
    method: Method, lowest_value: float, logits: Array, buffers: Buffers, used: Array
) -> bool:
    """One update of ``run_closed_form``."""
    return _improve_closed_form(method, lowest_value, logits, buffers, used)


#: method -> (the whole run, one update of it)
LOOPS = {
    "fixed": (run_fixed, improve_fixed),
    "line_search": (run_search, improve_search),
    "constrained": (run_search, improve_search),
    "closed_form": (run_closed_form, improve_closed_form),
}
