"""Finite Markov decision processes and their exact evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sppo.arguments import finite_array
from sppo.exact.evaluation import Array, Model, action_values, evaluate_dense, unknown
from sppo.exact.linear_systems import Order, elimination_order, values_and_occupancy

#: Up to so many states a policy is evaluated by the compiled dense factorisation.
DENSE_LIMIT = 256
#: How far a distribution's sum may be from 1.
SUM_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Evaluation:
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
        self.n_states, self.n_actions = self.reward.shape
        self.start = finite_array("start", start, self.n_states)
        _check_distributions(self.start[None], "start")
        self.transition = self._transition_rows(transition)
        low, high = float(self.reward.min()), float(self.reward.max())
        least, most = (low, high) if reward_range is None else map(float, reward_range)
        if least > low or most < high:
            raise ValueError(f"reward_range {reward_range} does not contain the rewards, [{low}, {high}]")
        self.reward_range = (least, most)
        for array in (self.reward, self.start):
            array.flags.writeable = False

    def _transition_rows(self, transition: Any) -> sp.csr_matrix:
        states, actions = self.reward.shape
        if not sp.issparse(transition):
            dense = finite_array("transition", transition, states, actions, states)
            transition = dense.reshape(states * actions, states)
        elif transition.shape != (states * actions, states):
            raise ValueError(
                f"a sparse transition has one row per state and action, "
                f"shape {(states * actions, states)}, not {transition.shape}"
            )
        rows = sp.csr_matrix(transition, dtype=np.float64, copy=True)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        _check_distributions(rows, "transition", actions)
        return rows

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
    def _order(self) -> Order | None:
        return elimination_order(self.transition)

    def check_policy(self, policy: npt.ArrayLike) -> Array:
        """``policy`` as a float array, or an error that says what is wrong with it."""
        array = finite_array("policy", policy, *self.reward.shape)
        _check_distributions(array, "policy")
        return array

    def evaluate(self, policy: npt.ArrayLike) -> Evaluation:
        """J, V, Q, A and the normalised occupancy of ``policy`` (S, A), exactly."""
        return self.evaluate_unchecked(self.check_policy(policy))

    def evaluate_unchecked(self, policy: Array) -> Evaluation:
        """:meth:`evaluate` for a policy known to be valid."""
        at = unknown(policy)
        if self.n_states <= DENSE_LIMIT:
            value = evaluate_dense(self.model, at, np.empty((self.n_states, self.n_states)))
        else:
            transition, reward = self.policy_transition(policy), np.sum(policy * self.reward, axis=1)
            at.v[:], at.occupancy[:] = values_and_occupancy(
                transition, self.gamma, self._order, reward, self.start
            )
            action_values(self.model, at)
            value = float(self.start @ at.v)
        return Evaluation(at.policy, value, at.v, at.q, at.advantage, at.occupancy)

    def policy_transition(self, policy: Array) -> sp.csr_matrix:
        """P_π(s'|s) = Σ_a π(a|s) P(s'|s, a), sparse (S, S)."""
        states, actions = self.reward.shape
        weights = sp.csr_matrix(
            (policy.ravel(), np.arange(states * actions), np.arange(0, states * actions + 1, actions)),
            shape=(states, states * actions),
        )
        return sp.csr_matrix(weights @ self.transition)

    def optimal(self) -> Evaluation:
        """An optimal policy, deterministic: value iteration to get near, policy iteration to be exact."""
        v, states = np.zeros(self.n_states), np.arange(self.n_states)
        for _ in range(2000):
            v, previous = self._backup(v).max(axis=1), v
            if np.abs(v - previous).max() <= 1e-12 * max(1.0, np.abs(v).max()):
                break
        actions = self._backup(v).argmax(axis=1)
        while True:
            evaluation = self.evaluate_unchecked(np.eye(self.n_actions)[actions])
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
