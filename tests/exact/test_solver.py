"""solve() computes what the paper's pseudo-code says, for every combination, and refuses the others."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.special import softmax

from sppo.exact import deep_sea_treasure, objectives, random_mdp, solve
from sppo.exact import solver as solver_module

REGULARIZED = ("smdpo", "mdpo", "trpo")


@pytest.mark.parametrize("name", [*REGULARIZED, "ppo"])
@pytest.mark.parametrize("inner_steps", [1, 20])
def test_fixed_step_equals_the_plain_implementation(cliff, plain, name, inner_steps):
    proximity = {"epsilon": 0.2} if name == "ppo" else {"eta": 0.03}
    expected = plain.fixed(plain.Dense(cliff), name, 60, inner_steps, 0.25, **proximity)
    result = solve(cliff, name, "fixed", iterations=60, inner_steps=inner_steps, alpha=0.25, **proximity)
    assert result.values == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", REGULARIZED)
@pytest.mark.parametrize("test", ["regularized", "published"])
def test_line_search_equals_the_plain_implementation(cliff, plain, name, test):
    # trial steps far out underflow in the plain form, which then rejects them
    with np.errstate(all="ignore"):
        expected = plain.line_search(
            plain.Dense(cliff), name, 12, 8, 0.005, 0.3, published=test == "published"
        )
    result = solve(
        cliff, name, "line_search", iterations=12, inner_steps=8, eta=0.005, armijo=0.3, armijo_test=test
    )
    assert result.values == pytest.approx(expected, abs=1e-10)
    assert result.step_sizes.shape == (12, 8)


def test_published_line_search_gives_the_published_values(cliff):
    """J of the published run; without its clipped logarithms the search jumps to J = 0 at once and stays."""
    settings = {"eta": 0.0625, "armijo": 0.5, "armijo_test": "published"}
    values = solve(cliff, "smdpo", "line_search", iterations=2000, inner_steps=10, **settings).values
    published = {1: -1.52, 2: -0.227, 5: -0.102, 10: -0.0536, 1000: 0.0085, 1999: 0.3475}
    for t, value in published.items():
        assert values[t] == pytest.approx(value, rel=5e-3)


@pytest.mark.parametrize("name", REGULARIZED)
def test_trust_region_equals_the_plain_implementation(cliff, plain, name):
    """Up to where a pseudo-inverse of singular values near 1e-15 starts to depend on its rounding."""
    expected = plain.constrained(plain.Dense(cliff), name, 12, 3, 1e-3)
    result = solve(cliff, name, "constrained", iterations=12, inner_steps=3, delta=1e-3)
    assert result.values == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", ["smdpo", "mdpo"])
def test_closed_form_equals_the_plain_implementation(cliff, plain, name):
    expected = plain.closed_form(plain.Dense(cliff), name, 200, 0.03)
    assert solve(cliff, name, "closed_form", iterations=200, eta=0.03).values == pytest.approx(
        expected, abs=1e-10
    )


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    [
        ("smdpo", "fixed", {"eta": 0.5, "alpha": 0.2}),
        ("smdpo", "fixed", {"eta": "per-state", "alpha": "theory"}),
        ("ppo", "fixed", {"epsilon": 0.2, "alpha": 0.5}),
        ("mdpo", "line_search", {"eta": 0.5, "armijo": 0.1}),
        ("trpo", "constrained", {"delta": 0.01}),
        ("smdpo", "closed_form", {"eta": "per-state"}),
        ("cpi", "closed_form", {"alpha": "theory"}),
    ],
)
def test_large_problems_take_the_same_steps_as_small_ones(monkeypatch, name, method, settings):
    """Above DENSE_LIMIT the outer loop runs in Python with sparse solves; the numbers are the same."""
    mdp = random_mdp(19, 3, successors=4, gamma=0.9, reward_range=(-1.0, 1.0), seed=2)
    steps = 1 if method == "closed_form" else 5
    small = solve(mdp, name, method, iterations=10, inner_steps=steps, **settings)
    monkeypatch.setattr(solver_module, "DENSE_LIMIT", 0)
    large = solve(mdp, name, method, iterations=10, inner_steps=steps, **settings)
    assert large.values == pytest.approx(small.values, abs=1e-10)
    assert large.policy == pytest.approx(small.policy, abs=1e-9)
    assert large.step_sizes == pytest.approx(small.step_sizes, rel=1e-6)


def test_values_are_those_before_each_update(cliff):
    result = solve(cliff, "mdpo", "closed_form", iterations=3, eta=0.5)
    policy = np.full((21, 4), 0.25)
    for value in result.values:
        evaluation = cliff.evaluate(policy)
        assert value == pytest.approx(evaluation.value, abs=1e-12)
        policy = objectives.closed_form("mdpo", evaluation, 0.5)
    assert result.value == pytest.approx(cliff.evaluate(policy).value, abs=1e-12)
    assert result.policy == pytest.approx(policy, abs=1e-13)
    assert softmax(result.logits, axis=1) == pytest.approx(result.policy, abs=1e-15)


def test_mdpo_rests_on_the_three_plateaus(cliff):
    """0.9¹⁰, 0.9⁸ and 0.9⁶, one after the other, with η = 1."""
    values = solve(cliff, "mdpo", "closed_form", iterations=2000, eta=1.0).values
    for power in (10, 8, 6):
        assert np.sum(np.abs(values - 0.9**power) < 2e-3) > 10
    assert values[-1] == pytest.approx(0.9**6, abs=1e-9)


def test_per_state_closed_form_is_proportional_to_the_shifted_action_value(cliff):
    policy = np.random.default_rng(0).dirichlet(np.ones(4), size=21)
    result = solve(
        cliff, "smdpo", "closed_form", iterations=1, eta="per-state", initial_logits=np.log(policy)
    )
    weights = policy * (cliff.evaluate(policy).q + 100 / (1 - 0.9))
    assert result.policy == pytest.approx(weights / weights.sum(axis=1, keepdims=True), abs=1e-13)


def test_closed_form_drops_actions_or_floors_them(cliff):
    exact = solve(cliff, "smdpo", "closed_form", iterations=5, eta=0.1)
    floored = solve(cliff, "smdpo", "closed_form", iterations=5, eta=0.1, floor=1e-8)
    assert exact.policy[5].min() == 0.0
    assert 0.0 < floored.policy[5].min() < 1e-6
    assert np.isneginf(exact.logits).any()
    assert np.all(np.isfinite(floored.logits))


def test_step_size_can_differ_by_state(cliff):
    same = solve(cliff, "smdpo", "fixed", iterations=5, inner_steps=3, eta=np.full(21, 0.02), alpha=0.1)
    assert same.values == pytest.approx(
        solve(cliff, "smdpo", "fixed", iterations=5, inner_steps=3, eta=0.02, alpha=0.1).values, abs=1e-12
    )


def test_natural_gradient_is_the_direct_representations_closed_form(cliff):
    """θ + η F⁺∇J with the full Fisher matrix (normalised occupancy, one common factor) moves as MDPO does."""
    eta, theta = 0.3, np.zeros((21, 4))
    values = []
    for _ in range(4):
        evaluation = cliff.evaluate(softmax(theta, axis=1))
        values.append(evaluation.value)
        fisher = np.zeros((84, 84))
        for s, block in enumerate(objectives.curvature("trpo", theta, evaluation)):
            fisher[4 * s : 4 * s + 4, 4 * s : 4 * s + 4] = block
        gradient = (evaluation.occupancy[:, None] * evaluation.policy * evaluation.advantage).ravel()
        theta = theta + eta * (np.linalg.pinv(fisher, rcond=1e-12) @ gradient).reshape(21, 4)
    for name in ("npg", "mdpo"):
        assert solve(cliff, name, "closed_form", iterations=4, eta=eta).values == pytest.approx(
            values, abs=1e-9
        )


def test_conservative_policy_iteration_mixes_and_improves(cliff):
    result = solve(cliff, "cpi", "closed_form", iterations=1, alpha=0.3)
    evaluation = cliff.evaluate(np.full((21, 4), 0.25))
    greedy = np.eye(4)[evaluation.advantage.argmax(axis=1)]
    assert result.policy == pytest.approx(0.7 * 0.25 + 0.3 * greedy, abs=1e-14)
    theory = solve(cliff, "cpi", "closed_form", iterations=200, alpha="theory")
    surplus = evaluation.occupancy @ evaluation.advantage.max(axis=1)
    assert theory.step_sizes[0, 0] == pytest.approx(0.1**2 * surplus / (4 * 101))
    # Kakade and Langford: (1 - γ)J improves by at least ((1 - γ) surplus)²/(8R)
    assert (1 - 0.9) * (theory.values[1] - theory.values[0]) >= (0.1 * surplus) ** 2 / (8 * 101)
    assert np.all(np.diff(theory.values) > 0)


def test_policy_gradient_follows_the_gradient_of_the_value(cliff):
    """One small step changes J by α‖(1 - γ)∇J‖²/(1 - γ), the derivative along it."""
    result = solve(cliff, "pg", "fixed", iterations=2, alpha=1e-6)
    shift = result.logits / 2e-6
    logits = 1e-4 * shift / np.linalg.norm(shift)
    numerical = (
        cliff.evaluate(softmax(logits, axis=1)).value - cliff.evaluate(softmax(-logits, axis=1)).value
    ) / 2e-4
    assert np.linalg.norm(shift) == pytest.approx((1 - 0.9) * numerical, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    [
        ("smdpo", "fixed", {"eta": 0.5, "alpha": 8.0}),
        ("mdpo", "fixed", {"eta": 0.5, "alpha": 8.0}),
        ("ppo", "fixed", {"epsilon": 0.9, "alpha": 8.0}),
    ],
)
def test_long_runs_stay_finite(cliff, name, method, settings):
    """2000 iterations of 1000 steps with the largest step size; a warning would be an error here."""
    result = solve(cliff, name, method, iterations=2000, inner_steps=1000, **settings)
    assert np.all(np.isfinite(result.values))
    assert np.all(np.isfinite(result.logits))
    assert result.policy.sum(axis=1) == pytest.approx(np.ones(21))


@pytest.mark.parametrize("name", REGULARIZED)
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("line_search", {"eta": 0.5, "armijo": 0.0}),
        ("line_search", {"eta": 0.5, "armijo": 0.99, "armijo_test": "published"}),
        ("constrained", {"delta": 0.25}),
        ("constrained", {"delta": 0.25, "cutoff": 0.0}),
    ],
)
def test_aggressive_searches_stay_finite(cliff, name, method, settings):
    result = solve(cliff, name, method, iterations=150, inner_steps=30, **settings)
    assert np.all(np.isfinite(result.values))
    assert np.all(np.isfinite(result.logits))


def test_closed_forms_stay_finite_for_long(cliff):
    for name, eta in (("smdpo", 5.0), ("mdpo", 50.0)):
        result = solve(cliff, name, "closed_form", iterations=20_000, eta=eta)
        assert np.all(np.isfinite(result.values))
        assert not np.isnan(result.logits).any()


@pytest.mark.parametrize("name", REGULARIZED)
def test_every_trust_region_reaches_the_optimum(cliff, name):
    """The paper's third row: all constrained variants are optimal on CliffWorld."""
    result = solve(cliff, name, "constrained", iterations=400, inner_steps=10, delta=2**-10)
    assert result.value == pytest.approx(0.9**6, abs=1e-3)


def test_trust_region_of_smdpo_needs_the_cutoff(cliff):
    """Without it the bad actions' logits run away within one iteration, and the policy freezes."""
    result = solve(cliff, "smdpo", "constrained", iterations=400, inner_steps=10, delta=2**-10, cutoff=0.0)
    assert result.value < 0.3


def test_deep_sea_treasure_is_solved_by_all():
    mdp = deep_sea_treasure()
    best = mdp.optimal().value
    for name, method, settings in (
        ("smdpo", "closed_form", {"eta": 1.0}),
        ("mdpo", "fixed", {"eta": 0.5, "alpha": 0.25, "inner_steps": 1000}),
        ("trpo", "constrained", {"delta": 0.01, "inner_steps": 10}),
        ("ppo", "fixed", {"epsilon": 0.3, "alpha": 0.25, "inner_steps": 1000}),
    ):
        assert solve(mdp, name, method, iterations=200, **settings).value == pytest.approx(best, abs=5e-3)


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        (("a2c", "fixed"), {}, ValueError, "objective must be one of"),
        (("smdpo", "adam"), {}, ValueError, "method must be one of"),
        (("trpo", "closed_form"), {"eta": 1.0}, ValueError, "non-linear system"),
        (("ppo", "constrained"), {"delta": 1.0}, ValueError, "no divergence"),
        (("ppo", "line_search"), {"eta": 1.0}, ValueError, "no divergence"),
        (("npg", "fixed"), {"eta": 1.0}, ValueError, "closed form of the direct"),
        (("cpi", "line_search"), {"alpha": 1.0}, ValueError, "closed_form only"),
        (("smdpo", "fixed"), {"eta": 1.0}, TypeError, "needs alpha"),
        (("smdpo", "fixed"), {"eta": 1.0, "alpha": 1.0, "delta": 1.0}, TypeError, "takes no delta"),
        (("ppo", "fixed"), {"alpha": 1.0, "epsilon": 0.1, "eta": 1.0}, TypeError, "takes no eta"),
        (("mdpo", "closed_form"), {"eta": "per-state"}, ValueError, "softmax representation"),
        (("smdpo", "closed_form"), {"eta": "adaptive"}, ValueError, "per-state"),
        (("smdpo", "closed_form"), {"eta": -1.0}, ValueError, "eta must be positive"),
        (("mdpo", "closed_form"), {"eta": np.inf}, ValueError, "eta must be finite"),
        (("smdpo", "closed_form"), {"eta": np.nan}, ValueError, "eta must be positive"),
        (("smdpo", "closed_form"), {"eta": np.ones(3)}, ValueError, "one entry per state"),
        (("mdpo", "fixed"), {"eta": 1.0, "alpha": "theory"}, ValueError, "alpha must be"),
        (("mdpo", "fixed"), {"eta": 1.0, "alpha": 0.0}, ValueError, "alpha must be positive"),
        (("ppo", "fixed"), {"alpha": 1.0, "epsilon": 0.0}, ValueError, "epsilon must be positive"),
        (("trpo", "constrained"), {"delta": -1.0}, ValueError, "delta must be positive"),
        (("trpo", "line_search"), {"eta": 1.0, "armijo": 1.0}, ValueError, "armijo must be"),
        (("trpo", "line_search"), {"eta": 1.0, "armijo_test": "wrong"}, ValueError, "armijo_test"),
        (("trpo", "line_search"), {"eta": 1.0, "decay": 1.0}, ValueError, "decay"),
        (("cpi", "closed_form"), {"alpha": 1.5}, ValueError, "at most 1"),
        (("smdpo", "closed_form"), {"eta": 1.0, "inner_steps": 5}, ValueError, "inner_steps must be 1"),
        (("smdpo", "closed_form"), {"eta": 1.0, "iterations": 0}, ValueError, "iterations must be"),
        (
            ("smdpo", "fixed"),
            {"eta": 1.0, "alpha": 1.0, "inner_steps": 2.5},
            TypeError,
            "inner_steps must be",
        ),
        (("ppo", "fixed"), {"alpha": 1.0, "epsilon": 0.1, "certify": True}, ValueError, "certify"),
        (("pg", "fixed"), {"alpha": 1.0, "initial_logits": np.zeros((2, 2))}, ValueError, "initial_logits"),
        (
            ("pg", "fixed"),
            {"alpha": 1.0, "initial_logits": np.full((21, 4), -np.inf)},
            ValueError,
            "finite logit",
        ),
    ],
)
def test_what_makes_no_sense_raises_and_says_why(cliff, arguments, settings, error, message):
    with pytest.raises(error, match=message):
        solve(cliff, *arguments, **{"iterations": 2, **settings})


def test_result_reads_well(cliff):
    result = solve(cliff, "smdpo", "fixed", iterations=5, inner_steps=2, eta=0.02, alpha=0.1)
    assert repr(result).startswith("Result(smdpo, fixed: J -112.121 -> ")
    assert "eta=0.02" in repr(result)
    assert "inner_steps=2" in repr(result)


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    [
        ("smdpo", "fixed", {"eta": np.inf, "alpha": 0.5}),
        ("smdpo", "closed_form", {"eta": np.inf}),
        ("smdpo", "closed_form", {"eta": "per-state"}),
        ("smdpo", "fixed", {"eta": "per-state", "alpha": "theory"}),
        ("mdpo", "line_search", {"eta": 0.1}),
        ("trpo", "constrained", {"delta": 0.1}),
        ("cpi", "closed_form", {"alpha": "theory"}),
    ],
)
def test_problems_without_a_choice_or_without_a_reward_are_left_alone(name, method, settings):
    """One action only, or rewards all equal: no advantage anywhere, so no update and no division by zero."""
    for mdp in (random_mdp(4, 1, seed=0), random_mdp(4, 3, reward_range=(2.0, 2.0), seed=0)):
        result = solve(mdp, name, method, iterations=5, **settings)
        assert result.policy == pytest.approx(np.full(mdp.reward.shape, 1 / mdp.n_actions), abs=1e-9)
        assert np.ptp(result.values) < 1e-9


def test_neither_torch_nor_stable_baselines_is_imported():
    code = (
        "import sys, sppo.exact, sppo.figures.command; "
        "assert not {'torch', 'stable_baselines3', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
