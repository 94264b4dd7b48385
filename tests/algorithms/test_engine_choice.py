"""What a training's start leaves out, and that nothing of it is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sppo import SPPO
from tests.forks import Forks

CODE = """
import sys
import torch as th
from sppo import SPPO

before = vars(th.optim.Optimizer.add_param_group.__wrapped__).copy()
model = SPPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=1, device="cpu").learn(64)
assert model.engine_in_use == "fast"
assert "torch._dynamo" not in sys.modules
assert vars(th.optim.Optimizer.add_param_group.__wrapped__) == before
model.engine = "reference"
model.learn(64)
assert model.engine_in_use == "reference"
th.optim.Adam(model.policy.parameters())
"""


def test_a_fast_training_does_without_torchs_compiler_and_a_reference_one_follows(
    fresh_process: Forks, tmp_path: Path
) -> None:
    """A second and 70 MB of every start; in a process of its own, because the compiler stays once loaded."""
    done = fresh_process.run(CODE, tmp_path)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    "settings",
    [
        {"kl_budget": 0.03},
        {"n_critic_epochs": 2},
        {"critic_learning_rate": 1e-3},
        {"recompute_advantages": True},
    ],
    ids=str,
)
def test_auto_is_fast_for_a_ppo_that_upstream_does_not_have(settings: dict[str, Any]) -> None:
    small: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 1, "device": "cpu"}
    model = SPPO("MlpPolicy", "CartPole-v1", use_softmax=False, **small, **settings).learn(32)
    assert model.engine_in_use == "fast"
