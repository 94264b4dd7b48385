"""Searches that skip trials find what backtracking trial by trial finds, and the reasons for it are true."""

import numpy as np
import pytest
from numba import njit
from scipy.special import log_softmax

from sppo.exact import _armijo, _inner, _search, cliff_world, random_mdp, solve


def _surrogate(name, theta, old, advantage, occupancy):
    """(J, C) in log space."""
    new, before = log_softmax(theta, axis=1), log_softmax(old, axis=1)
    p, q = np.exp(new), np.exp(before)
    gain = q * advantage * (new - before) if name == "smdpo" else p * advantage
    divergence = p * (new - before) if name == "mdpo" else q * (before - new)
    return occupancy @ gain.sum(axis=1), occupancy @ divergence.sum(axis=1)


def _gradient(name, theta, old, advantage, occupancy, eta):
    new, before = log_softmax(theta, axis=1), log_softmax(old, axis=1)
    p, q = np.exp(new), np.exp(before)
    if name == "smdpo":
        return occupancy[:, None] * (q * advantage + (q - p) / eta)
    h = advantage - (new - before) / eta if name == "mdpo" else advantage
    pull = (q - p) / eta if name == "trpo" else 0.0
    return occupancy[:, None] * (p * (h - (p * h).sum(axis=1, keepdims=True)) + pull)


def _walk(name, mdp, eta, armijo, inner_steps):
    """Step sizes of one outer iteration from the uniform policy, every trial made."""
    old = np.zeros((mdp.n_states, mdp.n_actions))
    start = mdp.evaluate(np.exp(log_softmax(old, axis=1)))
    data = (old, start.advantage, start.occupancy)

    def score(theta):
        gain, divergence = _surrogate(name, theta, *data)
        return gain - divergence / eta

    theta, alpha, steps = old, 5.0, []
    for _ in range(inner_steps):
        gradient, alpha = _gradient(name, theta, *data, eta), 2.0 * alpha
        while score(theta + alpha * gradient) < score(theta) + armijo * alpha * (gradient**2).sum():
            alpha *= 0.9
        theta = theta + alpha * gradient
        steps.append(alpha)
    return np.array(steps)


@pytest.mark.parametrize("name", ["smdpo", "mdpo", "trpo"])
@pytest.mark.parametrize("eta", [0.003, 0.02, 0.3, 3.0, 30.0])
@pytest.mark.parametrize("armijo", [0.05, 0.6])
def test_armijo_search_accepts_the_step_of_plain_backtracking(name, eta, armijo):
    """From the regime where ℓ is concave to the one where it is not."""
    random = random_mdp(9, 3, seed=2, reward_range=(-20.0, 20.0), gamma=0.5)
    for mdp in (cliff_world(), random):
        result = solve(mdp, name, "line_search", iterations=1, inner_steps=6, eta=eta, armijo=armijo)
        assert result.step_sizes[0] == pytest.approx(_walk(name, mdp, eta, armijo, 6), rel=1e-9)


@njit
def _concave(objective, packets, old, logits, step, advantage, occupancy, inv_eta, alpha):
    n = _fill(packets, old, logits, step, advantage, occupancy, inv_eta)
    actions = old.shape[1]
    return _armijo.concave_until(objective, 0.0, packets, actions, n) and _armijo.concave_until(
        objective, alpha, packets, actions, n
    )


@njit
def _rising(packets, old, logits, step, advantage, occupancy, inv_eta, alpha):
    n = _fill(packets, old, logits, step, advantage, occupancy, inv_eta)
    return _search.rising_until(alpha, packets, old.shape[1], n)


@njit
def _fill(packets, old, logits, step, advantage, occupancy, inv_eta):
    n = _inner.gather(packets, old, advantage, occupancy, inv_eta)
    actions = old.shape[1]
    for s in range(n):
        for a in range(actions):
            at = (s // 8 * actions + a) * 8 + s % 8
            packets.pair[_inner.LOGITS, at] = logits[s, a]
            packets.pair[_inner.STEP, at] = step[s, a]
    return n


def _cases(count):
    """Random (old, logits, step, advantage, occupancy, 1/η) of eleven states and four actions."""
    rng = np.random.default_rng(5)
    for _ in range(count):
        old = rng.standard_normal((11, 4))
        yield (
            old,
            old + rng.choice([0.01, 0.3, 1.0]) * rng.standard_normal((11, 4)),
            rng.standard_normal((11, 4)),
            rng.standard_normal((11, 4)),
            rng.dirichlet(np.ones(11)),
            np.full(11, rng.choice([0.5, 2.0, 5.0, 20.0])),
        )


@pytest.mark.parametrize("name", ["mdpo", "trpo"])
def test_where_the_search_bisects_the_surrogate_is_concave(name):
    objective = {"mdpo": _inner.MDPO, "trpo": _inner.TRPO}[name]
    packets = _inner.new_packets(11, 4)
    verdicts = []
    for i, (old, logits, step, advantage, occupancy, inv_eta) in enumerate(_cases(120)):
        alpha = 10.0 ** -(i % 4)
        concave = _concave(objective, packets, old, logits, step, advantage, occupancy, inv_eta, alpha)
        verdicts.append(concave)
        if concave:
            line = np.linspace(0.0, alpha, 41)
            pairs = [_surrogate(name, logits + x * step, old, advantage, occupancy) for x in line]
            values = np.array([gain - inv_eta[0] * divergence for gain, divergence in pairs])
            assert np.max(np.diff(values, 2)) < 1e-12
    assert 10 < sum(verdicts) < 110


def test_where_the_trust_region_skips_trials_the_divergence_increases():
    packets = _inner.new_packets(11, 4)
    verdicts = []
    for i, (old, logits, step, *rest) in enumerate(_cases(120)):
        alpha = 10.0 ** (1 - i % 4)
        # half of the directions lead away from the old policy
        direction = step + (logits - old) * (3.0 if i % 8 < 4 else 0.0)
        rising = _rising(packets, old, logits, direction, *rest, alpha)
        verdicts.append(rising)
        if rising:
            line = np.linspace(0.0, alpha, 41)
            values = [_surrogate("mdpo", logits + x * direction, old, rest[0], rest[1])[1] for x in line]
            assert np.min(np.diff(values)) > -1e-14
    assert 10 < sum(verdicts) < 110
