"""Finite Markov decision processes and their exact evaluation."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sppo.arguments import finite_array
from sppo.exact.evaluation import Array, Evaluation, Model, elimination_order, evaluate_dense, evaluate_sparse

#: Up to so many states a policy is evaluated by the compiled dense factorisation.
DENSE_LIMIT = 256
#: How far a distribution's sum may be from 1.
SUM_TOLERANCE = 1e-8


#: What is known about an optimal policy is what is known about any.
Optimum = Evaluation


class TabularMDP:
    """A finite discounted MDP (P, r, d0, γ).

    :param transition: P(s'|s, a): an array of shape (S, A, S), or a SciPy sparse matrix of shape (S·A, S)
        whose row s·A + a is P(·|s, a)
    :param reward: r(s, a), shape (S, A)
    :param start: d0, shape (S,)
    :param gamma: discount factor, 0 ≤ γ < 1
    :param reward_range: (r_l, r_m) for the theory's bounds; the least and the largest reward by default
    :param name: for the repr
    """

    def __init__(
        self,
        transition: npt.ArrayLike | sp.spmatrix | sp.sparray,
        reward: npt.ArrayLike,
        start: npt.ArrayLike,
        gamma: float,
        *,
        reward_range: tuple[float, float] | None = None,
        name: str = "TabularMDP",
    ) -> None:
        self.name = name
        self.gamma = float(gamma)
        if not 0.0 <= self.gamma < 1.0:
            raise ValueError(f"gamma must be in [0, 1), not {gamma}")
        self.reward = finite_array("reward", reward, "S", "A")
        self.n_states, self.n_actions = states, actions = self.reward.shape
        self.start = finite_array("start", start, states)
        _check_distributions(self.start[None], "start")
        if not sp.issparse(transition):
            transition = finite_array("transition", transition, states, actions, states).reshape(-1, states)
        self.transition = sp.csr_matrix(transition, dtype=np.float64, copy=True)
        if self.transition.shape != (states * actions, states):
            raise ValueError(
                f"a sparse transition has one row per state and action, "
                f"shape {(states * actions, states)}, not {self.transition.shape}"
            )
        self.transition.sum_duplicates()
        self.transition.eliminate_zeros()
        _check_distributions(self.transition, "transition", actions)
        low, high = float(self.reward.min()), float(self.reward.max())
        least, most = (low, high) if reward_range is None else map(float, reward_range)
        if least > low or most < high:
            raise ValueError(f"reward_range {reward_range} does not contain the rewards, [{low}, {high}]")
        self.reward_range = (least, most)
        for array in (self.reward, self.start):
            array.flags.writeable = False

    @property
    def n_transitions(self) -> int:
        """Number of transitions of positive probability."""
        return int(self.transition.nnz)

    def __repr__(self) -> str:
        return (
            f"{self.name}(states={self.n_states}, actions={self.n_actions}, "
            f"transitions={self.n_transitions}, gamma={self.gamma:g})"
        )

    @cached_property
    def model(self) -> Model:
        """The MDP as the kernels take it, with 64-bit indices."""
        rows = self.transition
        indptr, indices = rows.indptr.astype(np.int64), rows.indices.astype(np.int64)
        return Model(indptr, indices, rows.data, self.reward, self.start, self.gamma)

    @cached_property
    def _order(self) -> npt.NDArray[np.intp] | None:
        return elimination_order(self.transition)

    def check_policy(self, policy: npt.ArrayLike) -> Array:
        """``policy`` as a float array, or an error that says what is wrong with it."""
        array = finite_array("policy", policy, *self.reward.shape)
        _check_distributions(array, "policy")
        return array

    def evaluate(self, policy: npt.ArrayLike) -> Evaluation:
        """J, V, Q, A and the normalised occupancy of ``policy`` (S, A), exactly."""
        at = Evaluation.unknown(self.check_policy(policy))
        if self.n_states <= DENSE_LIMIT:
            value = evaluate_dense(self.model, at, np.empty((self.n_states, self.n_states)))
        else:
            value = evaluate_sparse(self.model, at, self.policy_transition(at.policy), self._order)
        return at._replace(value=value)

    def policy_transition(self, policy: Array) -> sp.csr_matrix:
        """P_π(s'|s) = Σ_a π(a|s) P(s'|s, a), sparse (S, S)."""
        states, actions = self.reward.shape
        blocks = (policy.ravel(), np.arange(states * actions), np.arange(0, states * actions + 1, actions))
        return sp.csr_matrix(sp.csr_matrix(blocks, shape=(states, states * actions)) @ self.transition)

    def optimal(self) -> Evaluation:
        """An optimal policy, deterministic: value iteration to get near, policy iteration to be exact."""
        v, states = np.zeros(self.n_states), np.arange(self.n_states)
        for _ in range(2000):
            v, previous = self._backup(v).max(axis=1), v
            if np.abs(v - previous).max() <= 1e-12 * max(1.0, np.abs(v).max()):
                break
        actions = self._backup(v).argmax(axis=1)
        while True:
            evaluation = self.evaluate(np.eye(self.n_actions)[actions])
            q = evaluation.q
            # a strict improvement only: ties broken by rounding would make the iteration cycle
            slack = 1e-11 * max(1.0, np.abs(q).max())
            better = q.max(axis=1) > q[states, actions] + slack
            if not better.any():
                return evaluation
            actions = np.where(better, q.argmax(axis=1), actions)

    def _backup(self, v: Array) -> Array:
        return self.reward + self.gamma * (self.transition @ v).reshape(self.reward.shape)


def _check_distributions(rows: Array | sp.csr_matrix, name: str, actions: int = 0) -> None:
    """Rows are states, or with ``actions`` pairs of state and action."""
    if rows.min() < 0.0:
        raise ValueError(f"{name} has a negative probability, {rows.min():g}")
    sums = np.asarray(rows.sum(axis=1)).ravel()
    worst = int(np.argmax(np.abs(sums - 1.0)))
    if not abs(sums[worst] - 1.0) <= SUM_TOLERANCE:
        where = f" in state {worst // max(1, actions)}" if sums.size > 1 else ""
        where += f", action {worst % actions}" if actions else ""
        raise ValueError(f"{name} must sum to 1; it sums to {sums[worst]:.12g}{where}")
