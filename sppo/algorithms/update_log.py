"""What the logger is told about an update."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch as th
from stable_baselines3.common.utils import explained_variance

from sppo.algorithms.trust_region import Halves
from sppo.engine.measurements import UpdateStatistics
from sppo.surrogates import Surrogate

if TYPE_CHECKING:
    from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm


def record_update(
    model: SurrogateAlgorithm,
    surrogate: Surrogate,
    clip_range_vf: float | None,
    halves: Halves,
    statistics: UpdateStatistics,
) -> None:
    """Record upstream's keys, then what shows how the surrogate behaves."""
    values, returns = model.rollout_buffer.values.flatten(), model.rollout_buffer.returns.flatten()
    average = statistics.averages()
    with np.errstate(all="ignore"):
        explained = explained_variance(values, returns)
    record = model.logger.record
    record("train/entropy_loss", average["entropy_loss"])
    record("train/policy_gradient_loss", average["policy_loss"])
    record("train/value_loss", average["value_loss"])
    record("train/approx_kl", average["approx_kl"])
    record("train/clip_fraction", average["clipped_above"] + average["clipped_below"])
    record("train/loss", average["loss"])
    record("train/explained_variance", explained)
    if hasattr(model.policy, "log_std"):
        record("train/std", th.exp(model.policy.log_std).mean().item())
    record("train/n_updates", model._n_updates, exclude="tensorboard")
    if clip_range_vf is not None:
        record("train/clip_range_vf", clip_range_vf)
    for name, parameter in surrogate.parameters().items():
        if parameter.kind == "schedule" and getattr(surrogate, name) is not None:
            record(f"train/{name}", getattr(surrogate, name))

    if halves.region is not None:
        record("train/kl", halves.region.kl)
        record("train/kl_budget", halves.region.budget)
    if halves.apart:
        samples = model.n_steps * model.n_envs
        record("train/actor_epochs", halves.actor_steps / -(-samples // model.batch_size))
    if halves.critic_learning_rate is not None:
        record("train/critic_learning_rate", halves.critic_learning_rate)
    record("train/engine", model.engine_in_use, exclude="tensorboard")
    record("train/skipped_updates", statistics.skipped)
    record("train/clip_fraction_above", average["clipped_above"])
    record("train/clip_fraction_below", average["clipped_below"])
    record("train/log_ratio_abs_mean", average["log_ratio_mean"])
    record("train/log_ratio_abs_max", average["log_ratio_max"])
    for name, value in statistics.further().items():
        record(f"train/{name}", value)
