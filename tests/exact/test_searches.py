"""Searches that skip trials accept the steps that backtracking trial by trial accepts."""

import numpy as np
import pytest

from sppo.exact import cliff_world, objectives, random_mdp, solve

NAMES = ("smdpo", "mdpo", "trpo")


def _problems():
    return (cliff_world(), random_mdp(9, 3, seed=2, reward_range=(-20.0, 20.0), gamma=0.5))


def _armijo_steps(name, mdp, eta, armijo, inner_steps):
    """Step sizes of one outer iteration from the uniform policy, every trial made."""
    theta = np.zeros((mdp.n_states, mdp.n_actions))
    start = mdp.evaluate(np.full(theta.shape, 1.0 / mdp.n_actions))

    def score(logits):
        return objectives.gain(name, logits, start) - objectives.divergence(name, logits, start) / eta

    alpha, steps = 5.0, []
    for _ in range(inner_steps):
        gradient = objectives.gain_gradient(name, theta, start)
        gradient = gradient - objectives.divergence_gradient(name, theta, start) / eta
        alpha *= 2.0
        while score(theta + alpha * gradient) < score(theta) + armijo * alpha * (gradient**2).sum():
            alpha *= 0.9
        theta = theta + alpha * gradient
        steps.append(alpha)
    return np.array(steps)


def _trust_region_steps(name, mdp, delta, inner_steps):
    theta = np.zeros((mdp.n_states, mdp.n_actions))
    start = mdp.evaluate(np.full(theta.shape, 1.0 / mdp.n_actions))
    steps = []
    for _ in range(inner_steps):
        direction = objectives.trust_region_direction(name, theta, start)
        slope = (objectives.gain_gradient(name, theta, start) * direction).sum()
        here = objectives.gain(name, theta, start)
        alpha = min(np.sqrt(2 * delta / slope), 1e5) if slope > 0.0 else 1e5
        while (
            objectives.gain(name, theta + alpha * direction, start) < here
            or objectives.divergence(name, theta + alpha * direction, start) > delta
        ):
            alpha *= 0.9
        theta = theta + alpha * direction
        steps.append(alpha)
    return np.array(steps)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("eta", [0.003, 0.02, 0.3, 3.0, 30.0])
@pytest.mark.parametrize("armijo", [0.05, 0.6])
def test_armijo_search_accepts_the_step_of_plain_backtracking(name, eta, armijo):
    """From the regime where ℓ is concave to the one where it is not."""
    for mdp in _problems():
        result = solve(mdp, name, "line_search", iterations=1, inner_steps=6, eta=eta, armijo=armijo)
        assert result.step_sizes[0] == pytest.approx(_armijo_steps(name, mdp, eta, armijo, 6), rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.1])
def test_trust_region_accepts_the_step_of_plain_backtracking(name, delta):
    for mdp in _problems():
        result = solve(mdp, name, "constrained", iterations=1, inner_steps=4, delta=delta)
        assert result.step_sizes[0] == pytest.approx(_trust_region_steps(name, mdp, delta, 4), rel=1e-6)
