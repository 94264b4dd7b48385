"""The estimators equal hand-computed numbers, SciPy's and rliable's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from sppo.report import statistics

REFERENCE = json.loads(Path(__file__).with_name("rliable_reference.json").read_text())


def columns(matrix: list[list[float]]) -> list[np.ndarray]:
    return list(np.array(matrix).T)


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda c: f"{len(c['x'])}x{len(c['x'][0])}")
class TestAgainstRliable:
    """Point estimates to rounding; bounds up to the noise of two independent sets of resamples."""

    def test_interquartile_mean(self, case: dict) -> None:
        ours = statistics.interquartile_mean(columns(case["x"]), resamples=20_000)
        value, low, high = case["iqm"]
        assert ours.value == pytest.approx(value, rel=1e-12)
        assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.04 * (high - low))

    def test_probability_of_improvement(self, case: dict) -> None:
        ours = statistics.probability_of_improvement(columns(case["x"]), columns(case["y"]), resamples=20_000)
        value, low, high = case["improvement"]
        assert ours.value == pytest.approx(value, rel=1e-12)
        assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.05 * (high - low))

    def test_performance_profile(self, case: dict) -> None:
        ours = statistics.performance_profile(columns(case["x"]), case["thresholds"], resamples=20_000)
        step = 1 / np.size(case["x"])
        np.testing.assert_allclose(ours[0], case["profile"][0], atol=1e-12)
        # a profile moves in steps of one run, so a percentile may land one step away
        np.testing.assert_allclose(ours[1:], case["profile"][1:], atol=step + 1e-12)


def test_interquartile_mean_by_hand() -> None:
    # 8 runs: two cut at either end
    assert statistics.interquartile_mean([[1, 2, 3, 4], [5, 6, 7, 800]]).value == pytest.approx(4.5)
    # 5 runs: one cut at either end
    assert statistics.interquartile_mean([[0, 10, 20, 30, 1000]]).value == pytest.approx(20)


def test_every_task_has_the_same_weight() -> None:
    """Four copies of each run of one task change nothing, as they would if runs were pooled as they are."""
    few, many = [0.0, 1.0], [2.0, 5.0]
    even = statistics.interquartile_mean([few * 4, many * 4]).value
    assert statistics.interquartile_mean([few * 4, many * 8]).value == pytest.approx(even)
    # masses 1/4 each for the first task, 1/6 each for the second; 1/5 is cut at either end
    by_hand = (0.05 * 0 + 0.25 * 1 + 0.30 * 2) / 0.6
    assert statistics.interquartile_mean([[0, 1], [2, 2, 3]]).value == pytest.approx(by_hand)


def test_probability_of_improvement_by_hand() -> None:
    # task 1: wins 3 > 1, 3 > 2, 2 > 1, one tie: (3 + 1/2) / 4; task 2: never
    value = statistics.probability_of_improvement([[3, 2], [0]], [[1, 2], [9, 9]]).value
    assert value == pytest.approx((3.5 / 4 + 0) / 2)


def test_mean_interval_is_student_t() -> None:
    x = np.array([[1.0, 5.0], [2.0, 5.5], [4.0, 9.0]])
    mean, low, high = statistics.mean_interval(x)
    expected = scipy.stats.t.interval(0.95, 2, loc=x.mean(0), scale=scipy.stats.sem(x, axis=0))
    np.testing.assert_allclose(mean, x.mean(0))
    np.testing.assert_allclose((low, high), expected)


def test_difference_is_welch() -> None:
    x, y = [1.0, 2.0, 4.0, 9.0], [0.5, 0.7, 3.0]
    ours = statistics.difference(x, y)
    expected = scipy.stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((expected.low, expected.high))
    assert ours.value == pytest.approx(4 - 1.4)


def test_weighted_sums_have_welchs_interval() -> None:
    """The mean of two tasks is half the difference of one and the other's negative."""
    x, y = np.array([1.0, 2.0, 4.0, 9.0]), np.array([0.5, 0.7, 3.0])
    ours = statistics.weighted_sum([x, y], [0.5, 0.5])
    expected = scipy.stats.ttest_ind(x, -y, equal_var=False).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((expected.low / 2, expected.high / 2))


def test_bootstrap_agrees_with_scipy() -> None:
    """One task is the plain percentile bootstrap that SciPy has."""
    x = np.random.default_rng(1).gamma(2, size=24)
    ours = statistics.interquartile_mean([x], resamples=20_000)
    theirs = scipy.stats.bootstrap(
        (x,),
        lambda values, axis: scipy.stats.trim_mean(values, 0.25, axis=axis),
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.04 * width)


def test_resampling_is_within_tasks() -> None:
    """Two tasks without any spread have no uncertainty, however far apart they are."""
    estimate = statistics.interquartile_mean([[0, 0, 0], [100, 100, 100]])
    assert (estimate.low, estimate.high) == pytest.approx((estimate.value, estimate.value), abs=1e-9)


def test_one_run_has_no_interval() -> None:
    assert not statistics.interquartile_mean([[1.0], [2.0, 3.0]]).has_interval
    assert not statistics.probability_of_improvement([[1.0]], [[2.0, 3.0]]).has_interval
    assert not statistics.difference([1.0], [2.0, 3.0]).has_interval
    assert np.isnan(statistics.mean_interval([[3.0, 4.0]])[1]).all()
    assert np.isnan(statistics.performance_profile([[0.5]], [0.1, 0.9])[1]).all()


def test_same_seed_same_interval() -> None:
    x = [np.arange(9.0)]
    assert statistics.interquartile_mean(x) == statistics.interquartile_mean(x)
    assert statistics.interquartile_mean(x, seed=1) != statistics.interquartile_mean(x)


def test_different_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        statistics.probability_of_improvement([[1.0]], [[1.0], [2.0]])


RUNS = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=6)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(RUNS, RUNS), min_size=1, max_size=4))
def test_improvement_is_antisymmetric_and_the_middle_lies_between(tasks: list) -> None:
    x, y = [a for a, _ in tasks], [b for _, b in tasks]
    there = statistics.probability_of_improvement(x, y, resamples=10).value
    back = statistics.probability_of_improvement(y, x, resamples=10).value
    assert there + back == pytest.approx(1)
    middle = statistics.interquartile_mean(x, resamples=10).value
    flat = [value for task in x for value in task]
    assert min(flat) - 1e-9 <= middle <= max(flat) + 1e-9
