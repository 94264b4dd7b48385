"""The paper's tabular environments, Gymnasium's toy-text ones, and random MDPs."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from sppo.exact.mdp import TabularMDP


def _deterministic(successor: np.ndarray, states: int) -> sp.csr_matrix:
    """Transitions (S·A, S) from the successor of every state and action."""
    rows = successor.size
    return sp.csr_matrix((np.ones(rows), successor.ravel(), np.arange(rows + 1)), shape=(rows, states))


def cliff_world(gamma: float = 0.9) -> TabularMDP:
    """CliffWorld: 21 states, 4 actions (down, up, left, right), v*(start) = γ⁶.

    Cells are numbered up the columns of a grid of 4 columns and 5 rows::

        4 goal   9  14  19
        3 cliff  8  13  18
        2 cliff  7  12  17
        1 cliff  6  11  16
        0 start  5  10  15      20 terminal

    Any action in a cliff cell goes to the start with reward -100; any action in the goal goes to the terminal
    state with reward 1; all other rewards are 0, and moves off the grid stay in place.
    """
    columns, rows = 4, 5
    goal, terminal, cliff = 4, 20, (1, 2, 3)
    x, y = np.divmod(np.arange(columns * rows), rows)
    moves = ((0, -1), (0, 1), (-1, 0), (1, 0))
    successor = np.full((terminal + 1, len(moves)), terminal)
    for a, (right, up) in enumerate(moves):
        successor[:terminal, a] = rows * np.clip(x + right, 0, columns - 1) + np.clip(y + up, 0, rows - 1)
    reward = np.zeros(successor.shape)
    successor[cliff, :] = 0
    reward[cliff, :] = -100.0
    successor[goal] = terminal
    reward[goal] = 1.0
    start = np.eye(terminal + 1)[0]
    return TabularMDP(_deterministic(successor, terminal + 1), reward, start, gamma, name="CliffWorld")


def deep_sea_treasure(n: int = 5, gamma: float = 0.9) -> TabularMDP:
    """DeepSeaTreasure: n² states, actions left and right, one row down per step.

    State row·n + column; the start is the top left corner. Every step costs 0.01/n, except the move right
    that enters the bottom right corner, which earns 1. The bottom row is terminal (absorbing, zero reward).
    """
    if n < 2:
        raise ValueError(f"n must be at least 2, not {n}")
    row, column = np.divmod(np.arange(n * n), n)
    successor = np.empty((n * n, 2), dtype=np.int64)
    reward = np.full((n * n, 2), -0.01 / n)
    for a, move in enumerate((-1, 1)):
        successor[:, a] = (row + 1) * n + np.clip(column + move, 0, n - 1)
    reward[(row == n - 2) & (column >= n - 2), 1] = 1.0
    bottom = row == n - 1
    successor[bottom] = np.flatnonzero(bottom)[:, None]
    reward[bottom] = 0.0
    start = np.zeros(n * n)
    start[0] = 1.0
    return TabularMDP(_deterministic(successor, n * n), reward, start, gamma, name=f"DeepSeaTreasure(n={n})")


def from_gymnasium(env: object, gamma: float = 0.99, start: np.ndarray | None = None) -> TabularMDP:
    """The exact MDP of a Gymnasium toy-text environment with a table ``P`` (FrozenLake, Taxi, CliffWalking).

    ``P[s][a]`` lists (probability, next state, reward, terminated). A terminated transition goes to one extra
    absorbing state of zero reward, numbered last.

    :param env: the environment (wrappers are looked through), or an id for ``gymnasium.make``
    :param gamma: discount factor
    :param start: start distribution; the environment's ``initial_state_distrib`` by default
    """
    if isinstance(env, str):
        import gymnasium

        env = gymnasium.make(env)
    raw = getattr(env, "unwrapped", env)
    table = getattr(raw, "P", None)
    if table is None:
        raise ValueError(f"{raw!r} has no transition table P: not a toy-text environment with known dynamics")
    states, actions = len(table), len(table[0])
    if start is None:
        start = getattr(raw, "initial_state_distrib", None)
        if start is None:
            raise ValueError(
                f"{raw!r} has no initial_state_distrib: pass start, a distribution over {states} states"
            )
    reward = np.zeros((states + 1, actions))
    entries = []
    for s in range(states):
        for a in range(actions):
            for probability, successor, r, terminated in table[s][a]:
                entries.append((s * actions + a, states if terminated else successor, probability))
                reward[s, a] += probability * r
    entries += [(states * actions + a, states, 1.0) for a in range(actions)]
    rows, columns, probabilities = (np.array(column) for column in zip(*entries, strict=True))
    transition = sp.coo_matrix((probabilities, (rows, columns)), shape=((states + 1) * actions, states + 1))
    name = getattr(getattr(raw, "spec", None), "id", None) or type(raw).__name__
    return TabularMDP(transition.tocsr(), reward, np.append(start, 0.0), gamma, name=name)


def random_mdp(
    states: int,
    actions: int,
    *,
    successors: int | None = None,
    gamma: float = 0.9,
    reward_range: tuple[float, float] = (0.0, 1.0),
    seed: int | np.random.Generator = 0,
) -> TabularMDP:
    """A random MDP (Garnet): each (s, a) leads to ``successors`` states with Dirichlet(1) probabilities.

    :param successors: distinct next states per state and action; all states by default
    :param reward_range: rewards are uniform in this interval, which also becomes the MDP's ``reward_range``
    """
    if states < 1 or actions < 1:
        raise ValueError(f"an MDP needs at least one state and one action, not {states} and {actions}")
    rng = np.random.default_rng(seed)
    branches = states if successors is None else successors
    if not 1 <= branches <= states:
        raise ValueError(f"successors must be between 1 and the number of states, {states}, not {branches}")
    rows = states * actions
    probabilities = rng.dirichlet(np.ones(branches), size=rows)
    if branches == states:
        columns = np.tile(np.arange(states), (rows, 1))
    elif branches * 4 > states:
        columns = np.argsort(rng.random((rows, states)), axis=1)[:, :branches]
    else:
        # far fewer branches than states: draw, and redraw the rare rows with a repetition
        columns = rng.integers(states, size=(rows, branches))
        while (repeated := (np.diff(np.sort(columns, axis=1), axis=1) == 0).any(axis=1)).any():
            columns[repeated] = rng.integers(states, size=(int(repeated.sum()), branches))
    transition = sp.csr_matrix(
        (probabilities.ravel(), columns.ravel(), np.arange(0, rows * branches + 1, branches)),
        shape=(rows, states),
    )
    reward = rng.uniform(*reward_range, size=(states, actions))
    start = rng.dirichlet(np.ones(states))
    return TabularMDP(transition, reward, start, gamma, reward_range=reward_range, name="RandomMDP")
