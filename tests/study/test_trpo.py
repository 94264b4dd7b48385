"""The study's TRPO is sb3-contrib's: what its rollouts hold, and so its policy, are the same to rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sb3_contrib import TRPO

from sppo.engine.fast import FastEngine
from sppo.records.config import RunConfig
from sppo.records.parameters import algorithm_settings, defaults
from sppo.study import training
from tests.study.trained_runs import small_config


def config_of(**parameters: Any) -> RunConfig:
    values = {**defaults(algorithm_settings("trpo")), "n_steps": 64, "batch_size": 32, **parameters}
    return replace(small_config("Hopper-v5"), cls="trpo", algorithm="trpo", parameters=values)


def trained(config: RunConfig) -> TRPO:
    model = training.make_model(config)
    assert isinstance(model, TRPO)
    return model.learn(3 * 64 * config.n_envs)


def test_rollouts_and_weights_are_those_of_upstreams_own_program(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of()
    ours = trained(config)
    monkeypatch.setattr(training, "algorithm_class", lambda _: TRPO)
    monkeypatch.setattr(FastEngine, "collect", None)
    theirs = trained(config)
    assert type(theirs) is TRPO
    for name in ("observations", "actions", "rewards", "values", "log_probs", "advantages", "returns"):
        mine, other = (getattr(model.rollout_buffer, name) for model in (ours, theirs))
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-3, err_msg=name)
    for mine, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), rtol=1e-3, atol=1e-4)


def test_what_the_engine_does_not_cover_is_collected_by_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastEngine, "collect", None)
    trained(config_of(use_sde=True))
