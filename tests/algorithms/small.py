"""Trainings that take a moment."""

from __future__ import annotations

import math
from typing import Any

import torch as th

SMALL: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "seed": 3, "device": "cpu"}
NET: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}}
LSTM: dict[str, Any] = {"policy_kwargs": {"net_arch": [8], "lstm_hidden_size": 8}}
#: numbers that are not finite
WORST = (math.nan, math.inf, -math.inf)


def all_finite(model: Any) -> bool:
    return all(bool(th.isfinite(weights).all()) for weights in model.policy.parameters())
