"""Exact evaluation of a policy on a small MDP, compiled: one LU factorisation without pivoting.

I - γP_π is a row diagonally dominant M-matrix: elimination down the diagonal is stable, all pivots are
positive, and the substitutions for the occupancy only add non-negative numbers, so that an occupancy is
never negative, however small. Zeros are skipped, which makes the cost follow the fill-in, not S³.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sppo.compiled import njit

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Called from Python as well as from compiled code; without Python's global lock, IEEE division.
entry = njit(nogil=True, error_model="numpy")
#: Called from compiled code only: no wrapper for Python is compiled, which halves the time it takes.
leaf = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
#: The same, and pasted into its callers.
inlined = njit(cache=False, nogil=True, error_model="numpy", forceinline=True, no_cpython_wrapper=True)

#: Relative rounding error of an action value: a sum over successors, of values that solve a linear system.
ROUNDING = 16 * 2.2e-16


class Model(NamedTuple):
    """An MDP: CSR transitions with row s·A + a, rewards (S, A), start distribution, γ."""

    indptr: IntArray
    indices: IntArray
    data: Array
    reward: Array
    start: Array
    gamma: float


class Quantities(NamedTuple):
    """A policy and what is known of it: π, V, Q, A, normalised occupancy."""

    policy: Array
    v: Array
    q: Array
    advantage: Array
    occupancy: Array


def unknown(policy: Array) -> Quantities:
    """Room for all that an evaluation of ``policy`` fills in."""
    v, occupancy = np.empty((2, len(policy)))
    q, advantage = np.empty((2, *policy.shape))
    return Quantities(policy, v, q, advantage, occupancy)


@inlined
def _factorise(matrix: Array) -> None:
    """LU in place: unit lower triangle below the diagonal, upper triangle on and above it."""
    n = matrix.shape[0]
    for k in range(n - 1):
        pivot = 1.0 / matrix[k, k]
        for i in range(k + 1, n):
            if matrix[i, k] != 0.0:
                factor = matrix[i, k] * pivot
                matrix[i, k] = factor
                for j in range(k + 1, n):
                    matrix[i, j] -= factor * matrix[k, j]


@inlined
def _solve(matrix: Array, x: Array) -> None:
    """LU x = b, b overwritten by x."""
    n = matrix.shape[0]
    for i in range(1, n):
        for j in range(i):
            x[i] -= matrix[i, j] * x[j]
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            x[i] -= matrix[i, j] * x[j]
        x[i] /= matrix[i, i]


@inlined
def _solve_transposed(matrix: Array, x: Array) -> None:
    """(LU)ᵀ x = b, b overwritten by x; runs along rows of the factors."""
    n = matrix.shape[0]
    for i in range(n):
        x[i] /= matrix[i, i]
        if x[i] != 0.0:
            for j in range(i + 1, n):
                x[j] -= matrix[i, j] * x[i]
    for i in range(n - 1, 0, -1):
        if x[i] != 0.0:
            for j in range(i):
                x[j] -= matrix[i, j] * x[i]


@entry
def action_values(model: Model, at: Quantities) -> None:
    """Q = r + γPV and A(s, a) = Q(s, a) - Σ_b π(b|s) Q(s, b), from π and V.

    Differences of Q below its rounding count as zero, and the baseline is taken relative to Q(s, 0): a state
    where the action does not matter has an advantage of exactly zero, not of a rounding error.
    """
    q, advantage = at.q, at.advantage
    states, actions = q.shape
    for s in range(states):
        for a in range(actions):
            row = s * actions + a
            total = 0.0
            for k in range(model.indptr[row], model.indptr[row + 1]):
                total += model.data[k] * at.v[model.indices[k]]
            q[s, a] = model.reward[s, a] + model.gamma * total
        mean = 0.0
        for a in range(actions):
            difference = q[s, a] - q[s, 0]
            if abs(difference) <= ROUNDING * (abs(q[s, a]) + abs(q[s, 0])):
                difference = 0.0
            advantage[s, a] = difference
            mean += at.policy[s, a] * difference
        for a in range(actions):
            advantage[s, a] -= mean


@entry
def evaluate_dense(model: Model, at: Quantities, matrix: Array) -> float:
    """J(π); fills V, Q, A and the normalised occupancy (1 - γ) d0ᵀ(I - γP_π)⁻¹. ``matrix`` is scratch."""
    states, actions = at.policy.shape
    for s in range(states):
        for other in range(states):
            matrix[s, other] = 0.0
        matrix[s, s] = 1.0
        expected = 0.0
        for a in range(actions):
            probability = at.policy[s, a]
            expected += probability * model.reward[s, a]
            row = s * actions + a
            for k in range(model.indptr[row], model.indptr[row + 1]):
                matrix[s, model.indices[k]] -= model.gamma * probability * model.data[k]
        at.v[s] = expected
        at.occupancy[s] = (1.0 - model.gamma) * model.start[s]
    _factorise(matrix)
    _solve(matrix, at.v)
    _solve_transposed(matrix, at.occupancy)
    action_values(model, at)
    value = 0.0
    for s in range(states):
        value += model.start[s] * at.v[s]
    return value
