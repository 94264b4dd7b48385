"""A surrogate that somebody adds works like the family's own, from one class."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from torch.distributions import kl_divergence

import sppo
from sppo import SPPO, MaskableSPPO, RecurrentSPPO
from sppo.cli import main
from sppo.surrogates import REGISTRY, Sample, Surrogate, find, parameter
from sppo.surrogates.family import ClipMode, DivergenceMode
from tests.surrogates.spo import SPO

SMALL: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "seed": 3, "device": "cpu"}
PATH = "tests.surrogates.spo:SPO"


def test_it_is_found_by_its_name_and_by_its_place() -> None:
    assert find("spo") is find(PATH) is REGISTRY["spo"] is SPO


def test_its_gradient_is_what_the_formula_says() -> None:
    """d/dr of A x - w |A| (x - 1)^2 / (2 c) is x (A - w |A| (x - 1) / c)."""
    log_ratio = th.linspace(-1, 1, 9, dtype=th.float64).requires_grad_()
    advantage = th.tensor([1.0, -2.0, 0.5] * 3, dtype=th.float64)
    value = SPO(0.3, 0.7).objective(Sample(log_ratio, th.zeros_like(log_ratio), advantage))
    (gradient,) = th.autograd.grad(value.sum(), log_ratio)
    x = log_ratio.detach().exp()
    assert th.allclose(gradient, x * (advantage - 0.7 * advantage.abs() * (x - 1) / 0.3))


def test_it_trains_and_logs_and_survives_a_file(tmp_path: Path) -> None:
    model = SPPO("MlpPolicy", "CartPole-v1", surrogate=PATH, clip_range=0.3, weight=2.0, **SMALL)
    before = model.policy.action_net.weight.detach().clone()
    model.learn(64)
    assert not th.equal(before, model.policy.action_net.weight)
    assert model.surrogate_name == "SPO"
    assert model.engine_in_use == "reference"
    logged = model.logger.name_to_value
    assert logged["train/clip_range"] == 0.3
    assert logged["train/ratio_spread"] > 0
    model.save(tmp_path / "model")
    again = SPPO.load(tmp_path / "model", env=model.get_env())
    assert again.current_surrogate() == SPO(0.3, 2.0)
    again.learn(64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -1.0}, r"weight=-1\.0 is too small"),
        ({"weight": "2"}, "weight='2' is not a number"),
        ({"eta": 1.0}, "has no such parameter"),
        ({"clip_mode": "two-sided"}, "has no such parameter"),
    ],
)
def test_its_parameters_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SPPO("MlpPolicy", "CartPole-v1", surrogate=PATH, **SMALL, **options)


def test_its_parameters_are_its_own() -> None:
    with pytest.raises(TypeError, match=r"SPPO\(weight=.*unknown key"):
        SPPO("MlpPolicy", "CartPole-v1", weight=1.0, **SMALL)


@dataclass(frozen=True)
class Wide(SPO):
    """Has another default for a parameter that upstream has as well."""

    name = "wide"

    clip_range: float = parameter(0.5, "schedule", "where the penalty turns the slope", low=0, above=True)


def test_its_defaults_are_its_own(tmp_path: Path) -> None:
    def current(**options: Any) -> Surrogate:
        return SPPO("MlpPolicy", "CartPole-v1", surrogate="wide", **options, **SMALL).current_surrogate()

    assert current() == Wide(0.5, 1.0)
    assert current(clip_range=0.1) == Wide(0.1, 1.0)
    PPO("MlpPolicy", "CartPole-v1", **SMALL).save(tmp_path / "ppo")
    assert SPPO.load(tmp_path / "ppo", surrogate="wide").current_surrogate() == Wide(0.2, 1.0)


@dataclass(frozen=True)
class Near(sppo.surrogates.PPO):
    """Has other defaults for parameters that the algorithms name as well."""

    name = "near"

    eta: float | None = parameter(0.7, "schedule", "step size", low=0, above=True, nullable=True)
    divergence: DivergenceMode = parameter("sampled", "choice", "", choices=("exact", "sampled"))
    clip_mode: ClipMode = parameter("symmetric", "choice", "", choices=("one-sided", "symmetric"))


def test_its_defaults_are_its_own_where_the_algorithms_have_others(tmp_path: Path) -> None:
    def current(**options: Any) -> Surrogate:
        return SPPO("MlpPolicy", "CartPole-v1", surrogate="near", **options, **SMALL).current_surrogate()

    assert current() == Near(eta=0.7, divergence="sampled", clip_mode="symmetric")
    said: dict[str, Any] = {"eta": None, "divergence": "exact", "clip_mode": "one-sided"}
    assert current(**said) == Near(**said)
    PPO("MlpPolicy", "CartPole-v1", **SMALL).save(tmp_path / "ppo")
    assert SPPO.load(tmp_path / "ppo", surrogate="near").current_surrogate() == Near()


def test_check_says_what_it_says() -> None:
    model = SPPO("MlpPolicy", "CartPole-v1", surrogate=PATH, weight=0.0, **SMALL)
    assert any("weight=0 keeps the policy nowhere" in finding for finding in sppo.check(model, warn=False))


@dataclass(frozen=True)
class ExactKL(Surrogate):
    """A - KL(pi_t || pi) in closed form, and what it saw."""

    name = "exact-kl"
    title = "exact KL"
    colour = "#000000"
    needs_distributions = True

    eta: float = parameter(1.0, "schedule", "step size", low=0, above=True)

    def objective(self, sample: Sample) -> th.Tensor:
        return sample.advantage * sample.log_ratio - self._divergence(sample) / self.eta

    def measured(self, sample: Sample) -> dict[str, th.Tensor]:
        assert sample.distribution is not None
        assert sample.old_distribution is not None
        return {
            "exact_kl": self._divergence(sample).mean(),
            "samples": th.tensor(1.0 * len(sample.log_ratio)),
        }

    @staticmethod
    def _divergence(sample: Sample) -> th.Tensor:
        assert sample.distribution is not None
        assert sample.old_distribution is not None
        return kl_divergence(sample.old_distribution.distribution, sample.distribution.distribution)


@pytest.mark.parametrize("algorithm", [SPPO, MaskableSPPO, RecurrentSPPO])
def test_it_may_ask_for_both_distributions(algorithm: type[SPPO]) -> None:
    """The divergence begins at zero, in every state, and is that of the policies before and after."""
    policy = "MlpLstmPolicy" if algorithm is RecurrentSPPO else "MlpPolicy"

    def all_allowed(env: Any) -> np.ndarray:
        return np.ones(2, bool)

    env = make_vec_env(
        "CartPole-v1", 2, seed=0, wrapper_class=ActionMasker, wrapper_kwargs={"action_mask_fn": all_allowed}
    )
    options = {**SMALL, "batch_size": 64, "n_epochs": 1, "learning_rate": 1e-2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = algorithm(policy, env, surrogate="exact-kl", eta=1.0, **options)
        model.learn(64)
        logged = dict(model.logger.name_to_value)
        assert logged["train/exact_kl"] == pytest.approx(0.0, abs=1e-7)
        assert logged["train/samples"] == 64
        model.n_epochs = 2
        model.learn(64)
    # The second pass sees one step away from the old policy, as approx_kl does (its mean is over that pass).
    assert 2 * model.logger.name_to_value["train/exact_kl"] == pytest.approx(
        model.logger.name_to_value["train/approx_kl"], rel=0.5
    )


STUDY = """
name = "spo"
environments = ["CartPole-v1"]
seeds = "0:2"
total_timesteps = 512
n_envs = 2
evaluations = 2
eval_episodes = 1

[normalize]
rewards = false

[parameters]
n_steps = 64
n_epochs = 2

[grid]
clip_range = [0.2, 0.4]

[algorithms.ppo]
use_softmax = false

[algorithms.spo]
surrogate = "tests.surrogates.spo:SPO"
weight = 2.0
"""


def test_a_study_names_what_is_wrong_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spo.toml"
    file.write_text(STUDY.replace("weight = 2.0", "weight = -2.0"))
    assert main(["study", "plan", str(file)]) != 0
    assert "weight: -2.0 is too small" in capsys.readouterr().err


def test_the_example_in_contributing_is_this_one() -> None:
    root = Path(__file__).parents[2]
    blocks = re.findall(r"```python\n(.*?)```", (root / "CONTRIBUTING.md").read_text(), re.DOTALL)
    source = (root / "tests" / "surrogates" / "spo.py").read_text()
    assert blocks[0] in source
    assert blocks[0].startswith("from __future__")
