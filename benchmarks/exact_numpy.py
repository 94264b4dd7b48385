"""The tabular experiments written the obvious way: loops over NumPy, one function per formula.

The baseline of ``exact_speed.py``, and the independent implementation that the tests hold the compiled
solvers against. It follows the paper's pseudo-code and tables step by step and nothing else: no closed forms
for the trust-region direction, no skipped states, no shortcuts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sppo.exact import TabularMDP

Array = npt.NDArray[np.float64]


def softmax(theta: Array) -> Array:
    """Row by row."""
    e = np.exp(theta - theta.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


class Dense:
    """A tabular MDP as dense arrays."""

    def __init__(self, mdp: TabularMDP) -> None:
        self.P = mdp.transition.toarray().reshape(mdp.n_states, mdp.n_actions, mdp.n_states)
        self.r, self.d0, self.gamma = mdp.reward, mdp.start, mdp.gamma

    def evaluate(self, pi: Array) -> tuple[float, Array, Array]:
        """J, advantage, normalised occupancy."""
        P_pi = np.einsum("sat,sa->st", self.P, pi)
        r_pi = (pi * self.r).sum(axis=1)
        eye = np.eye(len(r_pi))
        v = np.linalg.solve(eye - self.gamma * P_pi, r_pi)
        q = self.r + self.gamma * np.einsum("sat,t->sa", self.P, v)
        d = (1 - self.gamma) * np.linalg.solve((eye - self.gamma * P_pi).T, self.d0)
        return float(self.d0 @ v), q - v[:, None], d


def log_ratio(pi: Array, pi_t: Array, clip: float) -> Array:
    """log pi/pi_t; the published runs clipped both probabilities to [1e-8, 1 - 1e-8] first."""
    if clip > 0.0:
        pi, pi_t = np.clip(pi, clip, 1 - clip), np.clip(pi_t, clip, 1 - clip)
    return np.log(pi / pi_t)


def objective(name: str, pi: Array, pi_t: Array, adv: Array, d: Array, clip: float = 0.0) -> float:
    """J of Table 1."""
    if name == "smdpo":
        return float((d * (pi_t * adv * log_ratio(pi, pi_t, clip)).sum(axis=1)).sum())
    return float((d * (pi * adv).sum(axis=1)).sum())


def constraint(name: str, pi: Array, pi_t: Array, d: Array) -> float:
    """C of Table 1."""
    if name == "mdpo":
        return float((d * (pi * np.log(pi / pi_t)).sum(axis=1)).sum())
    return float((d * (pi_t * np.log(pi_t / pi)).sum(axis=1)).sum())


def objective_gradient(
    name: str, pi: Array, pi_t: Array, adv: Array, d: Array, epsilon: float = 0.0
) -> Array:
    """∇J of Table 2, and PPO's."""
    if name == "smdpo":
        return d[:, None] * pi_t * adv
    if name == "ppo":
        ratio = pi / pi_t
        keep = ((adv > 0) & (ratio < 1 + epsilon)) | ((adv < 0) & (ratio > 1 - epsilon))
        adv = keep * adv
    return d[:, None] * pi * (adv - (pi * adv).sum(axis=1, keepdims=True))


def constraint_gradient(name: str, pi: Array, pi_t: Array, d: Array, clip: float = 0.0) -> Array:
    """∇C of Table 2."""
    if name == "mdpo":
        ratio = log_ratio(pi, pi_t, clip)
        return d[:, None] * pi * (ratio - (pi * ratio).sum(axis=1, keepdims=True))
    return d[:, None] * (pi - pi_t)


def hessian(name: str, pi: Array, pi_t: Array, d: Array) -> Array:
    """∇²C, the full (S·A, S·A) matrix, block by block."""
    states, actions = pi.shape
    H = np.zeros((states * actions, states * actions))
    for s in range(states):
        p = pi[s]
        if name == "mdpo":
            ratio = np.log(p / pi_t[s])
            t = p * (ratio - (p * ratio).sum() + 1)
            block = np.diag(t) - np.outer(p, t) - np.outer(t, p) + np.outer(p, p)
        else:
            block = np.diag(p) - np.outer(p, p)
        H[s * actions : (s + 1) * actions, s * actions : (s + 1) * actions] = d[s] * block
    return H


def backtrack(
    accept: Callable[[Array, float], bool],
    omega: Array,
    direction: Array,
    alpha: float,
    decay: float = 0.9,
    tries: int = 1000,
) -> tuple[Array, float]:
    """The first accepted step, or one of 1e-16."""
    for _ in range(tries):
        if accept(omega + alpha * direction, alpha):
            return omega + alpha * direction, alpha
        alpha *= decay
    return omega + 1e-16 * direction, 1e-16


def fixed(
    env: Dense, name: str, iterations: int, m: int, alpha: float, eta: float = np.inf, epsilon: float = 0.0
) -> Array:
    """Algorithm 1 with a fixed inner step."""
    theta = np.zeros(env.r.shape)
    values = []
    for _ in range(iterations):
        pi_t = softmax(theta)
        value, adv, d = env.evaluate(pi_t)
        values.append(value)
        for _ in range(m):
            pi = softmax(theta)
            gradient = objective_gradient(name, pi, pi_t, adv, d, epsilon)
            if name != "ppo":
                gradient = gradient - constraint_gradient(name, pi, pi_t, d) / eta
            theta = theta + alpha * gradient
    return np.array(values)


def line_search(
    env: Dense, name: str, iterations: int, m: int, eta: float, armijo: float, published: bool = False
) -> Array:
    """Algorithm 1 with Armijo backtracking (initial 10, decay 0.9, warm start 2)."""
    theta = np.zeros(env.r.shape)
    clip = 1e-8 if published else 0.0
    values = []
    for _ in range(iterations):
        pi_t = softmax(theta)
        value, adv, d = env.evaluate(pi_t)
        values.append(value)
        alpha = 10.0

        def score(omega: Array, pi_t: Array = pi_t, adv: Array = adv, d: Array = d) -> float:
            pi = softmax(omega)
            penalty = 0.0 if published else constraint(name, pi, pi_t, d) / eta
            return objective(name, pi, pi_t, adv, d, clip) - penalty

        for k in range(m):
            pi = softmax(theta)
            pull = constraint_gradient(name, pi, pi_t, d, clip)
            gradient = objective_gradient(name, pi, pi_t, adv, d) - pull / eta
            here, slope = score(theta), armijo * (gradient**2).sum()
            theta, alpha = backtrack(
                lambda omega, a, here=here, slope=slope: score(omega) >= here + a * slope,  # type: ignore[misc]
                theta,
                gradient,
                alpha if k == 0 else 2.0 * alpha,
            )
    return np.array(values)


def constrained(env: Dense, name: str, iterations: int, m: int, delta: float) -> Array:
    """Trust-region steps: direction by pseudo-inverse, backtracking until J is not lower and C ≤ δ."""
    theta = np.zeros(env.r.shape)
    values = []
    for _ in range(iterations):
        pi_t = softmax(theta)
        value, adv, d = env.evaluate(pi_t)
        values.append(value)
        for _ in range(m):
            pi = softmax(theta)
            H = hessian(name, pi, pi_t, d)
            gradient = objective_gradient(name, pi, pi_t, adv, d).ravel()
            direction = np.linalg.pinv(H) @ gradient
            quadratic = direction @ H @ direction
            first = min(float(np.sqrt(2 * delta / quadratic)), 1e5) if quadratic > 0 else 1e5
            here = objective(name, pi, pi_t, adv, d)

            def accept(
                omega: Array, _: float, pi_t: Array = pi_t, adv: Array = adv, d: Array = d, here: float = here
            ) -> bool:
                new = softmax(omega)
                return objective(name, new, pi_t, adv, d) >= here and constraint(name, new, pi_t, d) <= delta

            theta, _ = backtrack(accept, theta, direction.reshape(theta.shape), first)
    return np.array(values)


def closed_form(env: Dense, name: str, iterations: int, eta: float) -> Array:
    """The exact updates of sMDPO and MDPO."""
    pi = np.full(env.r.shape, 1.0 / env.r.shape[1])
    values = []
    for _ in range(iterations):
        value, adv, _ = env.evaluate(pi)
        values.append(value)
        pi = pi * (np.maximum(1 + eta * adv, 0.0) if name == "smdpo" else np.exp(eta * adv))
        pi = pi / pi.sum(axis=1, keepdims=True)
    return np.array(values)
