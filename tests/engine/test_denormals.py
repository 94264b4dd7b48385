"""An update does not compute with denormals, moves no weight by that, and leaves the thread as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch as th
from torch import nn

from sppo.engine.denormals import counts_as_zero, denormals_as_zero
from sppo.engine.fast import FastEngine
from tests.engine.engine_models import filled, flat, make_model, moments

TINY = 1e-39  # denormal, and after Adam's factor of 0.9 still


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = counts_as_zero()
    yield
    th.set_flush_denormal(before)


def with_a_dead_unit(zero: bool = False) -> Any:
    """A model with a hidden unit that no observation has reached so long that its moments are denormal.

    :param zero: whether its incoming weights are exactly zero
    """
    model = make_model(policy_kwargs={"activation_fn": nn.ReLU, "net_arch": [8]}, n_epochs=3, engine="fast")
    model.learn(2 * model.n_steps * model.n_envs)
    first = model.policy.mlp_extractor.policy_net[0]
    with th.no_grad():
        first.bias[0] = -1e3
        first.weight[0] *= not zero
    for parameter, unit in ((first.weight, 0), (first.bias, 0), (model.policy.action_net.weight, (..., 0))):
        model.policy.optimizer.state[parameter]["exp_avg"][unit] = TINY
        model.policy.optimizer.state[parameter]["exp_avg_sq"][unit] = TINY
    return filled(model)


def denormal(numbers: np.ndarray) -> int:
    """How many are; by their bits, because a comparison may take them for zero as well."""
    bits = numbers.view(np.uint32)
    return int(np.sum((bits & 0x7F800000 == 0) & (bits & 0x7FFFFF != 0)))


def updated(model: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    np.random.seed(7)  # noqa: NPY002  (the generator the buffer draws from)
    model.train()
    return flat(model.policy), moments(model.policy)


def test_a_dead_units_moments_become_zero_and_no_weight_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    th.set_flush_denormal(False)
    model = with_a_dead_unit()
    assert denormal(moments(model.policy)["exp_avg"]) > 0
    weights, averages = updated(model)
    monkeypatch.setattr(FastEngine, "update", FastEngine.update.__wrapped__)  # type: ignore[attr-defined]
    plain_weights, plain_averages = updated(with_a_dead_unit())
    for name in ("exp_avg", "exp_avg_sq"):
        assert denormal(averages[name]) == 0 < denormal(plain_averages[name])
    assert np.array_equal(weights, plain_weights)


def test_weights_that_are_exactly_zero_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one difference: with denormals they move, by less than anything can notice."""
    th.set_flush_denormal(False)
    weights, _ = updated(with_a_dead_unit(zero=True))
    monkeypatch.setattr(FastEngine, "update", FastEngine.update.__wrapped__)  # type: ignore[attr-defined]
    plain_weights, _ = updated(with_a_dead_unit(zero=True))
    moved = weights != plain_weights
    assert np.any(moved)
    assert np.all(weights[moved] == 0)
    assert np.abs(plain_weights[moved]).max() < 1e-30


@pytest.mark.parametrize("mode", [False, True])
def test_the_thread_is_left_as_it_was(mode: bool) -> None:
    th.set_flush_denormal(mode)
    with denormals_as_zero():
        assert counts_as_zero()
    assert counts_as_zero() is mode
    with pytest.raises(KeyboardInterrupt), denormals_as_zero():
        raise KeyboardInterrupt
    assert counts_as_zero() is mode
