"""Exact LQR quantities against recursions, quadrature and finite differences; the guarantees on η."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sppo.exact.linear_quadratic import UnstablePolicyError, double_integrator, lqr, random_lqr
from sppo.exact.value_gradient import (
    ValueGradientSurrogate,
    certified,
    improvement_eta,
    lower_bound_eta,
    value_gradient_ascent,
)


def random_policy(problem, seed, scale):
    """A stable policy with a random gain: a random direction, shrunk towards the stable zero gain."""
    rng = np.random.default_rng(seed)
    gain = rng.standard_normal(problem.control.T.shape)
    limit = (1 + problem.spectral_radius(problem.policy())) / 2
    while problem.spectral_radius(problem.policy(gain)) > limit:
        gain *= 0.7
    return problem.policy(gain, scale * rng.standard_normal((problem.control.shape[1],) * 2))


def sigma_points(covariance):
    """Equally weighted points with mean zero and this covariance: exact expectations of quadratics."""
    root = np.linalg.cholesky(covariance) * np.sqrt(len(covariance))
    return np.concatenate([root.T, -root.T])


def occupancy_points(evaluation):
    """(states, noises) whose average, times the mass h, is E over the occupancy and ε for quadratics."""
    states, noises = len(evaluation.state_moment), evaluation.policy.scale.shape[1]
    covariance = np.eye(states + noises)
    covariance[:states, :states] = evaluation.state_moment / evaluation.problem.horizon
    points = sigma_points(covariance)
    return points[:, :states], points[:, states:]


PROBLEMS = [double_integrator(), random_lqr(0), random_lqr(5, states=4, actions=1, gamma=0.97, radius=1.0)]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("scale", [0.0, 0.6])
def test_value_and_moment_equal_the_sum_over_time(problem, scale):
    """J and Σ equal the discounted sums of expected rewards and second moments, step by step."""
    policy = random_policy(problem, 1, scale)
    evaluation = problem.evaluate(policy)
    closed_loop = problem.dynamics + problem.control @ policy.gain
    noise = problem.control @ policy.scale @ policy.scale.T @ problem.control.T + problem.noise_covariance
    moment, value, total, discount = problem.initial_covariance, 0.0, 0.0, 1.0
    cost = problem.state_cost + policy.gain.T @ problem.action_cost @ policy.gain
    for _ in range(3000):
        spread = np.trace(policy.scale.T @ problem.action_cost @ policy.scale)
        value -= discount * (np.trace(cost @ moment) + spread)
        total = total + discount * moment
        moment = closed_loop @ moment @ closed_loop.T + noise
        discount *= problem.gamma
    assert evaluation.value == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(evaluation.state_moment, total, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_q_satisfies_both_bellman_equations(problem):
    """Q(s, a) = r + γ E V(s') and V(s) = E_ε Q(s, f(s, ε)); ∇_a Q is the slope of Q."""
    evaluation = problem.evaluate(random_policy(problem, 2, 0.5))
    policy = evaluation.policy
    rng = np.random.default_rng(0)
    states, actions = problem.control.shape
    for state, action in zip(
        rng.standard_normal((5, states)), rng.standard_normal((5, actions)), strict=True
    ):
        shocks = sigma_points(problem.noise_covariance + 1e-30 * np.eye(states))
        following = problem.dynamics @ state + problem.control @ action + shocks
        target = problem.reward(state, action) + problem.gamma * evaluation.v(following).mean()
        assert evaluation.q(state, action) == pytest.approx(target, rel=1e-9)
        noises = sigma_points(np.eye(policy.scale.shape[1]))
        assert evaluation.q(state, policy(state, noises)).mean() == pytest.approx(
            evaluation.v(state), rel=1e-9
        )
        step = 1e-4 * np.eye(actions)
        slope = (evaluation.q(state, action + step) - evaluation.q(state, action - step)) / 2e-4
        np.testing.assert_allclose(evaluation.action_gradient(state, action), slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_value_gradient_is_the_slope_of_the_value(problem, scale):
    """∂J/∂K and ∂J/∂L against central differences of the exact value; E_d[∇_a Q sᵀ] gives the same K part."""
    policy = random_policy(problem, 3, scale)
    evaluation = problem.evaluate(policy)
    for name, gradient in zip(("gain", "scale"), evaluation.gradient(), strict=True):
        for index in np.ndindex(gradient.shape):
            step = {"gain": np.zeros_like(policy.gain), "scale": np.zeros_like(policy.scale)}
            step[name][index] = 1e-5
            above = problem.evaluate(policy.moved(step["gain"], step["scale"])).value
            below = problem.evaluate(policy.moved(-step["gain"], -step["scale"])).value
            slope = (above - below) / 2e-5
            assert gradient[index] == pytest.approx(slope, rel=1e-4, abs=1e-5 * abs(evaluation.value))
    states, noises = occupancy_points(evaluation)
    pointwise = evaluation.action_gradient(states, policy(states, noises))
    by_theorem = problem.horizon * pointwise.T @ states / len(states)
    np.testing.assert_allclose(by_theorem, evaluation.gradient()[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_surrogate_is_the_expectation_it_claims_to_be(problem):
    """ℓ_t from matrices equals J + E[(f − f_t)·∇_a Q − ‖f − f_t‖²/η] from points; its gradient, its slope."""
    old, new, eta = random_policy(problem, 4, 0.4), random_policy(problem, 5, 0.3), 0.3
    evaluation = problem.evaluate(old)
    surrogate = ValueGradientSurrogate(evaluation, eta)
    states, noises = occupancy_points(evaluation)
    change = new(states, noises) - old(states, noises)
    slope = np.sum(change * evaluation.action_gradient(states, old(states, noises)), axis=-1)
    expectation = problem.horizon * np.mean(slope - np.sum(change**2, axis=-1) / eta)
    assert surrogate.value(new) == pytest.approx(evaluation.value + expectation, rel=1e-9)
    assert surrogate.value(old) == evaluation.value
    rng = np.random.default_rng(6)
    direction = rng.standard_normal(new.gain.shape), rng.standard_normal(new.scale.shape)
    above = surrogate.value(new.moved(direction[0], direction[1]))
    below = surrogate.value(new.moved(-direction[0], -direction[1]))
    along = sum(np.sum(g * d) for g, d in zip(surrogate.gradient(new), direction, strict=True))
    assert (above - below) / 2 == pytest.approx(along, rel=1e-8)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_inner_steps_lead_from_the_value_gradient_to_the_natural_gradient(problem):
    """m = 1 is the plain value gradient, whatever η; m = ∞ is (η/2) ∂J/∂K Σ⁻¹, the maximiser of ℓ_t."""
    policy = random_policy(problem, 7, 0.4)
    evaluation = problem.evaluate(policy)
    gain_gradient, scale_gradient = evaluation.gradient()
    for eta in (0.01, 1.0):
        one = ValueGradientSurrogate(evaluation, eta).ascend(1, 1e-3)
        np.testing.assert_allclose(one.gain, policy.gain + 1e-3 * gain_gradient)
        np.testing.assert_allclose(one.scale, policy.scale + 1e-3 * scale_gradient)
    surrogate = ValueGradientSurrogate(evaluation, 0.01)
    best = surrogate.maximiser()
    natural = np.linalg.solve(evaluation.state_moment, gain_gradient.T).T
    np.testing.assert_allclose(best.gain, policy.gain + 0.005 * natural, rtol=1e-8, atol=1e-10)
    many = surrogate.ascend(20_000, 1 / surrogate.smoothness())
    np.testing.assert_allclose(many.gain, best.gain, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(many.scale, best.scale, rtol=1e-5, atol=1e-7)


problems = st.builds(
    random_lqr,
    st.integers(0, 10_000),
    states=st.integers(1, 4),
    actions=st.integers(1, 3),
    gamma=st.floats(0.3, 0.98),
    radius=st.floats(0.1, 1.0),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems, st.integers(0, 1000), st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from([1.0, 0.3]))
def test_lower_bound_eta_keeps_the_value_above_the_surrogate(problem, seed, scale, fraction):
    """At the guaranteed η (and below) J ≥ ℓ_t at random points of {ℓ_t ≥ J(π_t)}, its boundary included."""
    evaluation = problem.evaluate(random_policy(problem, seed, scale))
    surrogate = ValueGradientSurrogate(evaluation, fraction * lower_bound_eta(evaluation))
    centre = surrogate.maximiser()
    rng = np.random.default_rng(seed)
    for distance in (0.0, 0.5, 1.0, 1.0, 1.0, 1.0):
        step = rng.standard_normal(centre.gain.shape), rng.standard_normal(centre.scale.shape)
        size = surrogate.divergence(evaluation.policy.moved(*step))
        factor = distance * np.sqrt(surrogate.divergence(centre) / size)
        policy = centre.moved(factor * step[0], factor * step[1])
        after = problem.evaluate(policy).value
        assert certified(evaluation, surrogate.value(policy), after).holds


@settings(max_examples=25, deadline=None, derandomize=True)
@given(problems, st.integers(0, 1000), st.sampled_from([0.0, 0.5]), st.sampled_from([1, 4, 40, None]))
def test_improvement_is_guaranteed_for_any_number_of_inner_steps(problem, seed, scale, inner_steps):
    """With the guaranteed η and α = 1/β, J(π_{t+1}) ≥ ℓ_t(π_{t+1}) ≥ J(π_t) in every iteration."""
    method = "closed_form" if inner_steps is None else "surrogate"
    result = value_gradient_ascent(
        problem,
        random_policy(problem, seed, scale),
        method,
        iterations=15,
        eta="lower_bound",
        inner_steps=inner_steps,
    )
    assert not result.diverged
    assert len(result.certificates) == 15
    assert all(certificate.holds for certificate in result.certificates)
    assert (np.diff(result.values) >= -1e-9 * np.abs(result.values[1:])).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(problems, st.integers(0, 1000), st.sampled_from([0.0, 0.5]), st.floats(0.01, 1.0))
def test_exact_maximisation_improves_every_state_up_to_improvement_eta(problem, seed, scale, fraction):
    """For η ≤ 2/λ_max(G_0), held constant, values rise in every state, far beyond the lower bound's η."""
    evaluation = problem.evaluate(random_policy(problem, seed, scale))
    eta = fraction * improvement_eta(evaluation)
    for _ in range(5):
        updated = problem.evaluate(ValueGradientSurrogate(evaluation, eta).maximiser())
        loss = np.linalg.eigvalsh(updated.value_matrix - evaluation.value_matrix)[-1]
        assert loss <= 1e-8 * np.abs(evaluation.value_matrix).max()
        assert updated.value >= evaluation.value - 1e-9 * abs(evaluation.value)
        evaluation = updated


def test_larger_eta_breaks_the_lower_bound_before_it_breaks_the_improvement():
    """The lower bound is a real restriction: at 1/λ the value passes below ℓ_t and still rises above J(π_t);
    beyond 2/λ an update can leave the stable policies, where no ℓ_t is a lower bound."""
    problem = double_integrator()
    evaluation = problem.evaluate(problem.policy(scale=0.5))
    surrogate = ValueGradientSurrogate(evaluation, improvement_eta(evaluation) / 2)
    after = problem.evaluate(surrogate.maximiser()).value
    assert evaluation.value < after < surrogate.value(surrogate.maximiser())
    result = value_gradient_ascent(
        problem, evaluation.policy, "closed_form", iterations=5, eta=100 * improvement_eta(evaluation)
    )
    assert result.diverged
    assert not result.certificates[-1].holds
    assert "left the stable policies" in repr(result)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_ascent_finds_the_riccati_solution(problem):
    """The closed form with the improving η reaches the optimum; a deterministic policy stays so."""
    optimum = problem.optimal()
    np.testing.assert_allclose(optimum.gain_residual, 0, atol=1e-8)
    stochastic = value_gradient_ascent(
        problem, problem.policy(scale=0.5), "closed_form", iterations=600, eta="improvement"
    )
    assert stochastic.values[-1] == pytest.approx(optimum.value, rel=1e-6)
    np.testing.assert_allclose(stochastic.policy.gain, optimum.policy.gain, rtol=1e-3, atol=1e-4)
    plain = value_gradient_ascent(problem, problem.policy(), "value_gradient", iterations=50, alpha=1e-6)
    assert plain.values[-1] > plain.values[0]
    assert not plain.policy.scale.any()
    assert "bound held" not in repr(plain)


def test_optimum_has_the_guaranteed_eta_of_its_curvature():
    """At the optimal deterministic policy nothing but the curvature of Q limits η: 1/λ_max(G)."""
    optimum = random_lqr(3).optimal()
    assert lower_bound_eta(optimum) == pytest.approx(improvement_eta(optimum) / 2, rel=1e-4)


EYE = np.eye(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dynamics": np.ones((2, 3))}, r"shape \(n, n\)"),
        ({"dynamics": [1.0, 2.0]}, r"shape \(n, n\)"),
        ({"dynamics": [[np.nan, 0], [0, 1]]}, "not finite"),
        ({"control": np.ones((3, 1))}, r"shape \(2, p\)"),
        ({"state_cost": [[1, 2], [0, 1]]}, "symmetric"),
        ({"state_cost": np.zeros((2, 2))}, "state_cost must be positive definite"),
        ({"action_cost": -EYE}, "action_cost must be positive definite"),
        ({"action_cost": np.eye(3)}, r"shape \(2, 2\)"),
        ({"gamma": 1.0}, "gamma"),
        ({"gamma": float("nan")}, "gamma"),
        ({"initial_covariance": np.zeros((2, 2))}, "initial_covariance must be positive definite"),
        ({"noise_covariance": -EYE}, "semi-definite"),
    ],
)
def test_bad_problems_are_refused_with_a_reason(change, message):
    """A matrix of the wrong kind raises and is named."""
    arguments = {
        "dynamics": EYE, "control": EYE, "state_cost": EYE, "action_cost": EYE, "gamma": 0.9, **change
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        lqr(**arguments)


@pytest.mark.parametrize(
    ("method", "change", "error", "message"),
    [
        ("newton", {}, ValueError, "closed_form"),
        ("closed_form", {}, TypeError, "needs eta"),
        ("closed_form", {"eta": 0.1, "inner_steps": 3}, TypeError, "takes no inner_steps"),
        ("closed_form", {"eta": 0.1, "alpha": 0.1}, TypeError, "takes no alpha"),
        ("closed_form", {"eta": "big"}, ValueError, "improvement"),
        ("closed_form", {"eta": -0.1}, ValueError, "eta must be positive"),
        ("surrogate", {"eta": 0.1}, TypeError, "needs inner_steps"),
        ("surrogate", {"eta": "improvement", "inner_steps": 2}, ValueError, "lower_bound"),
        ("surrogate", {"eta": 0.1, "inner_steps": 2.5}, TypeError, "integer"),
        ("value_gradient", {"alpha": 0.1, "eta": 0.1}, TypeError, "takes no eta"),
        ("value_gradient", {"alpha": float("nan")}, ValueError, "alpha must be positive"),
        ("value_gradient", {"alpha": 0.1, "iterations": 0}, ValueError, "iterations"),
    ],
)
def test_senseless_ascents_are_refused_with_a_reason(method, change, error, message):
    """A method gets exactly the step sizes it uses."""
    problem = double_integrator()
    with pytest.raises(error, match=message):
        value_gradient_ascent(problem, problem.policy(), method, **{"iterations": 2, **change})


def test_bad_policies_are_refused_with_a_reason():
    """Wrong shapes and entries raise; a destabilising gain raises an error of its own when evaluated."""
    problem = double_integrator()
    with pytest.raises(ValueError, match=r"gain must have shape \(1, 2\)"):
        problem.policy([[1.0]])
    with pytest.raises(ValueError, match=r"scale must have shape \(1, q\)"):
        problem.policy(scale=np.ones((2, 2)))
    with pytest.raises(ValueError, match="not finite"):
        problem.policy([[np.inf, 0.0]])
    with pytest.raises(UnstablePolicyError, match="spectral radius"):
        problem.evaluate(problem.policy([[5.0, 5.0]]))


def test_lqr_needs_neither_torch_nor_stable_baselines():
    """Importing the linear-quadratic problems loads no deep-learning stack."""
    code = (
        "import sys, sppo.exact.linear_quadratic, sppo.exact.value_gradient; "
        "assert not {'torch', 'stable_baselines3'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
