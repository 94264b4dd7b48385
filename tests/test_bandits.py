"""The compiled bandits against the obvious NumPy loop, against exact enumeration, and at their limits."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
from scipy.special import logsumexp

from sppo.bandits import ALGORITHMS, agent_stream, bernoulli_means, simulate


def estimated_reward(algorithm, policy, arm, reward):
    """The estimator r̂ as a full vector, straight from its definition."""
    indicator = np.arange(len(policy)) == arm
    if algorithm == "exp3-lbiw":
        return 1 - indicator * (1 - reward) / policy[arm]
    return indicator * reward / policy[arm]


def updated(algorithm, log_policy, eta, estimate):
    """One update of the whole policy vector: times the factor of each arm, divided by the sum."""
    factors = np.log(1 + eta * estimate) if algorithm == "sexp3" else eta * estimate
    return log_policy + factors - logsumexp(log_policy + factors)


def brute_force(algorithm, means, eta, horizon, uniforms):
    """The regret after each round and the final policy, all K probabilities rewritten every round."""
    log_policy = np.full(len(means), -np.log(len(means)))
    regret = np.zeros(horizon)
    for t in range(horizon):
        policy = np.exp(log_policy)
        arm = int(np.searchsorted(np.cumsum(policy), uniforms.random(), side="right"))
        reward = float(uniforms.random() < means[arm])
        regret[t] = means.max() - means[arm]
        log_policy = updated(algorithm, log_policy, eta, estimated_reward(algorithm, policy, arm, reward))
    return regret.cumsum(), log_policy


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("arms", "eta"), [(2, 0.02), (3, 0.02), (10, 0.02), (100, 0.01)])
def test_equals_the_obvious_loop_round_by_round(algorithm, arms, eta):
    """Same uniforms, same arm in every round, same final policy as a loop that updates all arms.

    Larger steps would compare noise: EXP3-LBIW divides by probabilities that it has itself made small, and
    at eta = 0.3 a last-digit difference grows until two exact programs pull different arms.
    """
    horizon, seeds = 1500, [4, 11]
    result = simulate(
        algorithm, arms=arms, gap=0.5, horizon=horizon, eta=eta, seeds=seeds, agent_seed=7, points=horizon
    )
    assert result.rounds.tolist() == list(range(1, horizon + 1))
    for s, seed in enumerate(seeds):
        regret, log_policy = brute_force(algorithm, result.means[s], eta, horizon, agent_stream(seed, 7))
        np.testing.assert_allclose(result.regret[0, s], regret, rtol=0, atol=1e-9)
        np.testing.assert_allclose(result.log_policy[0, s], log_policy, rtol=1e-7, atol=1e-7)


def expected_regret(algorithm, means, eta, horizon):
    """The exact expected regret: every sequence of arms and rewards with its probability."""

    def rest(log_policy, rounds):
        if rounds == 0:
            return 0.0
        policy = np.exp(log_policy)
        total = 0.0
        for arm, reward in itertools.product(range(len(means)), (0.0, 1.0)):
            probability = policy[arm] * (means[arm] if reward else 1 - means[arm])
            if probability > 0:
                estimate = estimated_reward(algorithm, policy, arm, reward)
                following = rest(updated(algorithm, log_policy, eta, estimate), rounds - 1)
                total += probability * (means.max() - means[arm] + following)
        return total

    return rest(np.full(len(means), -np.log(len(means))), horizon)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_average_regret_is_the_exact_expectation(algorithm):
    """Over 8,000 agents the mean regret lies within 4 standard errors of the enumerated expectation."""
    means = np.array([0.8, 0.3, 0.5])
    result = simulate(algorithm, means=means, horizon=5, eta=0.7, seeds=8000)
    regret = result.final[0]
    error = regret.mean() - expected_regret(algorithm, means, 0.7, 5)
    assert abs(error) < 4 * regret.std() / np.sqrt(len(regret))


def test_sexp3_is_linear_reward_inaction():
    """A rewarded arm moves to (p + η) / (1 + η): the form of the update that needs no division by p."""
    eta = 0.4
    result = simulate("sexp3", means=[1.0, 1.0, 1.0], horizon=1, eta=eta, seeds=1)
    probabilities = np.sort(np.exp(result.log_policy[0, 0]))
    np.testing.assert_allclose(probabilities, np.array([1 / 3, 1 / 3, 1 / 3 + eta]) / (1 + eta), rtol=1e-14)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_depends_on_its_own_seed_alone(algorithm):
    """Threads, other step sizes, other seeds and the recording grid leave a run's numbers untouched."""
    problem = {"arms": 10, "gap": 0.5, "horizon": 3000}
    together = simulate(algorithm, **problem, eta=[0.5, 0.05, 0.005], seeds=6)
    serial = simulate(algorithm, **problem, eta=[0.5, 0.05, 0.005], seeds=6, threads=1)
    alone = simulate(algorithm, **problem, eta=0.05, seeds=[4], points=10)
    other = simulate(algorithm, **problem, eta=0.05, seeds=[4], agent_seed=1)
    np.testing.assert_array_equal(together.regret, serial.regret)
    np.testing.assert_array_equal(together.log_policy, serial.log_policy)
    np.testing.assert_array_equal(together.regret[1, 4, 19::20], alone.regret[0, 0])
    np.testing.assert_array_equal(together.means[4], other.means[0])
    assert not np.array_equal(alone.pulls, other.pulls)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("arms", [2, 7, 100])
def test_longest_horizon_keeps_every_probability_positive(algorithm, arms):
    """600,000 rounds, from sensible to absurd step sizes: finite log-probabilities that sum to one."""
    horizon = 600_000
    result = simulate(algorithm, arms=arms, gap=0.5, horizon=horizon, eta=[5e-5, 0.5, 1e3, 1e308], seeds=1)
    assert np.isfinite(result.log_policy).all()
    np.testing.assert_allclose(np.exp(result.log_policy).sum(axis=-1), 1, rtol=1e-12)
    assert (result.pulls.sum(axis=-1) == horizon).all()
    assert (np.diff(result.regret, axis=-1) >= 0).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_learns_the_best_arm(algorithm):
    """With a small step size the far better arm takes nearly all pulls."""
    result = simulate(algorithm, means=[0.1, 0.9, 0.2], horizon=20_000, eta=0.01, seeds=10)
    assert (result.pulls[0, :, 1] > 0.9 * result.horizon).all()


def test_environments_follow_their_seed_and_gap():
    """Means are uniform on [0.5 − Δ/2, 0.5 + Δ/2], a function of the seed; a zero gap has zero regret."""
    result = simulate("sexp3", arms=50, gap=0.1, horizon=10, eta=0.1, seeds=40)
    np.testing.assert_array_equal(result.means[3], bernoulli_means(3, 50, 0.1))
    uniform = scipy.stats.uniform(0.45, 0.1)
    assert scipy.stats.kstest(result.means.ravel(), uniform.cdf).pvalue > 1e-3
    assert simulate("exp3-iw", arms=3, gap=0, horizon=50, eta=0.1, seeds=2).regret.max() == 0


def test_result_summarises_its_runs():
    """Mean, Student interval, tuned step size and repr agree with the raw regrets."""
    result = simulate("sexp3", arms=10, gap=0.5, horizon=2000, eta=[5e-5, 0.05], seeds=12, points=7)
    assert result.regret.shape == (2, 12, 7)
    assert result.rounds[-1] == 2000
    lower, upper = result.interval(0.9)
    sample = result.regret[1, :, 3]
    expected = scipy.stats.t.interval(0.9, 11, sample.mean(), scipy.stats.sem(sample))
    np.testing.assert_allclose((lower[1, 3], upper[1, 3]), expected)
    assert result.best == 1
    assert result.best_eta == 0.05
    text = repr(result)
    assert "sexp3, 10 arms, gap 0.5, 2,000 rounds, 12 seeds" in text
    assert f"{result.final[1].mean():,.1f}" in text.splitlines()[-1]
    assert text.endswith("<- lowest")
    single = simulate("sexp3", means=[0.2, 0.4], horizon=5, eta=0.05, seeds=[9])
    assert "given means" in repr(single)
    assert np.isnan(single.interval()).all()


GOOD = {"arms": 3, "gap": 0.5, "horizon": 10, "eta": 0.1, "seeds": 2}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"algorithm": "ucb"}, ValueError, "exp3-lbiw"),
        ({"arms": 1}, ValueError, "arms must be at least 2"),
        ({"arms": 2.5}, TypeError, "arms must be an integer"),
        ({"gap": 1.5}, ValueError, "gap must be in"),
        ({"gap": float("nan")}, ValueError, "gap must be in"),
        ({"gap": None}, TypeError, "give arms and gap, or means"),
        ({"means": [0.5, 0.2]}, TypeError, "leave out arms and gap"),
        ({"arms": None, "gap": None, "means": [0.5]}, ValueError, "at least 2"),
        ({"arms": None, "gap": None, "means": np.full((3, 2), 0.5)}, ValueError, r"\(2, K\)"),
        ({"arms": None, "gap": None, "means": [0.5, np.nan]}, ValueError, "not finite"),
        ({"arms": None, "gap": None, "means": [0.5, 1.5]}, ValueError, "probabilities"),
        ({"horizon": 0}, ValueError, "horizon must be at least 1"),
        ({"horizon": 1e5}, TypeError, "horizon must be an integer"),
        ({"eta": 0.0}, ValueError, "positive and finite"),
        ({"eta": [0.1, -0.1]}, ValueError, "positive and finite"),
        ({"eta": float("inf")}, ValueError, "not finite"),
        ({"eta": []}, ValueError, r"shape \(E,\)"),
        ({"seeds": 0}, ValueError, "seeds must be at least 1"),
        ({"seeds": []}, ValueError, "empty"),
        ({"seeds": [1, 1]}, ValueError, "repeats"),
        ({"seeds": [-1]}, ValueError, "each seed must be at least 0"),
        ({"seeds": True}, TypeError, "integer"),
        ({"seeds": 2.0}, TypeError, "seeds must be an integer"),
        ({"agent_seed": -1}, ValueError, "agent_seed"),
        ({"points": 0}, ValueError, "points"),
        ({"threads": 0}, ValueError, "threads"),
    ],
)
def test_bad_input_is_refused_with_a_reason(change, error, message):
    """Each impossible argument raises before any work, naming what to change."""
    arguments = {"algorithm": "sexp3", **GOOD, **change}
    with pytest.raises(error, match=message):
        simulate(arguments.pop("algorithm"), **arguments)


def test_needs_neither_torch_nor_stable_baselines():
    """Importing the bandits loads no deep-learning stack."""
    code = (
        "import sys, sppo.bandits; "
        "assert not {'torch', 'stable_baselines3', 'gymnasium', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
