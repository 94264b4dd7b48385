"""The parameters of trust region, critic and divergence: what is refused, and what files keep of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import PPO

from sppo import SPPO
from tests.engine.engine_models import make_env, make_model


def test_a_steered_eta_is_saved_and_goes_on(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clip_range": None, "eta": "auto", "kl_budget": 0.01}
    model = make_model(**settings, n_epochs=3).learn(600)
    assert model.auto_eta != 1.0
    model.save(tmp_path / "model")
    loaded = SPPO.load(tmp_path / "model", env=make_env())
    assert (loaded.eta, loaded.auto_eta) == ("auto", model.auto_eta)
    assert loaded.current_surrogate().eta == model.auto_eta  # type: ignore[attr-defined]
    model.save_checkpoint(tmp_path / "checkpoint")
    resumed = SPPO.resume(tmp_path / "checkpoint", make_env())
    assert resumed.auto_eta == model.auto_eta


GIVEN: dict[str, Any] = {
    "kl_budget": 0.05,
    "n_critic_epochs": 3,
    "critic_learning_rate": lambda left: 2e-3 * left,
    "recompute_advantages": True,
    "eta": 0.5,
    "divergence": "sampled",
}


def test_parameters_come_back_from_a_file(tmp_path: Path) -> None:
    model = make_model(**GIVEN).learn(144)
    model.save(tmp_path / "model")
    loaded = SPPO.load(tmp_path / "model", env=make_env())
    assert (loaded.n_critic_epochs, loaded.recompute_advantages, loaded.divergence) == (3, True, "sampled")
    assert (loaded.kl_budget(0.3), loaded.critic_learning_rate(0.5)) == (0.05, 1e-3)
    loaded.learn(144)
    # Upstream reads the file, too, and ignores what it does not know.
    assert PPO.load(tmp_path / "model").n_epochs == 1


def test_a_file_from_before_the_exact_divergence_keeps_its_estimate(tmp_path: Path) -> None:
    model = make_model(clip_range=None, eta=0.5)
    assert model.divergence == "exact"
    del model.divergence
    model.save(tmp_path / "old")
    assert SPPO.load(tmp_path / "old").divergence == "sampled"
    PPO("MlpPolicy", make_env(), device="cpu").save(tmp_path / "ppo")
    assert SPPO.load(tmp_path / "ppo", env=make_env()).divergence == "exact"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kl_budget": 0.0}, "kl_budget=.*write kl_budget=0.03"),
        ({"kl_budget": -1.0}, "kl_budget="),
        ({"kl_budget": "0.03"}, "kl_budget="),
        ({"n_critic_epochs": 0}, "n_critic_epochs="),
        ({"n_critic_epochs": 2.5}, "n_critic_epochs="),
        ({"critic_learning_rate": -1e-3}, "critic_learning_rate="),
        ({"recompute_advantages": "yes"}, "recompute_advantages="),
        ({"divergence": "exactly"}, "did you mean exact"),
        ({"eta": "auto"}, "kl_budget=0.03"),
        ({"eta": "automatic", "kl_budget": 0.1}, "eta="),
        ({"clip_range": None}, "kl_budget=0.03"),
    ],
)
def test_impossible_values_say_what_to_write(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_model(**wrong)


def test_a_schedule_that_goes_below_zero_is_refused_when_it_does() -> None:
    model = make_model(kl_budget=lambda left: left - 0.5)
    with pytest.raises(ValueError, match="kl_budget must not be negative"):
        model.learn(1000)
