r"""Uncertainty of a handful of runs: interquartile mean, probability of improvement, profiles.

The estimators are those of Agarwal et al., *Deep reinforcement learning at the edge of the statistical
precipice* (NeurIPS 2021), as computed by the package ``rliable`` 1.2.0. They are written here on NumPy
because ``rliable`` resamples through ``arch``, whose newest release fails to import beside pandas 3, and
because a loop over resamples in Python takes minutes on a full study. For equal numbers of runs per task
the point estimates equal ``rliable``'s; the intervals agree up to the noise of resampling.

Scores come as a sequence of *strata*, one 1-d array per task, with any number of runs in each. Every
task has the same weight: a run of a task with :math:`n_k` runs out of :math:`K` tasks weighs
:math:`1 / (K n_k)`.

A stratified bootstrap resample draws :math:`n_k` runs with replacement from each task. All statistics
here are functions of the *weights* of the runs, so a resample is a row of counts and all resamples are
one matrix: nothing is sorted or ranked twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Strata = Sequence[ArrayLike]

CONFIDENCE = 0.95
RESAMPLES = 2000
#: below this many runs per task an interval is shown with a warning: a bootstrap can only resample what
#: was seen, and is too narrow on average
FEW_RUNS = 5
#: resamples handled at once; bounds the memory of the count matrix
_CHUNK = 500
_TAILS = (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE))


class Estimate(NamedTuple):
    """A statistic and its interval; the bounds are NaN where the runs do not allow one."""

    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")

    @property
    def has_interval(self) -> bool:
        return bool(np.isfinite(self.low) and np.isfinite(self.high))


def mean_interval(samples: ArrayLike) -> tuple[Array, Array, Array]:
    r"""Mean over the first axis and its Student-t interval, :math:`\bar x \pm t_{n-1} s / \sqrt n`.

    :param samples: runs along the first axis, any further axes
    :return: mean, lower and upper bound, each of the shape of one run; the bounds are NaN for n = 1
    """
    x = np.asarray(samples, dtype=np.float64)
    mean, n = x.mean(axis=0), len(x)
    half = _t_quantile(n - 1) * x.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full_like(mean, np.nan)
    return mean, mean - half, mean + half


def mean_estimate(values: ArrayLike) -> Estimate:
    """Mean of single values and its Student-t interval; not a number without any."""
    return Estimate(*map(float, mean_interval(values))) if np.size(values) else Estimate()


def difference(x: ArrayLike, y: ArrayLike) -> Estimate:
    r"""Difference of means :math:`\bar x - \bar y` with Welch's t interval (unequal variances)."""
    return weighted_sum((x, y), (1.0, -1.0))


def weighted_sum(strata: Strata, weights: Sequence[float]) -> Estimate:
    r"""Weighted sum of the strata's means, :math:`\sum_k w_k \bar x_k`, with Welch's t interval.

    The degrees of freedom are Welch and Satterthwaite's; there is no interval if a stratum has one value.
    """
    samples = _strata(strata)
    value = float(sum(w * x.mean() for w, x in zip(weights, samples, strict=True)))
    if min(len(x) for x in samples) < 2:
        return Estimate(value)
    parts = np.array([w**2 * x.var(ddof=1) / len(x) for w, x in zip(weights, samples, strict=True)])
    variance = float(parts.sum())
    if variance == 0:
        return Estimate(value, value, value)
    freedom = variance**2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, samples, strict=True))
    half = _t_quantile(float(freedom)) * float(np.sqrt(variance))
    return Estimate(value, value - half, value + half)


def interquartile_mean(scores: Strata, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    r"""Mean of the middle half of all runs of all tasks, with a stratified bootstrap interval.

    With N runs in all, the mass :math:`g = \lfloor N/4 \rfloor / N` is cut at either end of the weighted
    order. For equal :math:`n_k` this is ``scipy.stats.trim_mean(scores, 0.25)``.
    """
    strata = _strata(scores)
    sizes = np.array([len(x) for x in strata])
    values = np.concatenate(strata)
    order = np.argsort(values, kind="stable")
    weights = np.repeat(1 / (sizes * len(sizes)), sizes)[order]
    total = len(values)
    cut = (total // 4) / total

    def trimmed(counts: Array) -> Array:
        mass = counts * weights
        top = np.cumsum(mass, axis=-1)
        kept = np.clip(np.minimum(top, 1 - cut) - np.maximum(top - mass, cut), 0, None)
        return kept @ values[order] / kept.sum(axis=-1)

    point = float(trimmed(np.ones((1, total)))[0])
    if sizes.min() < 2:
        return Estimate(point)
    rng = np.random.default_rng(seed)
    draws = []
    for start in range(0, resamples, _CHUNK):
        rows = min(_CHUNK, resamples - start)
        counts = np.concatenate([_counts(rng, int(n), rows) for n in sizes], axis=1)
        draws.append(trimmed(counts[:, order]))
    return Estimate(point, *map(float, np.percentile(np.concatenate(draws), _TAILS)))


def probability_of_improvement(x: Strata, y: Strata, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    r"""How often a run of X beats a run of Y on the same task, :math:`P(X > Y) + P(X = Y) / 2`.

    Per task this is the Mann-Whitney statistic divided by :math:`n_x n_y`; tasks are averaged. X and Y
    are resampled independently, within each task.
    """
    xs, ys = _strata(x), _strata(y)
    wins = [np.sign(a[:, None] - b[None, :]) / 2 + 0.5 for a, b in zip(xs, ys, strict=True)]
    point = float(np.mean([w.mean() for w in wins]))
    if min(len(s) for s in (*xs, *ys)) < 2:
        return Estimate(point)
    draws = np.zeros(resamples)
    rng = np.random.default_rng(seed)
    for win in wins:
        first = _counts(rng, win.shape[0], resamples)
        second = _counts(rng, win.shape[1], resamples)
        draws += np.einsum("rj,rj->r", first @ win, second) / win.size
    return Estimate(point, *map(float, np.percentile(draws / len(wins), _TAILS)))


def performance_profile(
    scores: Strata, thresholds: ArrayLike, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Array, Array, Array]:
    r"""Fraction of runs with a score above each threshold, with pointwise stratified bootstrap bounds.

    :return: profile, lower and upper bound, one value per threshold; bounds are NaN if a task has one run
    """
    strata = _strata(scores)
    taus = np.asarray(thresholds, dtype=np.float64)
    above = [(x[:, None] > taus[None, :]).astype(np.float64) for x in strata]
    profile = np.mean([a.mean(axis=0) for a in above], axis=0)
    if min(len(x) for x in strata) < 2:
        nothing = np.full_like(profile, np.nan)
        return profile, nothing, nothing
    rng = np.random.default_rng(seed)
    draws = np.zeros((resamples, len(taus)))
    for task in above:
        draws += _counts(rng, len(task), resamples) @ task / len(task)
    low, high = np.percentile(draws / len(above), _TAILS, axis=0)
    return profile, low, high


def _strata(scores: Strata) -> list[Array]:
    return [np.asarray(x, dtype=np.float64) for x in scores]


def _counts(rng: np.random.Generator, n: int, resamples: int) -> Array:
    """How often each of ``n`` runs appears in each of ``resamples`` draws with replacement."""
    drawn = rng.integers(n, size=(resamples, n)) + n * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=n * resamples).reshape(resamples, n).astype(np.float64)


def _t_quantile(freedom: float) -> float:
    # scipy.stats takes half a second to import; its special functions do not
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))
