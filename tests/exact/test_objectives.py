"""Objectives, gradients, curvatures and directions against finite differences and brute force."""

import math

import numpy as np
import pytest

from sppo.exact import objectives as obj

DIVERGENT = ("smdpo", "mdpo", "trpo")


def _numerical_gradient(function, x, step=1e-6):
    gradient = np.empty_like(x)
    for index in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[index] = step
        gradient[index] = (function(x + shift) - function(x - shift)) / (2 * step)
    return gradient


@pytest.mark.parametrize("name", obj.OBJECTIVES)
def test_gain_gradient_matches_finite_differences(problem, name):
    _, evaluation, logits = problem
    numerical = _numerical_gradient(lambda x: obj.gain(name, x, evaluation, epsilon=0.3), logits)
    assert obj.gain_gradient(name, logits, evaluation, epsilon=0.3) == pytest.approx(numerical, abs=1e-8)


@pytest.mark.parametrize("name", DIVERGENT)
def test_divergence_gradient_and_curvature_match_finite_differences(problem, name):
    _, evaluation, logits = problem
    numerical = _numerical_gradient(lambda x: obj.divergence(name, x, evaluation), logits)
    assert obj.divergence_gradient(name, logits, evaluation) == pytest.approx(numerical, abs=1e-8)
    blocks = obj.curvature(name, logits, evaluation)
    for s, a in np.ndindex(logits.shape):
        row = _numerical_gradient(
            lambda x, s=s, a=a: obj.divergence_gradient(name, x, evaluation)[s, a], logits
        )
        assert blocks[s, a] == pytest.approx(row[s], abs=1e-8)
        row[s] = 0.0
        assert row == pytest.approx(np.zeros_like(row), abs=1e-8)


def test_values_match_sums_written_out(problem):
    """One term at a time, with math.log, from the table of Appendix E."""
    _, evaluation, logits = problem
    states, actions = logits.shape
    expected = dict.fromkeys(("smdpo", "mdpo", "trpo", "ppo", "forward", "reverse"), 0.0)
    for s in range(states):
        weights = [math.exp(z) for z in logits[s]]
        for a in range(actions):
            p, p_t = weights[a] / sum(weights), evaluation.policy[s, a]
            d, advantage, ratio = evaluation.occupancy[s], evaluation.advantage[s, a], p / p_t
            expected["smdpo"] += d * p_t * advantage * math.log(ratio)
            expected["mdpo"] += d * p * advantage
            expected["trpo"] += d * p * advantage
            expected["ppo"] += d * p_t * min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
            expected["forward"] += d * p_t * math.log(1 / ratio)
            expected["reverse"] += d * p * math.log(ratio)
    for name in obj.OBJECTIVES:
        assert obj.gain(name, logits, evaluation, epsilon=0.2) == pytest.approx(expected[name], abs=1e-13)
    for name, kind in (("smdpo", "forward"), ("trpo", "forward"), ("mdpo", "reverse")):
        assert obj.divergence(name, logits, evaluation) == pytest.approx(expected[kind], abs=1e-13)


@pytest.mark.parametrize("name", DIVERGENT)
def test_trust_region_direction_is_the_pseudo_inverse(problem, name):
    _, evaluation, logits = problem
    size = logits.size
    full = np.zeros((size, size))
    actions = logits.shape[1]
    for s, block in enumerate(obj.curvature(name, logits, evaluation)):
        full[s * actions : (s + 1) * actions, s * actions : (s + 1) * actions] = block
    expected = np.linalg.pinv(full) @ obj.gain_gradient(name, logits, evaluation).ravel()
    assert obj.trust_region_direction(name, logits, evaluation).ravel() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("name", ["smdpo", "mdpo"])
@pytest.mark.parametrize("eta", [0.1, 3.0])
def test_closed_form_is_the_maximiser(problem, name, eta):
    """No policy near or far has a higher regularised objective; 1 + ηA < 0 occurs at the larger η."""
    _, evaluation, _ = problem
    if name == "smdpo" and eta > 1:
        assert (1 + eta * evaluation.advantage).min() < 0
    best = obj.closed_form(name, evaluation, eta)

    def score(policy):
        logits = np.log(np.maximum(policy, 1e-12))
        return obj.gain(name, logits, evaluation) - obj.divergence(name, logits, evaluation) / eta

    if name == "smdpo" and eta > 1:
        # dropping an action sends the objective to infinity; compare on the support it keeps
        weights = evaluation.policy * (evaluation.advantage + 1 / eta)
        kept = best > 0
        assert np.array_equal(kept, weights > 0)
        assert best == pytest.approx(
            np.where(kept, weights, 0) / np.where(kept, weights, 0).sum(1, keepdims=True)
        )
        return
    rng = np.random.default_rng(1)
    for scale in (1e-3, 1e-1, 1.0):
        for _ in range(20):
            other = rng.dirichlet(np.ones(3), size=7)
            assert score(best) >= score((1 - scale) * best + scale * other) - 1e-12


def test_only_some_objectives_have_a_divergence_or_a_closed_form(problem):
    _, evaluation, logits = problem
    with pytest.raises(ValueError, match="ppo has no divergence"):
        obj.divergence("ppo", logits, evaluation)
    with pytest.raises(ValueError, match="no closed form"):
        obj.closed_form("trpo", evaluation, 1.0)
    with pytest.raises(ValueError, match="must be one of"):
        obj.gain("a2c", logits, evaluation)
