"""The outer loop, compiled: evaluate the policy exactly, record J, improve, repeat.

J(π_t) is written *before* update t. A loop stops early only when an update changed no bit of the policy's
logits: every later iteration would repeat it. There is a loop per way of improving, because a user's first
call compiles all that it could reach.
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
    """An MDP: CSR transitions with row s·A + a, rewards (S, A), start distribution, γ, r_l/(1 - γ).

    ``evaluated``: it is too large to be evaluated here, and the state of the run holds the evaluation.
    """

    indptr: IntArray
    indices: IntArray
    data: Array
    reward: Array
    start: Array
    gamma: float
    lowest_value: float
    evaluated: bool


class State(NamedTuple):
    """What one run writes into: π_t and all that is known of it, 1/η(s), scratch (S, S), and packets."""

    policy: Array
    v: Array
    q: Array
    advantage: Array
    occupancy: Array
    inv_eta: Array
    matrix: Array
    packets: Packets


def new_state(states: int, actions: int, inv_eta: Array, dense: bool = True) -> State:
    """Room for a run; ``dense`` runs also need an S × S matrix."""
    policy, q, advantage = np.empty((3, states, actions))
    v, occupancy = np.empty((2, states))
    matrix = np.empty((states, states) if dense else (1, 1))
    return State(policy, v, q, advantage, occupancy, inv_eta.copy(), matrix, new_packets(states, actions))


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
def _evaluate(problem: Problem, method: Method, logits: Array, state: State, value: float) -> float:
    """J and all of ``state`` but for 1/η, which is V(s) - r_l/(1 - γ) if it was asked for; or ``value``."""
    if not problem.evaluated:
        for s in range(logits.shape[0]):
            _softmax(logits, s, state.policy)
        mdp = (problem.indptr, problem.indices, problem.data, problem.reward, problem.start, problem.gamma)
        value = evaluate_dense(
            *mdp, state.policy, state.matrix, state.v, state.q, state.advantage, state.occupancy
        )
    if method.per_state:
        for s in range(state.v.size):
            state.inv_eta[s] = max(state.v[s] - problem.lowest_value, 0.0)
    return value


@leaf
def _closed_form(method: Method, logits: Array, state: State) -> float:
    """One exact update of every state, in log space; logits become log-probabilities.

    sMDPO: p ∝ p_t max(1 + ηA, floor), written p_t (1/η + A) so that 1/η = 0 is allowed;
    exponential (MDPO, natural gradient): p ∝ p_t exp(ηA);  mixture (CPI): p = (1 - α)p_t + α greedy(A), where
    α < 0 stands for min(1, |α| Σ d(s) max_a A(s, a)). Returns η (its least) or α.
    """
    policy, advantage, inv_eta = state.policy, state.advantage, state.inv_eta
    states, actions = logits.shape
    alpha, surplus, weakest = method.alpha, 0.0, 0.0
    for s in range(states):
        surplus += state.occupancy[s] * advantage[s, _largest(advantage, s)]
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
    return alpha if method.objective == MIXTURE_STEP else 1.0 / weakest


@entry
def run_fixed(
    problem: Problem, method: Method, logits: Array, state: State, values: Array, used: Array
) -> int:
    """Algorithm 1 with a fixed inner step size, in ``used`` (iterations, 1); α < 0 stands for 1/β.

    Returns, as all loops do, the number of iterations made.
    """
    for t in range(values.size):
        values[t] = _evaluate(problem, method, logits, state, values[t])
        alpha = method.alpha
        if alpha < 0.0:
            # β = max_s d(s)/(2η(s)): the Hessian of lse has norm at most 1/2
            smoothness = 0.0
            for s in range(logits.shape[0]):
                smoothness = max(smoothness, 0.5 * state.occupancy[s] * state.inv_eta[s])
            alpha = 1.0 / smoothness
        used[t, 0] = alpha
        packs = gather(state.packets, logits, state.advantage, state.occupancy, state.inv_eta)
        fixed_steps(method, alpha, state.packets, logits.shape[1], packs)
        if not scatter(state.packets, packs, logits):
            return t + 1
    return values.size


@entry
def run_search(
    problem: Problem, method: Method, logits: Array, state: State, values: Array, used: Array
) -> int:
    """Algorithm 1 with a search in every inner step; ``used`` is (iterations, recorded steps)."""
    for t in range(values.size):
        values[t] = _evaluate(problem, method, logits, state, values[t])
        packs = gather(state.packets, logits, state.advantage, state.occupancy, state.inv_eta)
        search_steps(method, state.packets, logits.shape[1], packs, used[t])
        if not scatter(state.packets, packs, logits):
            return t + 1
    return values.size


@entry
def run_closed_form(
    problem: Problem, method: Method, logits: Array, state: State, values: Array, used: Array
) -> int:
    """Exact maximisation of the surrogate in every iteration; ``used`` is (iterations, 1)."""
    for t in range(values.size):
        values[t] = _evaluate(problem, method, logits, state, values[t])
        used[t, 0] = _closed_form(method, logits, state)
    return values.size


LOOPS = {
    "fixed": run_fixed,
    "line_search": run_search,
    "constrained": run_search,
    "closed_form": run_closed_form,
}
