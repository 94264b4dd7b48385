"""The fast engine's update is the reference loop's, to float32 rounding, for all that it covers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch as th
from torch import nn

from sppo.compiled import njit
from sppo.engine import networks
from tests.engine.engine_models import flat, make_model, update_once

SURROGATES: dict[str, dict[str, Any]] = {
    "sppo": {},
    "sppo-one-sided": {"clip_mode": "one-sided"},
    "smdpo": {"clip_range": None, "eta": 0.5},
    "smdpo-sampled": {"clip_range": None, "eta": 0.5, "divergence": "sampled"},
    "sppo+eta": {"eta": 0.5},
    "sppo-one-sided+eta": {"eta": 2.0, "clip_mode": "one-sided"},
    "ppo": {"use_softmax": False},
    "ppo-symmetric": {"use_softmax": False, "clip_mode": "symmetric"},
    "mdpo": {"use_softmax": False, "clip_range": None, "eta": 0.5},
    "mdpo-sampled": {"use_softmax": False, "clip_range": None, "eta": 0.5, "divergence": "sampled"},
    "constrained": {"clip_range": None, "kl_budget": 1e-3, "n_epochs": 3},
    "constrained-mdpo": {"use_softmax": False, "clip_range": None, "eta": "auto", "kl_budget": 1e-3},
    "ppo+eta": {"use_softmax": False, "eta": 0.5},
}

NETWORKS: dict[str, dict[str, Any]] = {
    "default": {},
    "relu": {"activation_fn": nn.ReLU},
    "linear": {"net_arch": []},
    "one-layer": {"net_arch": [7]},
    "deep": {"net_arch": [8, 6, 5, 4]},
    "uneven": {"net_arch": {"pi": [10], "vf": [12, 6, 3]}},
    "value-only": {"net_arch": {"vf": [12]}},
    "wide": {"net_arch": [256, 256]},
    "own-extractors": {"share_features_extractor": False},
    "low-std": {"log_std_init": -1.5},
    "adam": {"optimizer_kwargs": {"eps": 1e-8, "betas": (0.8, 0.95), "weight_decay": 0.01}},
}

SETTINGS: dict[str, dict[str, Any]] = {
    "truncated-minibatch": {"batch_size": 40},
    "single-last-sample": {"batch_size": 11},
    "one-minibatch": {"batch_size": 144},
    "raw-advantage": {"normalize_advantage": False},
    "value-clip": {"clip_range_vf": 0.2, "vf_coef": 0.8},
    "entropy": {"ent_coef": 0.05},
    "loose-gradient": {"max_grad_norm": 1e6},
    "tight-gradient": {"max_grad_norm": 1e-3},
    "schedules": {"learning_rate": lambda left: 2e-3 * left, "clip_range": lambda left: 0.1 + 0.1 * left},
    "passes": {"n_epochs": 4},
    "target-kl": {"n_epochs": 6, "target_kl": 3e-3, "learning_rate": 5e-3},
    "budget": {"n_epochs": 4, "kl_budget": 2e-3, "learning_rate": 3e-3},
    "critic-passes": {"n_epochs": 1, "n_critic_epochs": 4},
    "actor-passes": {"n_epochs": 3, "n_critic_epochs": 1},
    "critic-rate": {"n_epochs": 2, "critic_learning_rate": lambda left: 5e-3 * left, "max_grad_norm": 0.1},
    "fresh-advantages": {"n_epochs": 3, "recompute_advantages": True, "clip_range_vf": 0.2},
    "everything": {
        "n_epochs": 3,
        "n_critic_epochs": 5,
        "kl_budget": 2e-3,
        "critic_learning_rate": 3e-3,
        "recompute_advantages": True,
        "clip_range": None,
        "eta": "auto",
    },
}


def assert_same_update(model: Any, tolerance: float = 1e-5) -> dict[str, float]:
    """Compare one update of a model that has been trained a little, so that no state is trivial."""
    model.engine = "fast"
    model.learn(2 * model.n_steps * model.n_envs)
    start = flat(model.policy)
    # Weights that have moved since the rollout, as they have in an update's later passes.
    generator = th.Generator().manual_seed(0)
    with th.no_grad():
        for parameter in model.policy.parameters():
            parameter += 0.02 * th.randn(parameter.shape, generator=generator)
    a, reference, expected = update_once(model, "reference")
    b, fast, logged = update_once(model, "fast")
    assert np.linalg.norm(a - start) > 1e-4 * np.linalg.norm(start), "nothing was learnt"
    assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(a)
    np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * np.abs(a).mean())
    for name, values in reference.items():
        atol = 1e-4 * np.abs(values).max()
        np.testing.assert_allclose(fast[name], values, rtol=1e-3, atol=atol, err_msg=name)
    assert logged.keys() == expected.keys()
    for name, value in expected.items():
        assert math.isclose(logged[name], value, rel_tol=2e-4, abs_tol=2e-6), name
    return expected


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("action", ["box", "discrete", "multidiscrete", "multibinary"])
def test_surrogates_and_actions(surrogate: str, action: str) -> None:
    assert_same_update(make_model(action=action, ent_coef=0.01, **SURROGATES[surrogate]))


@pytest.mark.parametrize("surrogate", ["sppo", "ppo", "smdpo", "mdpo", "constrained"])
@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "multibinary"])
def test_masks(surrogate: str, action: str) -> None:
    model = make_model(action=action, masked=True, ent_coef=0.01, **SURROGATES[surrogate])
    assert_same_update(model)
    assert 0 < model.rollout_buffer.action_masks.mean() < 1


@pytest.mark.parametrize("network", NETWORKS)
def test_networks(network: str) -> None:
    assert_same_update(make_model(policy_kwargs=dict(NETWORKS[network])))


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings(setting: str) -> None:
    logged = assert_same_update(make_model(**SETTINGS[setting]))
    if setting == "target-kl":
        assert logged["train/n_updates"] < SETTINGS[setting]["n_epochs"], "the limit was never reached"


@pytest.mark.parametrize(
    "observation",
    ["double", "matrix", "integers", "discrete", "multidiscrete", "multibinary", "dict", "dict-vectors"],
)
def test_observations(observation: str) -> None:
    assert_same_update(make_model(observation=observation, action="discrete"))


@pytest.mark.parametrize("surrogate", ["sppo", "smdpo", "constrained"])
@pytest.mark.parametrize("masked", [False, True])
def test_dictionaries(surrogate: str, masked: bool) -> None:
    model = make_model("dict", "multidiscrete", masked=masked, ent_coef=0.01, **SURROGATES[surrogate])
    assert_same_update(model)


@pytest.mark.parametrize("setting", ["budget", "critic-passes", "fresh-advantages", "everything"])
def test_settings_with_dictionaries(setting: str) -> None:
    assert_same_update(make_model("dict", **SETTINGS[setting]))


def test_dictionaries_with_an_extractor_for_each_network() -> None:
    assert_same_update(make_model("dict", policy_kwargs=dict(NETWORKS["own-extractors"])))


def test_image_observations_in_a_flat_network() -> None:
    assert_same_update(make_model(observation="image"))


def test_clip_is_reached_on_both_sides() -> None:
    """Otherwise the comparisons above would say nothing of the clip."""
    logged = assert_same_update(make_model(clip_range=0.02))
    assert logged["train/clip_fraction_above"] > 0.05
    assert logged["train/clip_fraction_below"] > 0.05


@njit(cache=False)
def tanh_of(values: np.ndarray) -> np.ndarray:
    """The networks' tanh of each element."""
    out = np.empty_like(values)
    for j in range(values.shape[0]):
        out[j] = networks._tanh(values[j])
    return out


def test_tanh_is_accurate() -> None:
    x = np.concatenate([np.linspace(-12, 12, 200_001), np.logspace(-8, 0, 1000)]).astype(np.float32)
    exact = np.tanh(x.astype(np.float64))
    error = np.abs(tanh_of(x) - exact)
    assert np.all(error <= 5e-7 * np.abs(exact))
    assert np.all(np.isnan(tanh_of(np.array([np.nan], np.float32))))
