"""The vector exponential and logarithm are as good as the C library's, to two units in the last place."""

import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from sppo.exact import vectors


@njit
def _exponentials(x, out):
    for i in range(0, x.shape[1], vectors.WIDTH):
        vectors.store(out, 0, i, vectors.exp(vectors.load(x, 0, i)))


@njit
def _logarithms(x, out):
    for i in range(0, x.shape[1], vectors.WIDTH):
        vectors.store(out, 0, i, vectors.log(vectors.load(x, 0, i)))


@njit
def _arithmetic(x, y, out):
    a, b = vectors.load(x, 0, 0), vectors.load(y, 0, 0)
    vectors.store(out, 0, 0, (a + 2.0 * b - 1.0 / a) / b)
    vectors.store(out, 1, 0, vectors.maximum(a, b))
    vectors.store(out, 2, 0, vectors.if_less(a, b, vectors.splat(1.0), vectors.splat(0.0)))
    return vectors.total(a), vectors.differs(a, b), vectors.differs(a, a)


def _row(*parts):
    x = np.concatenate(parts)
    return np.append(x, np.full(-x.size % vectors.WIDTH, x[-1]))[None]


def test_exponential_is_accurate_over_its_range():
    x = _row(np.linspace(-689.0, 690.0, 40_001), -np.logspace(-18, 0, 2001), [0.0])
    out = np.empty_like(x)
    _exponentials(x, out)
    exact = np.exp(x.astype(np.longdouble))
    assert np.max(np.abs(out / exact - 1)) < 2 * np.finfo(float).eps


def test_exponential_has_a_floor_instead_of_subnormal_numbers():
    x = _row([-np.inf, -1e308, -700.0, -690.0, 0.0])
    out = np.empty_like(x)
    _exponentials(x, out)
    assert out[0, :3] == pytest.approx(np.exp(-690.0), rel=1e-14)
    assert out[0, 4] == 1.0


def test_logarithm_is_accurate_relative_to_its_value():
    x = _row(np.linspace(1.0, 9.0, 40_001), np.logspace(-300, 300, 4001), 1 + np.logspace(-15, -1, 500))
    out = np.empty_like(x)
    _logarithms(x, out)
    exact = np.log(x.astype(np.longdouble))
    scale = np.where(exact == 0, 1, np.abs(exact))
    assert np.max(np.abs(out - exact) / scale) < 2 * np.finfo(float).eps


def test_operators_work_lane_by_lane():
    rng = np.random.default_rng(0)
    x, y = rng.random((1, 8)) + 0.1, rng.random((1, 8)) + 0.1
    out = np.empty((3, 8))
    total, differ, same = _arithmetic(x, y, out)
    a, b = x[0], y[0]
    assert out == pytest.approx(np.stack([(a + 2 * b - 1 / a) / b, np.maximum(a, b), a < b]))
    assert total == pytest.approx(a.sum())
    assert differ
    assert not same


def test_floats_stay_numbas_own_after_something_was_compiled():
    # Registered late, when Numba has its tables, an operation of floats alone would replace Numba's.
    program = """
import numba
assert numba.njit(lambda x: x + 1.0)(1.0) == 2.0
import sppo.exact.vectors
assert numba.njit(lambda x: x * 2.0 + x)(3.0) == 9.0
"""
    subprocess.run([sys.executable, "-c", program], check=True)
