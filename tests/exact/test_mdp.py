"""MDPs are validated, and evaluated exactly whichever linear solver does it."""

import itertools

import gymnasium
import numpy as np
import pytest
import scipy.sparse as sp

from sppo.exact import TabularMDP, cliff_world, deep_sea_treasure, evaluation, from_gymnasium, random_mdp
from sppo.exact import mdp as mdp_module


def _textbook(mdp, policy):
    """J, V, Q, d by dense inversion."""
    transition = mdp.transition.toarray().reshape(mdp.n_states, mdp.n_actions, mdp.n_states)
    p_pi = np.einsum("sat,sa->st", transition, policy)
    inverse = np.linalg.inv(np.eye(mdp.n_states) - mdp.gamma * p_pi)
    v = inverse @ (policy * mdp.reward).sum(axis=1)
    q = mdp.reward + mdp.gamma * transition @ v
    return mdp.start @ v, v, q, (1 - mdp.gamma) * mdp.start @ inverse


@pytest.mark.parametrize("path", ["compiled", "direct", "iterative"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99])
def test_evaluation_is_exact(monkeypatch, path, gamma):
    if path != "compiled":
        monkeypatch.setattr(mdp_module, "DENSE_LIMIT", 0)
    if path == "iterative":
        monkeypatch.setattr(evaluation, "COMPONENT_LIMIT", 0)
    mdp = random_mdp(30, 3, successors=4, gamma=gamma, reward_range=(-2.0, 1.0), seed=1)
    policy = np.random.default_rng(2).dirichlet(np.ones(3), size=30)
    result = mdp.evaluate(policy)
    value, v, q, occupancy = _textbook(mdp, policy)
    assert result.value == pytest.approx(value, abs=1e-11)
    assert result.v == pytest.approx(v, abs=1e-11)
    assert result.q == pytest.approx(q, abs=1e-11)
    assert result.advantage == pytest.approx(q - v[:, None], abs=1e-11)
    assert result.occupancy == pytest.approx(occupancy, abs=1e-13)
    assert result.occupancy.sum() == pytest.approx(1.0, abs=1e-12)
    assert result.occupancy.min() >= 0.0


def test_advantage_is_exactly_zero_where_the_action_does_not_matter():
    mdp = cliff_world()
    policy = np.random.default_rng(0).dirichlet(np.ones(4), size=21)
    advantage = mdp.evaluate(policy).advantage
    assert np.all(advantage[[1, 2, 3, 4, 20]] == 0.0)


def test_occupancy_of_hardly_visited_states_keeps_its_relative_accuracy():
    mdp = cliff_world()
    policy = np.tile([1 - 3e-80, 1e-80, 1e-80, 1e-80], (21, 1))
    occupancy = mdp.evaluate(policy).occupancy
    # from the start, one step of probability 1e-80 up (into the cliff) or right
    assert occupancy[5] == pytest.approx(0.9 * 1e-80 * occupancy[0] / (1 - 0.9), rel=1e-6)


def test_cliff_world_is_the_papers():
    mdp = cliff_world()
    assert (mdp.n_states, mdp.n_actions, mdp.reward_range) == (21, 4, (-100.0, 1.0))
    optimum = mdp.optimal()
    assert optimum.value == pytest.approx(0.9**6, rel=1e-14)
    assert mdp.evaluate(optimum.policy).value == pytest.approx(optimum.value, rel=1e-14)
    # any action in a cliff cell costs 100 and restarts; off-grid moves stay
    assert optimum.q[2] == pytest.approx(-100 + 0.9 * optimum.v[0])
    assert mdp.transition[0 * 4 + 0].indices.tolist() == [0]


def test_deep_sea_treasure_is_the_papers():
    mdp = deep_sea_treasure()
    assert (mdp.n_states, mdp.n_actions) == (25, 2)
    assert mdp.reward_range == (-0.002, 1.0)
    assert mdp.optimal().value == pytest.approx(0.9**3 - 0.002 * (1 + 0.9 + 0.81), rel=1e-14)
    with pytest.raises(ValueError, match="at least 2"):
        deep_sea_treasure(1)


def test_optimum_beats_every_deterministic_policy():
    mdp = random_mdp(4, 3, gamma=0.9, seed=5)
    values = []
    for choice in itertools.product(range(3), repeat=4):
        policy = np.eye(3)[list(choice)]
        values.append(mdp.evaluate(policy).value)
    optimum = mdp.optimal()
    assert optimum.value == pytest.approx(max(values), abs=1e-12)
    assert optimum.v == pytest.approx(optimum.q.max(axis=1), abs=1e-12)


@pytest.mark.parametrize("name", ["FrozenLake8x8-v1", "CliffWalking-v1"])
def test_toy_text_environments(name):
    env = gymnasium.make(name)
    mdp = from_gymnasium(env, gamma=0.95)
    assert mdp.n_states == env.observation_space.n + 1
    # the table's own Bellman equation, without our arrays
    v = mdp.optimal().v
    table = env.unwrapped.P
    for s in range(0, mdp.n_states - 1, 7):
        q = [sum(p * (r + 0.95 * (0.0 if end else v[t])) for p, t, r, end in table[s][a]) for a in table[s]]
        assert v[s] == pytest.approx(max(q), abs=1e-10)


def test_environment_without_a_table_is_refused():
    with pytest.raises(ValueError, match="no transition table"):
        from_gymnasium(gymnasium.make("CartPole-v1"))


def test_large_sparse_problem_is_exact():
    mdp = deep_sea_treasure(n=300)
    evaluation = mdp.evaluate(np.full((90_000, 2), 0.5))
    assert evaluation.occupancy.sum() == pytest.approx(1.0, abs=1e-12)
    # J = Σ d r / (1 - γ), two independent solves
    through_occupancy = evaluation.occupancy @ mdp.reward.mean(axis=1) / (1 - 0.9)
    assert evaluation.value == pytest.approx(through_occupancy, rel=1e-10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 1.0}, "gamma must be in"),
        ({"gamma": -0.1}, "gamma must be in"),
        ({"transition": np.full((2, 2, 2), 0.4)}, "must sum to 1; .* in state 0, action 0"),
        ({"transition": np.full((2, 3, 2), 0.5)}, "must have shape"),
        ({"transition": sp.csr_matrix(np.full((2, 2), 0.5))}, "one row per state and action"),
        ({"transition": [[[1.5, -0.5]] * 2] * 2}, "negative probability"),
        ({"reward": [[0.0, np.nan], [0.0, 0.0]]}, "not finite"),
        ({"reward": [0.0, 1.0]}, r"reward must have shape \(S, A\)"),
        ({"start": [0.5, 0.6]}, "start must sum to 1"),
        ({"start": [1.0]}, "start must have shape"),
        ({"reward_range": (0.5, 1.0)}, "does not contain"),
    ],
)
def test_bad_problems_are_refused_with_a_reason(change, message):
    good = {
        "transition": np.full((2, 2, 2), 0.5),
        "reward": [[0.0, 1.0], [0.0, 0.0]],
        "start": [1.0, 0.0],
        "gamma": 0.9,
    }
    TabularMDP(**good)
    with pytest.raises(ValueError, match=message):
        TabularMDP(**{**good, **change})


def test_bad_policies_are_refused(cliff):
    with pytest.raises(ValueError, match="shape"):
        cliff.evaluate(np.full((4, 21), 0.25))
    policy = np.full((21, 4), 0.25)
    policy[3, 0] = 0.3
    with pytest.raises(ValueError, match="in state 3"):
        cliff.evaluate(policy)
    with pytest.raises(ValueError, match="negative"):
        cliff.evaluate(np.tile([1.5, -0.5, 0.0, 0.0], (21, 1)))


def test_random_mdp_has_the_asked_structure():
    mdp = random_mdp(50, 2, successors=3, seed=4)
    assert np.all(np.diff(mdp.transition.indptr) == 3)
    assert mdp.reward_range == (0.0, 1.0)
    assert (random_mdp(50, 2, successors=3, seed=4).transition != mdp.transition).nnz == 0
    with pytest.raises(ValueError, match="successors"):
        random_mdp(3, 2, successors=4)
