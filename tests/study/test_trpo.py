"""The study's TRPO is sb3-contrib's: what it collects, learns and logs is the same to rounding."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch as th
from sb3_contrib import TRPO
from stable_baselines3.common.logger import configure

from sppo.algorithms.finite import NonFiniteError
from sppo.engine.fast import FastEngine
from sppo.records.config import RunConfig
from sppo.records.parameters import algorithm_settings, defaults
from sppo.study import training
from tests.study.trained_runs import small_config


def config_of(**parameters: Any) -> RunConfig:
    values = {**defaults(algorithm_settings("trpo")), "n_steps": 64, "batch_size": 48, **parameters}
    return replace(small_config("Hopper-v5"), cls="trpo", algorithm="trpo", parameters=values)


def made(config: RunConfig) -> TRPO:
    model = training.make_model(config)
    assert isinstance(model, TRPO)
    model.set_logger(configure(None, []))
    return model


def trained(config: RunConfig) -> TRPO:
    return made(config).learn(3 * 64 * config.n_envs)


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_rollouts_weights_and_log_are_those_of_upstreams_own_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three iterations, with a last minibatch that is smaller."""
    config = config_of()
    with warnings.catch_warnings():
        # Of a mean over losses that upstream has not seen.
        warnings.simplefilter("error", RuntimeWarning)
        ours = trained(config)
    monkeypatch.setattr(training, "algorithm_class", lambda _: TRPO)
    monkeypatch.setattr(FastEngine, "collect", None)
    monkeypatch.setattr(FastEngine, "fit_values", None)
    theirs = trained(config)
    assert type(theirs) is TRPO
    for name in ("observations", "actions", "rewards", "values", "log_probs", "advantages", "returns"):
        mine, other = (getattr(model.rollout_buffer, name) for model in (ours, theirs))
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-3, err_msg=name)
    for mine, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), rtol=1e-3, atol=1e-4)
    log, expected = ours.logger.name_to_value, theirs.logger.name_to_value
    assert log.keys() == expected.keys()
    assert "train/value_loss" in log
    for name in (name for name in log if name.startswith("train/")):
        np.testing.assert_allclose(log[name], expected[name], rtol=1e-2, atol=1e-6, err_msg=name)
    assert ours.n_critic_updates == theirs.n_critic_updates


def test_what_the_engine_does_not_cover_is_trained_by_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastEngine, "collect", None)
    monkeypatch.setattr(FastEngine, "fit_values", None)
    trained(config_of(use_sde=True, batch_size=64))


def test_a_loss_of_the_critic_that_is_not_finite_ends_the_training() -> None:
    """Upstream would go on with weights that are not finite; here the last good ones are kept."""
    model = made(config_of(batch_size=64, learning_rate=1e30))
    with pytest.raises(NonFiniteError, match="minibatches of the critic"):
        model.learn(1280)
    assert all(th.isfinite(weights).all() for weights in model.policy.parameters())
