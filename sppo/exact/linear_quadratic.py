"""Linear-quadratic problems: policies whose Q-function is known exactly, for value gradients.

Dynamics s' = A s + B a + w with w ~ N(0, W), reward r(s, a) = −sᵀQs − aᵀRa, discount γ, s_0 ~ N(0, S_0).
A policy is a linear map of state and noise, the functional representation of Appendix A of the FMA-PG paper:
a = f(s, ε) = K s + L ε with ε ~ N(0, I); L = 0 is a deterministic policy. Everything below is exact:

* V(s) = −sᵀPs − c, with P = Q + KᵀRK + γ (A + BK)ᵀ P (A + BK) (a Lyapunov equation);
* Q(s, a) = −sᵀQs − aᵀRa + γ E V(As + Ba + w), with Hessian −2G in the action, G = R + γBᵀPB;
* ∇_a Q(s, a) at a = f(s, ε) is −2 (E s + G L ε), with E = GK + γBᵀPA;
* J = E Σ_t γᵗ r_t = E V(s_0), and the second moment of the occupancy, Σ = E Σ_t γᵗ s_t s_tᵀ, solves
  Σ = S_0 + γh (BLLᵀBᵀ + W) + γ (A + BK) Σ (A + BK)ᵀ. The occupancy d here is not normalised: its mass is
  h = 1 / (1 − γ), so that J = E_d[r].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_discrete_are, solve_discrete_lyapunov

from sppo.arguments import finite_array
from sppo.exact.evaluation import Array


class UnstablePolicyError(ValueError):
    """The discounted return of a policy is −∞: the spectral radius of √γ (A + BK) is not below 1."""


@dataclass(frozen=True, eq=False)
class LinearGaussianPolicy:
    """The map f(s, ε) = K s + L ε.

    :param gain: K, shape (actions, states)
    :param scale: L, shape (actions, noises); zero for a deterministic policy
    """

    gain: Array
    scale: Array

    def __call__(self, state: Array, noise: Array) -> Array:
        """Actions for states (..., n) and noises (..., q)."""
        return state @ self.gain.T + noise @ self.scale.T

    def moved(self, gain_step: Array, scale_step: Array) -> LinearGaussianPolicy:
        """The policy whose parameters differ from these by the given steps."""
        return LinearGaussianPolicy(self.gain + gain_step, self.scale + scale_step)


@dataclass(frozen=True, eq=False)
class LQREvaluation:
    """Exact quantities of one policy; the symbols are those of the module's docstring.

    :param policy: the policy evaluated
    :param value: J
    :param value_matrix: P, shape (n, n)
    :param value_constant: c
    :param action_curvature: G, shape (p, p)
    :param gain_residual: E, shape (p, n); zero for the optimal gain
    :param state_moment: Σ, shape (n, n)
    """

    problem: LQR
    policy: LinearGaussianPolicy
    value: float
    value_matrix: Array
    value_constant: float
    action_curvature: Array
    gain_residual: Array
    state_moment: Array

    def v(self, state: Array) -> Array:
        """V(s) for states of shape (..., n)."""
        return _minus_square(state, self.value_matrix) - self.value_constant

    def q(self, state: Array, action: Array) -> Array:
        """Q(s, a) for states (..., n) and actions (..., p)."""
        problem = self.problem
        following = self.v(state @ problem.dynamics.T + action @ problem.control.T)
        spread = np.trace(problem.noise_covariance @ self.value_matrix)
        return problem.reward(state, action) + problem.gamma * (following - spread)

    def action_gradient(self, state: Array, action: Array) -> Array:
        """∇_a Q(s, a) = −2 (G (a − Ks) + Es) for states (..., n) and actions (..., p)."""
        off_policy = action - state @ self.policy.gain.T
        return -2 * (off_policy @ self.action_curvature.T + state @ self.gain_residual.T)

    def gradient(self) -> tuple[Array, Array]:
        """(∂J/∂K, ∂J/∂L) = (−2EΣ, −2hGL): the deterministic (L = 0) or stochastic value gradient."""
        scale_gradient = -2 * self.problem.horizon * self.action_curvature @ self.policy.scale
        return -2 * self.gain_residual @ self.state_moment, scale_gradient


class LQR:
    """A linear-quadratic problem.

    :param dynamics: A, shape (n, n)
    :param control: B, shape (n, p)
    :param state_cost: Q, symmetric positive definite, shape (n, n)
    :param action_cost: R, symmetric positive definite, shape (p, p)
    :param gamma: discount γ in (0, 1)
    :param initial_covariance: S_0, symmetric positive definite; the identity by default
    :param noise_covariance: W, symmetric positive semi-definite; zero by default
    """

    def __init__(
        self,
        dynamics: npt.ArrayLike,
        control: npt.ArrayLike,
        state_cost: npt.ArrayLike,
        action_cost: npt.ArrayLike,
        *,
        gamma: float,
        initial_covariance: npt.ArrayLike | None = None,
        noise_covariance: npt.ArrayLike | None = None,
    ) -> None:
        self.dynamics = finite_array("dynamics", dynamics, "n", "n")
        self.control = finite_array("control", control, len(self.dynamics), "p")
        states, actions = self.control.shape
        if not 0 < gamma < 1:
            raise ValueError(f"gamma must be strictly between 0 and 1, not {gamma!r}")
        self.gamma = float(gamma)
        start = np.eye(states) if initial_covariance is None else initial_covariance
        noise = np.zeros((states, states)) if noise_covariance is None else noise_covariance
        self.state_cost = _symmetric("state_cost", state_cost, states, definite=True)
        self.action_cost = _symmetric("action_cost", action_cost, actions, definite=True)
        self.initial_covariance = _symmetric("initial_covariance", start, states, definite=True)
        self.noise_covariance = _symmetric("noise_covariance", noise, states, definite=False)

    @property
    def horizon(self) -> float:
        """h = 1 / (1 − γ), the mass of the occupancy."""
        return 1 / (1 - self.gamma)

    def reward(self, state: Array, action: Array) -> Array:
        """r(s, a) = −sᵀQs − aᵀRa for states (..., n) and actions (..., p)."""
        return _minus_square(state, self.state_cost) + _minus_square(action, self.action_cost)

    def policy(self, gain: npt.ArrayLike | None = None, scale: npt.ArrayLike = 0.0) -> LinearGaussianPolicy:
        """A policy of this problem's shape.

        :param gain: K; zero if left out
        :param scale: L; a number stands for that multiple of the identity
        """
        states, actions = self.control.shape
        gain = np.zeros((actions, states)) if gain is None else gain
        scale = scale if np.ndim(scale) else np.multiply(scale, np.eye(actions))
        return LinearGaussianPolicy(
            finite_array("gain", gain, actions, states), finite_array("scale", scale, actions, "q")
        )

    def spectral_radius(self, policy: LinearGaussianPolicy) -> float:
        """Of √γ (A + BK); the policy's return is finite if and only if it is below 1."""
        closed_loop = self.dynamics + self.control @ policy.gain
        if not np.isfinite(closed_loop).all():
            return np.inf
        return float(np.sqrt(self.gamma) * np.abs(np.linalg.eigvals(closed_loop)).max())

    def evaluate(self, policy: LinearGaussianPolicy) -> LQREvaluation:
        """All exact quantities of a policy; raises :class:`UnstablePolicyError` if its return is −∞."""
        radius = self.spectral_radius(policy)
        if not radius < 1:
            raise UnstablePolicyError(
                f"the return is infinitely low: √γ (A + BK) has spectral radius {radius:.6g}, not below 1"
            )
        gain, scale, control, gamma = policy.gain, policy.scale, self.control, self.gamma
        closed_loop = np.sqrt(gamma) * (self.dynamics + control @ gain)
        value_matrix = _lyapunov(closed_loop.T, self.state_cost + gain.T @ self.action_cost @ gain)
        source = self.initial_covariance + gamma * self.horizon * (
            control @ scale @ scale.T @ control.T + self.noise_covariance
        )
        curvature = self.action_cost + gamma * control.T @ value_matrix @ control
        constant = self.horizon * float(
            np.trace(scale.T @ curvature @ scale) + gamma * np.trace(self.noise_covariance @ value_matrix)
        )
        value = -float(np.trace(self.initial_covariance @ value_matrix)) - constant
        residual = curvature @ gain + gamma * control.T @ value_matrix @ self.dynamics
        moment = _lyapunov(closed_loop, source)
        return LQREvaluation(self, policy, value, value_matrix, constant, curvature, residual, moment)

    def optimal(self) -> LQREvaluation:
        """The best policy, deterministic, from the Riccati equation of (√γ A, √γ B, Q, R)."""
        dynamics, control = np.sqrt(self.gamma) * self.dynamics, np.sqrt(self.gamma) * self.control
        value_matrix = solve_discrete_are(dynamics, control, self.state_cost, self.action_cost)
        curvature = self.action_cost + control.T @ value_matrix @ control
        return self.evaluate(self.policy(-np.linalg.solve(curvature, control.T @ value_matrix @ dynamics)))


#: By the name of its function.
lqr = LQR


def double_integrator(*, masses: Sequence[float] = (1.0,), step: float = 0.2, gamma: float = 0.95) -> LQR:
    """Masses pushed along lines of their own by a force each: positions and velocities, Euler steps."""
    if not masses or not all(mass > 0 for mass in masses):
        raise ValueError(f"masses must be positive numbers, at least one, not {masses!r}")
    axes = len(masses)
    dynamics = np.kron(np.eye(axes), np.array([[1.0, step], [0.0, 1.0]]))
    control = np.kron(np.diag([1 / mass for mass in masses]), np.array([[0.0], [step]]))
    return lqr(dynamics, control, np.eye(2 * axes), 0.1 * np.eye(axes), gamma=gamma)


def random_lqr(
    seed: int, *, states: int = 3, actions: int = 2, gamma: float = 0.9, radius: float = 0.95
) -> LQR:
    """A random problem whose uncontrolled dynamics have the given spectral radius, with process noise."""
    rng = np.random.default_rng(seed)
    dynamics = rng.standard_normal((states, states))
    dynamics *= radius / np.abs(np.linalg.eigvals(dynamics)).max()
    factors = rng.standard_normal((4, max(states, actions), max(states, actions)))
    products = factors @ factors.transpose(0, 2, 1) / factors.shape[-1] + 0.1 * np.eye(factors.shape[-1])
    control = rng.standard_normal((states, actions))
    state_cost, _, start, noise = products[:, :states, :states]
    covariances = {"initial_covariance": start, "noise_covariance": 0.1 * noise}
    return lqr(dynamics, control, state_cost, products[1, :actions, :actions], gamma=gamma, **covariances)


def _minus_square(x: Array, matrix: Array) -> Array:
    """−xᵀMx for vectors (..., n)."""
    return -np.einsum("...i,ij,...j->...", x, matrix, x)


def _lyapunov(transition: Array, source: Array) -> Array:
    """The symmetric X = T X Tᵀ + S."""
    solution = solve_discrete_lyapunov(transition, source)
    return (solution + solution.T) / 2


def _symmetric(name: str, value: npt.ArrayLike, size: int, *, definite: bool) -> Array:
    matrix = finite_array(name, value, size, size)
    if not np.allclose(matrix, matrix.T, rtol=1e-10, atol=1e-12):
        raise ValueError(f"{name} must be symmetric")
    least = np.linalg.eigvalsh(matrix)[0]
    if least <= (0.0 if definite else -1e-12 * max(1.0, np.abs(matrix).max())):
        kind = "definite" if definite else "semi-definite"
        raise ValueError(f"{name} must be positive {kind}; its smallest eigenvalue is {least:.3g}")
    return (matrix + matrix.T) / 2
