"""The theory, checked on random problems: bounds, monotone improvement, and where a printed one fails."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sppo.exact import TabularMDP, cliff_world, deep_sea_treasure, random_mdp, solve, theory

_SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def problems(draw):
    """A random MDP with two random policies, some nearly deterministic, some far apart."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    states, actions = draw(st.integers(1, 6)), draw(st.integers(2, 4))
    low = draw(st.floats(-10, 10))
    mdp = random_mdp(
        states,
        actions,
        successors=draw(st.integers(1, states)),
        gamma=draw(st.sampled_from([0.0, 0.3, 0.9, 0.97])),
        reward_range=(low, low + draw(st.floats(0.1, 20))),
        seed=rng,
    )
    policies = [
        rng.dirichlet(np.full(actions, draw(st.sampled_from([0.2, 1.0, 5.0]))), size=states) for _ in range(2)
    ]
    # away from zero: the logarithms of exact zeros are tested elsewhere
    return mdp, *[(p + 1e-9) / (1 + actions * 1e-9) for p in policies]


@_SETTINGS
@given(problems())
def test_softmax_lower_bounds_hold_for_every_pair_of_policies(problem):
    mdp, old, new = problem
    value = mdp.evaluate(new).value
    scale = 1e-9 * max(1.0, *map(abs, mdp.reward_range)) / (1 - mdp.gamma)
    per_state = theory.lower_bound(mdp, old, new, eta="per-state")
    uniform = theory.lower_bound(mdp, old, new, eta=theory.softmax_step_size(mdp))
    assert value >= per_state - scale
    # the per-state bound is the tighter one
    assert per_state >= uniform - scale
    assert theory.lower_bound(mdp, old, old, eta="per-state") == pytest.approx(mdp.evaluate(old).value)


@_SETTINGS
@given(problems())
def test_per_state_step_size_is_never_below_the_uniform_one(problem):
    mdp, old, _ = problem
    assert np.all(
        theory.per_state_step_size(mdp, mdp.evaluate(old)) >= theory.softmax_step_size(mdp) * (1 - 1e-9)
    )


@_SETTINGS
@given(problems())
def test_direct_lower_bound_holds_with_the_least_occupancy(problem):
    mdp, old, new = problem
    evaluation = mdp.evaluate(old)
    eta = theory.direct_step_size(mdp, evaluation)
    if not 0.0 < eta < np.inf:
        return
    bound = theory.lower_bound(mdp, evaluation, new, objective="mdpo", eta=eta)
    assert mdp.evaluate(new).value >= bound - 1e-9 * max(1.0, abs(bound))


def _two_decisions(gamma):
    """State 0: to state 1, or end. State 1: reward 1, or 0, and end."""
    transition = np.zeros((3, 2, 3))
    transition[0, 0, 1] = transition[0, 1, 2] = 1.0
    transition[1:, :, 2] = 1.0
    reward = np.zeros((3, 2))
    reward[1, 0] = 1.0
    return TabularMDP(transition, reward, [1.0, 0.0, 0.0], gamma)


def test_printed_direct_step_size_is_not_a_lower_bound():
    """Going to state 1 more often while doing worse there: J < ℓ_t at the printed η, for small γ.

    The occupancy-weighted divergence charges state 1 only γx, but the unweighted smoothness behind the
    printed constant assumes a charge of 1.
    """
    mdp = _two_decisions(gamma=0.002)
    old = np.array([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    new = np.array([[0.505, 0.495], [0.4, 0.6], [0.5, 0.5]])
    certificate = theory.certificate(mdp, old, new, objective="mdpo", eta=theory.direct_step_size(mdp))
    assert certificate.new_value < certificate.bound - 1e-7
    evaluation = mdp.evaluate(old)
    # the terminal state cannot be unvisited here, so the least occupancy is positive
    repaired = theory.direct_step_size(mdp, evaluation)
    assert 0 < repaired < theory.direct_step_size(mdp)
    assert theory.certificate(mdp, old, new, objective="mdpo", eta=repaired).is_lower_bound


@_SETTINGS
@given(problems(), st.integers(1, 12), st.sampled_from(["per-state", "uniform"]))
def test_improvement_is_monotone_for_any_number_of_inner_steps(problem, inner_steps, kind):
    """α = 1/β: J(π_{t+1}) ≥ ℓ_t(θ_{t+1}) ≥ J(π_t), whatever m."""
    mdp, old, _ = problem
    eta = "per-state" if kind == "per-state" else theory.softmax_step_size(mdp)
    result = solve(
        mdp,
        "smdpo",
        "fixed",
        iterations=6,
        inner_steps=inner_steps,
        eta=eta,
        alpha="theory",
        initial_logits=np.log(old),
        certify=True,
    )
    assert result.certified
    first = mdp.evaluate(old)
    assert result.step_sizes[0, 0] == pytest.approx(1 / theory.smoothness(mdp, first, eta), rel=1e-6)


@_SETTINGS
@given(problems())
def test_closed_form_with_theoretical_steps_is_certified(problem):
    mdp, old, _ = problem
    for eta in ("per-state", theory.softmax_step_size(mdp)):
        result = solve(
            mdp, "smdpo", "closed_form", iterations=5, eta=eta, initial_logits=np.log(old), certify=True
        )
        assert result.certified


def test_smoothness_bounds_the_hessian():
    """The eigenvalues of diag p - ppᵀ are at most ½, attained by two equally likely actions."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = rng.dirichlet(np.full(4, 0.3))
        assert np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)).max() <= 0.5 + 1e-12
    p = np.array([0.5, 0.5, 0.0])
    assert np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)).max() == pytest.approx(0.5)


def test_the_papers_step_sizes():
    cliff, sea = cliff_world(), deep_sea_treasure()
    assert theory.softmax_step_size(cliff) == pytest.approx(9.9e-4, rel=1e-2)
    assert theory.direct_step_size(cliff) == pytest.approx(1.4e-6, rel=2e-2)
    assert theory.softmax_step_size(sea) == pytest.approx(9.98e-2, rel=1e-3)
    assert theory.direct_step_size(sea) == pytest.approx(2.8e-4, rel=2e-2)


def test_certificate_says_when_it_fails(cliff):
    """A step far beyond the theory: the surrogate is no bound, and the certificate says so."""
    uniform = np.full((21, 4), 0.25)
    into_the_cliff = np.tile([0.01, 0.97, 0.01, 0.01], (21, 1))
    bad = theory.certificate(cliff, uniform, into_the_cliff, eta="per-state")
    assert bad.is_lower_bound
    assert not bad.surrogate_improved
    assert not bad.holds
    assert "<" in repr(bad)
    with pytest.raises(ValueError, match="certify=True"):
        _ = solve(cliff, "smdpo", "closed_form", iterations=1, eta=0.1).certified


def test_lower_bound_of_a_dropped_action_is_minus_infinity(cliff):
    uniform = np.full((21, 4), 0.25)
    greedy = np.tile([0.0, 0.5, 0.25, 0.25], (21, 1))
    assert theory.lower_bound(cliff, uniform, greedy, eta="per-state") == -np.inf
    assert np.isfinite(theory.lower_bound(cliff, uniform, greedy, objective="mdpo", eta=1.0))
    with pytest.raises(ValueError, match="smdpo, not mdpo"):
        theory.lower_bound(cliff, uniform, greedy, objective="mdpo", eta="per-state")
    with pytest.raises(ValueError, match="known for smdpo and mdpo"):
        theory.lower_bound(cliff, uniform, greedy, objective="trpo", eta=1.0)
