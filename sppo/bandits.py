"""EXP3 and softmax EXP3 (sEXP3) on Bernoulli bandits: every round of a run in one compiled call.

With A the arm pulled at round t, r in {0, 1} its reward and p_t the policy, the three algorithms of the
FMA-PG paper (Section "Multi-armed Bandit", Appendix D) are

* ``"sexp3"``: p_{t+1}(a) ∝ p_t(a) (1 + η r̂(a)) with r̂(a) = I{A = a} r / p_t(a);
* ``"exp3-iw"``: p_{t+1}(a) ∝ p_t(a) exp(η r̂(a)), same r̂;
* ``"exp3-lbiw"``: p_{t+1}(a) ∝ p_t(a) exp(η r̂(a)) with r̂(a) = 1 − I{A = a} (1 − r) / p_t(a).

The paper prints the sEXP3 update without "∝": it puts the reward where the advantage was, the factors then
average to 1 + ηr instead of 1, and the maximiser of the surrogate on the simplex is the normalised form.
The printed loss-based estimator lacks its leading "1 −"; here it is the one of the bandit literature, whose
"1" multiplies all weights alike and drops out. So in all three only the pulled arm's log-weight z moves:

* sEXP3: z_A += log(1 + η r / p_A), equivalently p_A ← (p_A + ηr) / (1 + ηr): the linear reward-inaction
  scheme of learning automata with step ηr / (1 + ηr);
* EXP3-IW: z_A += η r / p_A;
* EXP3-LBIW: z_A −= η (1 − r) / p_A.

No EXP3 variant mixes in uniform exploration. One round costs O(log K): the log-weights are the state, and
exp(z) is kept in a binary tree of sums, whose nodes are recomputed from their children and never updated by
a difference, so that no rounding error accumulates however long the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, stdtrit

from sppo.arguments import finite_array, integer, one_of, positive
from sppo.compiled import njit

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Names accepted by :func:`simulate`; the index is the code the compiled kernel branches on.
ALGORITHMS = ("sexp3", "exp3-iw", "exp3-lbiw")
_SEXP3, _IW, _LBIW = 0, 1, 2

# All log-weights are shifted to a maximum of 0 whenever the one that moved leaves ±_SHIFT; so the sum of
# weights stays above exp(-_SHIFT). An arm is left out of the tree below exp(-_FLOOR): its probability is then
# under exp(_SHIFT - _FLOOR) = 1e-87, far beyond what a 53-bit uniform can hit, and 1 / p stays finite for all
# others. Its log-weight is kept, so the policy itself never reaches zero.
_SHIFT = 200.0
_FLOOR = 400.0


@njit(nogil=True)
def _draw(tree: FloatArray, leaves: int, mass: float) -> int:
    """The arm whose slice of the cumulative weights contains ``mass``; never one of weight zero."""
    node = 1
    while node < leaves:
        node *= 2
        left = tree[node]
        # Rounding can leave `mass` at or above the left sum when there is nothing on the right.
        if mass >= left and tree[node + 1] > 0.0:
            mass -= left
            node += 1
    return node - leaves


@njit(nogil=True)
def _set_weight(tree: FloatArray, leaves: int, arm: int, log_weight: float) -> None:
    """Store one arm's weight and recompute the sums above it."""
    node = leaves + arm
    tree[node] = np.exp(log_weight) if log_weight > -_FLOOR else 0.0
    while node > 1:
        node //= 2
        tree[node] = tree[2 * node] + tree[2 * node + 1]


@njit(nogil=True)
def _recentre(tree: FloatArray, leaves: int, log_weights: FloatArray) -> None:
    """Shift the log-weights to a maximum of 0 (the policy is unchanged) and rebuild the tree."""
    largest = log_weights.max()
    for arm in range(len(log_weights)):
        log_weights[arm] -= largest
        _set_weight(tree, leaves, arm, log_weights[arm])


@njit(nogil=True)
def _run(
    rule: int,
    means: FloatArray,
    stream: np.random.Generator,
    eta: float,
    rounds: IntArray,
    regret: FloatArray,
    pulls: IntArray,
    log_weights: FloatArray,
) -> None:
    """One run. Two uniforms per round: the first picks the arm, the second is compared with its mean.

    Fills ``regret``; ``pulls`` and ``log_weights`` must come in as zeros.
    """
    best_mean, done, leaves = means.max(), 0, 1
    while leaves < len(means):
        leaves *= 2
    tree = np.zeros(2 * leaves)
    _recentre(tree, leaves, log_weights)
    for point in range(len(rounds)):
        for _ in range(rounds[point] - done):
            arm = _draw(tree, leaves, stream.random() * tree[1])
            pulls[arm] += 1
            reward = stream.random() < means[arm]
            if reward == (rule == _LBIW):
                continue  # r = 0 (or, for the loss-based estimator, 1 - r = 0) changes no weight
            # The bound keeps absurd step sizes from reaching infinity, where differences are undefined.
            step = min(eta * (tree[1] / tree[leaves + arm]), 1e300)
            if rule == _SEXP3:
                step = np.log1p(step)
            elif rule == _LBIW:
                step = -step
            log_weights[arm] += step
            if abs(log_weights[arm]) < _SHIFT:
                _set_weight(tree, leaves, arm, log_weights[arm])
            else:
                _recentre(tree, leaves, log_weights)
        done = rounds[point]
        regret[point] = 0.0
        for arm in range(len(means)):
            regret[point] += pulls[arm] * (best_mean - means[arm])


@dataclass(frozen=True, eq=False, repr=False)
class BanditResult:
    """What :func:`simulate` returns. E step sizes, S seeds, K arms, P recorded rounds.

    :param algorithm: one of :data:`ALGORITHMS`
    :param gap: width of the interval the means were drawn from; ``None`` if the means were given
    :param horizon: number of rounds
    :param eta: step sizes, shape (E,)
    :param seeds: environment seeds, shape (S,)
    :param agent_seed: seed of the algorithm's own randomness
    :param means: mean reward of each arm, shape (S, K)
    :param rounds: rounds after which the regret was recorded, shape (P,); the last is ``horizon``
    :param regret: cumulative pseudo-regret Σ_{i ≤ t} (max_a μ(a) − μ(A_i)), shape (E, S, P)
    :param pulls: how often each arm was pulled, shape (E, S, K)
    :param log_policy: log-probabilities of the final policy, shape (E, S, K)
    """

    algorithm: str
    gap: float | None
    horizon: int
    eta: FloatArray
    seeds: IntArray
    agent_seed: int
    means: FloatArray
    rounds: IntArray
    regret: FloatArray
    pulls: IntArray
    log_policy: FloatArray

    @property
    def arms(self) -> int:
        """Number of arms K."""
        return self.means.shape[1]

    @cached_property
    def mean(self) -> FloatArray:
        """Regret averaged over the seeds, shape (E, P)."""
        return self.regret.mean(axis=1)

    @property
    def final(self) -> FloatArray:
        """Regret after the last round, shape (E, S)."""
        return self.regret[:, :, -1]

    @property
    def best(self) -> int:
        """Index of the step size with the lowest average final regret."""
        return int(np.argmin(self.mean[:, -1]))

    @property
    def best_eta(self) -> float:
        """The step size with the lowest average final regret."""
        return float(self.eta[self.best])

    def interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Student's confidence interval of :attr:`mean`: lower and upper ends, each of shape (E, P).

        NaN when there is a single seed.
        """
        half = mean_half_width(self.regret, level, axis=1)
        return self.mean - half, self.mean + half

    def __repr__(self) -> str:
        source = "given means" if self.gap is None else f"gap {self.gap:g}"
        head = (
            f"BanditResult: {self.algorithm}, {self.arms} arms, {source}, {self.horizon:,} rounds, "
            f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"
        )
        lower, upper = self.interval()
        lines = [head, f"  {'eta':>10}  {'final regret':>14}  95% interval of the mean"]
        for e, eta in enumerate(self.eta):
            interval = f"[{lower[e, -1]:,.1f}, {upper[e, -1]:,.1f}]" if len(self.seeds) > 1 else "(one seed)"
            mark = "  <- lowest" if e == self.best and len(self.eta) > 1 else ""
            lines.append(f"  {eta:>10g}  {self.mean[e, -1]:>14,.1f}  {interval}{mark}")
        return "\n".join(lines)


def mean_half_width(samples: FloatArray, level: float = 0.95, axis: int = -1) -> FloatArray:
    """Half the width of Student's interval of the mean along ``axis``: t_{(1+level)/2, n−1} s / √n."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be strictly between 0 and 1, not {level!r}")
    count = samples.shape[axis]
    if count < 2:
        return np.full(np.delete(samples.shape, axis), np.nan)
    return stdtrit(count - 1, (1 + level) / 2) * samples.std(axis=axis, ddof=1) / np.sqrt(count)


def bernoulli_means(seed: int, arms: int, gap: float) -> FloatArray:
    """The mean rewards of environment ``seed``: each arm's is uniform on [0.5 − Δ/2, 0.5 + Δ/2], Δ = ``gap``.

    The paper's easy problems have Δ = 0.5 and its hard ones Δ = 0.1 (its text swaps the two words).
    """
    return np.random.default_rng(seed).uniform(0.5 - gap / 2, 0.5 + gap / 2, size=arms)


def agent_stream(seed: int, agent_seed: int = 0) -> np.random.Generator:
    """The uniforms a run consumes, two per round: arm (inverse cumulative probability), then reward.

    They depend on the environment's seed and the agent's seed alone: not on the algorithm, the step size,
    the number of threads, or what else is simulated in the same call.
    """
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(agent_seed,))))


def simulate(
    algorithm: str,
    *,
    arms: int | None = None,
    gap: float | None = None,
    means: npt.ArrayLike | None = None,
    horizon: int,
    eta: float | Sequence[float] | FloatArray,
    seeds: int | Sequence[int] | IntArray,
    agent_seed: int = 0,
    points: int = 200,
    threads: int | None = None,
) -> BanditResult:
    """Run an algorithm on Bernoulli bandits, for all step sizes and seeds at once.

    :param algorithm: ``"sexp3"``, ``"exp3-iw"`` or ``"exp3-lbiw"`` (see the module's docstring)
    :param arms: number of arms K ≥ 2
    :param gap: Δ in [0, 1]; the environment's means come from :func:`bernoulli_means`
    :param means: instead of ``arms`` and ``gap``, the mean rewards: shape (K,), or (S, K), a row per seed
    :param horizon: number of rounds
    :param eta: step size or step sizes, positive (then every factor 1 + η r̂ of sEXP3 is at least 1, and no
        probability can reach zero)
    :param seeds: environment seeds: a sequence of distinct integers, or a number n for 0, ..., n − 1
    :param agent_seed: seed of the algorithm's randomness; another one repeats the same environments
    :param points: at how many equally spaced rounds to record the regret (every round if ``horizon`` is less)
    :param threads: number of threads; the usable cores if ``None``. The result does not depend on it
    """
    one_of("algorithm", algorithm, ALGORITHMS)
    horizon = integer("horizon", horizon, least=1)
    agent_seed = integer("agent_seed", agent_seed, least=0)
    step_sizes = finite_array("eta", np.atleast_1d(eta), "E")
    positive("eta", step_sizes.min())
    seed_list = _seed_list(seeds)
    table = _means_table(arms, gap, means, seed_list)
    points = min(integer("points", points, least=1), horizon)
    rounds = np.array([horizon * i // points for i in range(1, points + 1)], dtype=np.int64)
    runs = (len(step_sizes), len(seed_list))
    regret = np.empty((*runs, len(rounds)))
    pulls = np.zeros((*runs, table.shape[1]), dtype=np.int64)
    log_weights = np.zeros((*runs, table.shape[1]))

    def run(cell: tuple[int, ...]) -> None:
        stream = agent_stream(seed_list[cell[1]], agent_seed)
        rule, means, eta = ALGORITHMS.index(algorithm), table[cell[1]], step_sizes[cell[0]]
        _run(rule, means, stream, eta, rounds, regret[cell], pulls[cell], log_weights[cell])

    cores = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    with ThreadPoolExecutor(cores if threads is None else integer("threads", threads)) as pool:
        list(pool.map(run, np.ndindex(runs)))
    return BanditResult(
        algorithm=algorithm,
        gap=None if gap is None else float(gap),
        horizon=horizon,
        eta=step_sizes,
        seeds=np.array(seed_list, dtype=np.int64),
        agent_seed=agent_seed,
        means=table,
        rounds=rounds,
        regret=regret,
        pulls=pulls,
        log_policy=log_weights - logsumexp(log_weights, axis=-1, keepdims=True),
    )


def _seed_list(seeds: int | Sequence[int] | IntArray) -> list[int]:
    if not isinstance(seeds, Iterable):
        return list(range(integer("seeds", seeds)))
    seed_list = [integer("each seed", seed, least=0) for seed in seeds]
    if not seed_list:
        raise ValueError("seeds is empty; give a number of seeds or a sequence of integers")
    if len(set(seed_list)) < len(seed_list):
        raise ValueError("seeds repeats itself; runs of equal seeds are equal and would narrow the intervals")
    return seed_list


def _means_table(
    arms: int | None, gap: float | None, means: npt.ArrayLike | None, seeds: list[int]
) -> FloatArray:
    """Mean rewards, one row per seed, from either description of the problem."""
    if means is None:
        if arms is None or gap is None:
            raise TypeError("give arms and gap, or means")
        arms = integer("arms", arms, least=2)
        if not 0.0 <= gap <= 1.0:
            raise ValueError(f"gap must be in [0, 1] for the means to be probabilities, not {gap!r}")
        return np.stack([bernoulli_means(seed, arms, gap) for seed in seeds])
    if arms is not None or gap is not None:
        raise TypeError("means already fixes the problem: leave out arms and gap")
    rows = np.tile(np.asarray(means), (len(seeds), 1)) if np.ndim(means) == 1 else means
    table = finite_array("means", rows, len(seeds), "K")
    integer("the number of arms in means", table.shape[1], least=2)
    if not ((table >= 0) & (table <= 1)).all():
        raise ValueError("means must be probabilities, in [0, 1]")
    return table
