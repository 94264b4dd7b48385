"""Linear systems of large MDPs: (I - γP)x = b and its transpose, sparse.

Two ways, chosen once per MDP from its graph:

* *direct*, if no set of states that can all reach one another (a strong component) is large: the components
  are put in topological order, so that elimination down the diagonal fills in only within them. SuperLU, no
  pivoting (an M-matrix needs none).
* *iterative* otherwise, since a large component of random structure would fill in: BiCGSTAB with iterative
  refinement, to the accuracy that rounding allows. The residual is checked; plain fixed-point iteration, a
  contraction by γ, finishes the rare case where BiCGSTAB stalls.

Either way the cost of a solve grows about linearly with the number of transitions.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse import csgraph
from scipy.sparse import linalg as spla

from sppo.exact.evaluation import Array

#: A strong component of more states than this is solved iteratively.
COMPONENT_LIMIT = 600
#: Residual relative to the right-hand side at which an iterative solution is called exact.
TOLERANCE = 1e-14
REFINEMENTS = 8

Order = npt.NDArray[np.intp]


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


def values_and_occupancy(
    transition: sp.csr_matrix, gamma: float, order: Order | None, reward: Array, start: Array
) -> tuple[Array, Array]:
    """v = r + γPv and d = (1 - γ)d0 + γPᵀd ≥ 0, for the transitions P and rewards r of one policy."""
    scaled = (1.0 - gamma) * start
    if order is None:
        transposed = transition.T.tocsr()
        d = np.maximum(_fixed_point(transposed, gamma, scaled), 0.0)
        # one sweep more makes the states that only rounding had emptied positive again
        return _fixed_point(transition, gamma, reward), scaled + gamma * (transposed @ d)
    matrix = sp.csc_matrix((sp.identity(start.size) - gamma * transition)[order][:, order])
    options = {"SymmetricMode": True}
    factors = spla.splu(matrix, permc_spec="NATURAL", diag_pivot_thresh=0.0, options=options)
    v, d = np.empty((2, start.size))
    v[order], d[order] = factors.solve(reward[order]), factors.solve(scaled[order], trans="T")
    return v, np.maximum(d, 0.0)


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
