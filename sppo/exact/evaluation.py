"""Exact evaluation of a policy: linear systems in I - γP_π and its transpose.

On a small MDP compiled, by one LU factorisation without pivoting. I - γP_π is a row diagonally dominant
M-matrix: elimination down the diagonal is stable, all pivots are positive, and the substitutions for the
occupancy only add non-negative numbers, so that an occupancy is never negative, however small. Zeros are
skipped, which makes the cost follow the fill-in, not S³.

On a large MDP sparse, in one of two ways, chosen once per MDP from its graph:

* *direct*, if no set of states that can all reach one another (a strong component) is large: the components
  are put in topological order, so that elimination down the diagonal fills in only within them. SuperLU, no
  pivoting.
* *iterative* otherwise, since a large component of random structure would fill in: BiCGSTAB with iterative
  refinement, to the accuracy that rounding allows. The residual is checked; plain fixed-point iteration, a
  contraction by γ, finishes the rare case where BiCGSTAB stalls.

Either way the cost grows about linearly with the number of transitions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse import csgraph
from scipy.sparse import linalg as spla

from sppo.compiled import njit

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Order = npt.NDArray[np.intp]

#: Called from Python as well as from compiled code; without Python's global lock, IEEE division.
entry = njit(nogil=True, error_model="numpy")
#: Called from compiled code only: no wrapper for Python is compiled, which halves the time it takes.
leaf = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
#: The same, and pasted into its callers.
inlined = njit(cache=False, nogil=True, error_model="numpy", forceinline=True, no_cpython_wrapper=True)

#: Relative rounding error of an action value: a sum over successors, of values that solve a linear system.
ROUNDING = 16 * 2.2e-16
#: A strong component of more states than this is solved iteratively.
COMPONENT_LIMIT = 600
#: Residual relative to the solution at which an iterative solution is called exact.
TOLERANCE = 1e-14
REFINEMENTS = 8


class Model(NamedTuple):
    """An MDP: CSR transitions with row s·A + a, rewards (S, A), start distribution, γ."""

    indptr: IntArray
    indices: IntArray
    data: Array
    reward: Array
    start: Array
    gamma: float


class Evaluation(NamedTuple):
    """Everything exact about one policy.

    :param policy: π(a|s), shape (S, A)
    :param value: J(π) = Σ d0(s) V(s)
    :param v: V^π, shape (S,)
    :param q: Q^π, shape (S, A)
    :param advantage: A^π = Q^π - V^π, shape (S, A); exactly zero in states where the action does not matter
    :param occupancy: d^π = (1 - γ) d0ᵀ(I - γP_π)⁻¹, shape (S,), sums to 1
    """

    policy: Array
    value: float
    v: Array
    q: Array
    advantage: Array
    occupancy: Array

    def __repr__(self) -> str:
        return f"Evaluation(value={self.value:.6g}, states={self.v.size}, actions={self.q.shape[1]})"

    @classmethod
    def unknown(cls, policy: Array) -> Evaluation:
        """Room for all that is to be computed of ``policy``."""
        v, occupancy = np.empty((2, len(policy)))
        q, advantage = np.empty((2, *policy.shape))
        return cls(policy, math.nan, v, q, advantage, occupancy)


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
def action_values(model: Model, at: Evaluation) -> None:
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
def evaluate_dense(model: Model, at: Evaluation, matrix: Array) -> float:
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


def elimination_order(transition: sp.csr_matrix) -> Order | None:
    """An order of the states that keeps a factorisation sparse, or None if iteration is the better way.

    :param transition: (S·A, S), row s·A + a
    """
    pairs, states = transition.shape
    reachable = transition.tocoo()
    source, target = reachable.row // (pairs // states), reachable.col
    graph = sp.csr_matrix((np.ones(source.size), (source, target)), shape=(states, states))
    _, component = csgraph.connected_components(graph, connection="strong")
    if np.bincount(component).max() > COMPONENT_LIMIT:
        return None
    # SciPy numbers the components along the edges, or against them; an order it should ever not keep would
    # only cost fill-in, never correctness
    if np.any(component[source] < component[target]):
        component = -component
    return np.argsort(component, kind="stable")


def evaluate_sparse(model: Model, at: Evaluation, p: sp.csr_matrix, order: Order | None) -> float:
    """:func:`evaluate_dense` of a large MDP: v = r + γPv and d = (1 - γ)d0 + γPᵀd ≥ 0, P the policy's."""
    gamma = model.gamma
    r, d0 = np.sum(at.policy * model.reward, axis=1), (1.0 - gamma) * model.start
    if order is None:
        transposed = p.T.tocsr()
        at.v[:] = _fixed_point(p, gamma, r)
        d = np.maximum(_fixed_point(transposed, gamma, d0), 0.0)
        # one sweep more makes the states that only rounding had emptied positive again
        at.occupancy[:] = d0 + gamma * (transposed @ d)
    else:
        matrix = sp.csc_matrix((sp.identity(len(r)) - gamma * p)[order][:, order])
        options = {"SymmetricMode": True}
        factors = spla.splu(matrix, permc_spec="NATURAL", diag_pivot_thresh=0.0, options=options)
        at.v[order] = factors.solve(r[order])
        at.occupancy[order] = np.maximum(factors.solve(d0[order], trans="T"), 0.0)
    action_values(model, at)
    return float(model.start @ at.v)


def _fixed_point(matrix: sp.csr_matrix, gamma: float, b: Array) -> Array:
    """x = b + γMx for M or Mᵀ stochastic, to a residual of about ``TOLERANCE`` relative to max|x|."""
    operator = spla.LinearOperator(matrix.shape, matvec=lambda x: x - gamma * (matrix @ x), dtype=np.float64)
    x = b
    residual = gamma * (matrix @ x)
    size = np.abs(residual).max()
    for _ in range(REFINEMENTS):
        if size <= TOLERANCE * np.abs(x).max():
            return x
        # scaled, because SciPy takes a small right-hand side for a breakdown of the method
        correction, _ = spla.bicgstab(operator, residual / size, rtol=1e-9, atol=0.0, maxiter=200)
        candidate = x + size * correction
        next_residual = b + gamma * (matrix @ candidate) - candidate
        next_size = np.abs(next_residual).max()
        if not next_size < 0.5 * size:
            break
        x, residual, size = candidate, next_residual, next_size
    for _ in range(math.ceil(math.log(1e-17) / math.log(gamma)) if gamma else 1):
        x, previous = b + gamma * (matrix @ x), x
        if np.abs(x - previous).max() <= TOLERANCE * np.abs(x).max():
            break
    return x
