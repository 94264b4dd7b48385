"""The general framework contains the named objectives, and differentiates any parameterisation."""

import numpy as np
import pytest
from scipy.special import softmax

from sppo.exact import FMA, LinearSoftmax, MirrorMap, TabularSoftmax, objectives, random_mdp, solve
from sppo.exact.framework import EUCLIDEAN, LOG_SUM_EXP, NEGATIVE_ENTROPY

PAIRS = [
    ("direct", "negative_entropy"),
    ("direct", "euclidean"),
    ("softmax", "log_sum_exp"),
    ("softmax", "euclidean"),
]


def _kl(p, q):
    return np.sum(p * np.log(p / q), axis=1)


def test_bregman_divergences_are_the_known_ones():
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((5, 4)), rng.standard_normal((5, 4))
    p, q = softmax(z, axis=1), softmax(y, axis=1)
    assert EUCLIDEAN.bregman(z, y) == pytest.approx(0.5 * np.sum((z - y) ** 2, axis=1))
    assert NEGATIVE_ENTROPY.bregman(p, q) == pytest.approx(_kl(p, q), abs=1e-14)
    # the direction turns round: the forward KL of the softmax policies
    assert LOG_SUM_EXP.bregman(z, y) == pytest.approx(_kl(q, p), abs=1e-14)


@pytest.mark.parametrize(("representation", "mirror_map"), PAIRS)
@pytest.mark.parametrize("parameterization", ["tabular", "linear"])
def test_surrogate_gradient_matches_finite_differences(representation, mirror_map, parameterization):
    mdp = random_mdp(5, 3, seed=1)
    rng = np.random.default_rng(2)
    if parameterization == "tabular":
        parameters = TabularSoftmax(5, 3)
    else:
        parameters = LinearSoftmax(rng.standard_normal((5, 3, 4)))
    theta_t = rng.standard_normal(parameters.initial().shape)
    surrogate = FMA(representation, mirror_map, parameters).surrogate(mdp, theta_t, eta=0.7)
    assert surrogate.value(theta_t) == pytest.approx(
        mdp.evaluate(softmax(parameters.logits(theta_t), axis=1)).value
    )
    theta = theta_t + 0.3 * rng.standard_normal(theta_t.shape)
    for _ in range(4):
        direction = rng.standard_normal(theta.shape)
        slope = (surrogate.value(theta + 1e-6 * direction) - surrogate.value(theta - 1e-6 * direction)) / 2e-6
        assert np.sum(surrogate.gradient(theta) * direction) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "representation", "mirror_map"),
    [
        ("smdpo", "softmax", "log_sum_exp"),
        ("mdpo", "direct", "negative_entropy"),
    ],
)
def test_named_objectives_are_members_of_the_family(problem, name, representation, mirror_map):
    """J - C/η = (1 - γ)(ℓ_t - J(π_t)), in value and gradient."""
    mdp, evaluation, logits = problem
    surrogate = FMA(representation, mirror_map).surrogate(mdp, np.log(evaluation.policy), 0.4, evaluation)
    value = objectives.gain(name, logits, evaluation) - objectives.divergence(name, logits, evaluation) / 0.4
    assert value == pytest.approx((1 - mdp.gamma) * (surrogate.value(logits) - evaluation.value), abs=1e-12)
    gradient = (
        objectives.gain_gradient(name, logits, evaluation)
        - objectives.divergence_gradient(name, logits, evaluation) / 0.4
    )
    assert gradient == pytest.approx((1 - mdp.gamma) * surrogate.gradient(logits), abs=1e-12)


def test_trpo_and_ppo_share_the_direct_representations_linear_term(problem):
    mdp, evaluation, logits = problem
    linear = FMA("direct", "negative_entropy").surrogate(mdp, np.log(evaluation.policy), np.inf, evaluation)
    at_start = np.log(evaluation.policy)
    expected = (1 - mdp.gamma) * linear.gradient(logits)
    assert objectives.gain_gradient("trpo", logits, evaluation) == pytest.approx(expected, abs=1e-13)
    expected = (1 - mdp.gamma) * linear.gradient(at_start)
    assert objectives.gain_gradient("ppo", at_start, evaluation) == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize(
    ("name", "representation", "mirror_map"),
    [
        ("smdpo", "softmax", "log_sum_exp"),
        ("mdpo", "direct", "negative_entropy"),
    ],
)
def test_algorithm_1_in_general_gives_the_compiled_solvers_numbers(cliff, name, representation, mirror_map):
    settings = {"iterations": 15, "inner_steps": 7, "eta": 0.02, "alpha": 0.3}
    general = solve(cliff, FMA(representation, mirror_map), "fixed", **settings)
    fast = solve(cliff, name, "fixed", **settings)
    assert general.values == pytest.approx(fast.values, abs=1e-10)
    assert general.policy == pytest.approx(fast.policy, abs=1e-10)


def test_softmax_with_euclidean_map_and_one_step_is_the_policy_gradient(cliff):
    general = solve(cliff, FMA("softmax", "euclidean"), "fixed", iterations=15, eta=0.02, alpha=0.3)
    gradient = solve(cliff, "pg", "fixed", iterations=15, alpha=0.3)
    assert general.values == pytest.approx(gradient.values, abs=1e-10)


def test_users_own_mirror_map():
    """φ(x) = Σ cosh x, a map that is not built in: its surrogate ascends and improves the policy."""
    cosh = MirrorMap("cosh", lambda x: np.cosh(x).sum(axis=1), np.sinh)
    mdp = random_mdp(6, 3, seed=7)
    result = solve(mdp, FMA("softmax", cosh), "fixed", iterations=50, inner_steps=5, eta=0.1, alpha=0.05)
    assert np.all(np.diff(result.values) > 0)


def test_linear_parameterisation_improves_and_stays_linear():
    mdp = random_mdp(8, 3, seed=9)
    features = np.random.default_rng(1).standard_normal((8, 3, 5))
    family = FMA("softmax", "log_sum_exp", LinearSoftmax(features))
    result = solve(mdp, family, "fixed", iterations=40, inner_steps=10, eta=0.1, alpha=0.05)
    assert np.all(np.diff(result.values) >= -1e-12)
    assert result.theta.shape == (5,)
    assert result.logits == pytest.approx(features @ result.theta)


def test_bad_members_of_the_family_are_refused(cliff):
    with pytest.raises(ValueError, match="representation must be one of"):
        FMA("natural", "euclidean")
    with pytest.raises(ValueError, match="mirror_map must be one of"):
        FMA("direct", "entropy")
    with pytest.raises(ValueError, match="probabilities"):
        FMA("softmax", "negative_entropy")
    with pytest.raises(ValueError, match="fixed only"):
        solve(cliff, FMA("direct", "euclidean"), "line_search", iterations=1, eta=1.0)
    with pytest.raises(TypeError, match="needs alpha"):
        solve(cliff, FMA("direct", "euclidean"), "fixed", iterations=1, eta=1.0)
    with pytest.raises(ValueError, match=r"shape \(S, A, k\)"):
        LinearSoftmax(np.zeros((3, 2)))
