"""Updates with numbers that are not finite: what is skipped, what ends the training, and what is said."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from sppo import SPPO, MaskableSPPO, RecurrentSPPO
from sppo.algorithms import finite
from sppo.algorithms.finite import MAX_SKIPPED_IN_A_ROW, NonFiniteError
from sppo.surrogates import SPPO as Surrogate
from sppo.surrogates import Sample
from tests.algorithms.environments import SpaceEnv
from tests.algorithms.small import NET, SMALL, WORST, all_finite

pytestmark = pytest.mark.usefixtures("either_engine")


class Spoil(BaseCallback):
    """Writes a value into the rollout buffer after it was filled."""

    def __init__(self, array: str, index: Any, value: float) -> None:
        super().__init__()
        self._array, self._index, self._value = array, index, value

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        getattr(self.model.rollout_buffer, self._array)[self._index] = self._value


def spoiled(array: str, value: float, where: Any, **options: Any) -> tuple[Any, Any]:
    """A model, and what came of training it with a spoiled buffer."""
    env = make_vec_env(SpaceEnv, n_envs=3, seed=1, env_kwargs={"observation": "vector", "action": "box"})
    model = SPPO("MlpPolicy", env, **{**SMALL, **NET, "normalize_advantage": False, **options})
    before = [weights.clone() for weights in model.policy.parameters()]
    try:
        model.learn(32 * 3, callback=Spoil(array, where, value))
    except NonFiniteError as error:
        return before, (model, error)
    return before, (model, None)


@pytest.mark.parametrize("array", ["observations", "log_probs", "advantages", "returns"])
@pytest.mark.parametrize("value", WORST)
def test_one_bad_sample_costs_its_minibatch(array: str, value: float) -> None:
    """Three environments, 96 samples, 6 minibatches in each of 2 passes: one of each pass is skipped."""
    before, (model, error) = spoiled(array, value, (17, 1), clip_mode="two-sided")
    assert error is None
    # An infinite log-ratio is outside the clip: its sample has no gradient, and the others count.
    clipped = array == "log_probs" and math.isinf(value)
    assert model.logger.name_to_value["train/skipped_updates"] == (0 if clipped else 2)
    assert all_finite(model)
    assert any(not th.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True))
    assert math.isfinite(model.logger.name_to_value["train/loss"])
    assert math.isfinite(model.logger.name_to_value["train/value_loss"])


@pytest.mark.parametrize(
    ("array", "where", "named"),
    [
        ("observations", (slice(None), 2), r"the observation in environment 2 is nan \(step 0"),
        (
            "log_probs",
            (slice(5, None), 1),
            r"the log-probability of the action in environment 1 is nan \(step 5",
        ),
        ("advantages", (slice(None), 0), r"the advantage in environment 0 is nan"),
        ("rewards", (9, 1), r"the reward in environment 1 is nan \(step 9"),
    ],
)
def test_stop_names_what_and_where(array: str, where: Any, named: str) -> None:
    """All minibatches are bad: training stops after the stated number, with the weights untouched."""
    options = {"n_epochs": MAX_SKIPPED_IN_A_ROW, "batch_size": 96}
    if array == "rewards":
        model_before, (model, error) = _spoiled_rewards(where, options)
    else:
        model_before, (model, error) = spoiled(array, math.nan, where, **options)
    assert error is not None
    # The compiled engine counts by passes over the buffer.
    assert int(str(error).split()[0]) in range(MAX_SKIPPED_IN_A_ROW, MAX_SKIPPED_IN_A_ROW + 7)
    assert re.search(named, str(error)), str(error)
    assert all(th.equal(a, b) for a, b in zip(model_before, model.policy.parameters(), strict=True))


def _spoiled_rewards(where: Any, options: dict[str, Any]) -> Any:
    """The reward comes before the advantage that it spoils."""

    class Both(Spoil):
        def _on_rollout_end(self) -> None:
            self.model.rollout_buffer.rewards[where] = math.nan
            self.model.rollout_buffer.advantages[:] = math.nan

    env = make_vec_env(SpaceEnv, n_envs=3, seed=1, env_kwargs={"observation": "vector", "action": "box"})
    model = SPPO("MlpPolicy", env, **{**SMALL, **NET, **options})
    before = [weights.clone() for weights in model.policy.parameters()]
    with pytest.raises(NonFiniteError) as caught:
        model.learn(96, callback=Both("rewards", where, math.nan))
    return before, (model, caught.value)


def test_good_minibatches_start_the_count_anew() -> None:
    guard = finite.FiniteGuard()
    for _ in range(3):
        guard.record(None, MAX_SKIPPED_IN_A_ROW - 1, MAX_SKIPPED_IN_A_ROW - 1)
        guard.record(None, 0, 1)
    assert guard.in_a_row == 0


def test_weights_that_were_broken_before() -> None:
    env = make_vec_env(SpaceEnv, n_envs=1, env_kwargs={"observation": "vector", "action": "box"})
    model = SPPO("MlpPolicy", env, **{**SMALL, **NET, "n_epochs": 30})
    with th.no_grad():
        model.policy.value_net.weight[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match=r"the weights value_net\.weight of the policy"):
        model.learn(64)


@pytest.mark.parametrize("use_softmax", [True, False])
@pytest.mark.parametrize("eta", [None, 0.5])
@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_huge_log_ratios(use_softmax: bool, eta: float | None, shift: float) -> None:
    """Either the surrogate's gradient is finite, or the update is skipped: the weights stay finite."""
    env = make_vec_env(SpaceEnv, n_envs=1, seed=1, env_kwargs={"observation": "vector", "action": "box"})

    class Shift(Spoil):
        def _on_rollout_end(self) -> None:
            self.model.rollout_buffer.log_probs -= shift

    model = SPPO("MlpPolicy", env, **SMALL, **NET, use_softmax=use_softmax, eta=eta)
    model.learn(64, callback=Shift("log_probs", 0, 0.0))
    assert all_finite(model)
    if use_softmax and eta is None:
        # The log-ratio itself is linear: the clip cuts it and nothing overflows.
        assert model.logger.name_to_value["train/skipped_updates"] == 0


@pytest.mark.parametrize("log_ratio", [1e4, -1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_softmax_surrogate_is_finite_at_huge_log_ratios(log_ratio: float, advantage: float) -> None:
    log_prob = th.tensor([log_ratio], requires_grad=True)
    value = Surrogate().objective(Sample(log_prob, th.zeros(1), th.tensor([advantage])))
    value.sum().backward()
    assert th.isfinite(value).all()
    assert log_prob.grad is not None
    assert th.isfinite(log_prob.grad).all()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("size", [1e30, -1e30, 3e38])
def test_huge_advantages(normalize: bool, size: float) -> None:
    """Normalised they are ordinary or, when their variance overflows, zero; raw, the update is skipped."""
    _, (model, error) = spoiled("advantages", size, (slice(None, None, 2), 1), normalize_advantage=normalize)
    assert error is None
    assert all_finite(model)


@pytest.mark.parametrize(
    ("log_std", "named"),
    [
        (-46.0, "the gradient, while .* or the policy's standard deviation too small"),
        (-100.0, "(the gradient, while|the log-probability of the action in environment [01] is)"),
        (100.0, r"the (log-probability of the )?action in environment [01] is"),
    ],
)
def test_extreme_standard_deviation(log_std: float, named: str) -> None:
    """std = 1e-20 has a variance that float32 cannot hold: training stops, and says why."""
    env = make_vec_env(SpaceEnv, n_envs=2, seed=1, env_kwargs={"observation": "vector", "action": "box"})
    model = SPPO("MlpPolicy", env, **{**SMALL, **NET, "n_epochs": 20})
    with th.no_grad():
        model.policy.log_std.fill_(log_std)
    before = [weights.clone() for weights in model.policy.parameters()]
    with pytest.raises(NonFiniteError, match=named):
        model.learn(64)
    assert all(th.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True))


def test_identical_advantages() -> None:
    """Their standard deviation is zero; normalised they are zero, and only the other terms train."""
    before, (model, error) = spoiled("advantages", 2.5, slice(None), normalize_advantage=True, vf_coef=0.0)
    assert error is None
    assert model.logger.name_to_value["train/skipped_updates"] == 0
    assert all(th.allclose(a, b, atol=1e-6) for a, b in zip(before, model.policy.parameters(), strict=True))


@pytest.mark.parametrize("cls", [SPPO, MaskableSPPO, RecurrentSPPO])
def test_batches_of_one(cls: Any) -> None:
    """One sample has no standard deviation: its advantage is used as it is."""
    action = "discrete" if cls is MaskableSPPO else "box"
    policy = "MlpLstmPolicy" if cls is RecurrentSPPO else "MlpPolicy"
    env = make_vec_env(SpaceEnv, n_envs=1, seed=1, env_kwargs={"observation": "vector", "action": action})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = cls(policy, env, **{**SMALL, "n_steps": 9, "batch_size": 4}, **NET).learn(18)
    assert all_finite(model)
    assert model.logger.name_to_value["train/skipped_updates"] == 0


def test_everything_masked_out() -> None:
    """With no action allowed, some action is taken, and training goes on with finite numbers."""

    class NothingAllowed(SpaceEnv):
        def action_masks(self) -> np.ndarray:
            return np.zeros(4, bool)

    env = make_vec_env(NothingAllowed, n_envs=2, seed=1, env_kwargs={"action": "discrete"})
    model = MaskableSPPO("MlpPolicy", env, **SMALL, **NET).learn(128)
    assert all_finite(model)
    assert model.logger.name_to_value["train/skipped_updates"] == 0
    assert np.isfinite(model.rollout_buffer.log_probs).all()
    assert set(model.rollout_buffer.actions.flatten()) <= {0, 1, 2, 3}
