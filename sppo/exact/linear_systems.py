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


def elimination_order(transition: sp.csr_matrix, states: int) -> Order | None:
    """An order of the states that keeps a factorisation sparse, or None if iteration is the better way.

    :param transition: (S·A, S), row s·A + a
    """
    reachable = transition.tocoo()
    actions = transition.shape[0] // states
    source, target = reachable.row // actions, reachable.col
    graph = sp.coo_matrix((np.ones(source.size), (source, target)), shape=(states, states)).tocsr()
    _, component = csgraph.connected_components(graph, connection="strong")
    if np.bincount(component).max() > COMPONENT_LIMIT:
        return None
    # SciPy numbers the components along the edges, or against them; an order it should ever not keep would
    # only cost fill-in, never correctness
    if np.any(component[source] < component[target]):
        component = -component
    return np.argsort(component, kind="stable")


class PolicySystem:
    """(I - γP_π) for one policy: solves for values, and transposed for occupancies."""

    def __init__(self, transition: sp.csr_matrix, gamma: float, order: Order | None) -> None:
        self.transition = transition
        self.gamma = gamma
        self.order = order
        if order is not None:
            matrix = sp.identity(transition.shape[0], format="csr") - gamma * transition
            self.factors = spla.splu(
                sp.csc_matrix(matrix[order][:, order]),
                permc_spec="NATURAL",
                diag_pivot_thresh=0.0,
                options={"SymmetricMode": True},
            )

    def values(self, reward: Array) -> Array:
        """v = r + γPv."""
        if self.order is None:
            return solve_fixed_point(self.transition, self.gamma, reward)
        return self._direct(reward, "N")

    def occupancy(self, start: Array) -> Array:
        """d = (1 - γ)d0 + γPᵀd, non-negative."""
        scaled = (1.0 - self.gamma) * start
        if self.order is not None:
            return np.maximum(self._direct(scaled, "T"), 0.0)
        transposed = self.transition.T.tocsr()
        d = np.maximum(solve_fixed_point(transposed, self.gamma, scaled), 0.0)
        # one sweep more makes the states that only rounding had emptied positive again
        return scaled + self.gamma * (transposed @ d)

    def _direct(self, b: Array, side: str) -> Array:
        x = np.empty_like(b)
        x[self.order] = self.factors.solve(b[self.order], trans=side)
        return x


def solve_fixed_point(matrix: sp.csr_matrix, gamma: float, b: Array) -> Array:
    """x = b + γMx for M or Mᵀ stochastic, to a residual of about ``TOLERANCE`` relative to max|x|."""
    operator = spla.LinearOperator(matrix.shape, matvec=lambda x: x - gamma * (matrix @ x), dtype=np.float64)
    x = b.copy()
    residual = gamma * (matrix @ x)
    size = float(np.max(np.abs(residual)))
    for _ in range(REFINEMENTS):
        if size <= TOLERANCE * float(np.max(np.abs(x))):
            return x
        # scaled, because SciPy takes a small right-hand side for a breakdown of the method
        correction, _ = spla.bicgstab(operator, residual / size, rtol=1e-9, atol=0.0, maxiter=200)
        candidate = x + size * correction
        next_residual = b + gamma * (matrix @ candidate) - candidate
        next_size = float(np.max(np.abs(next_residual)))
        if not next_size < 0.5 * size:
            break
        x, residual, size = candidate, next_residual, next_size
    sweeps = 1 if gamma == 0.0 else math.ceil(math.log(1e-17) / math.log(gamma))
    for _ in range(sweeps):
        new = b + gamma * (matrix @ x)
        change = float(np.max(np.abs(new - x)))
        x = new
        if change <= TOLERANCE * float(np.max(np.abs(x))):
            break
    return x
