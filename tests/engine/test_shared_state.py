"""Policy and optimizer live where Stable-Baselines3 keeps them, whoever touches them and when."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from sppo import SPPO
from tests.engine.engine_models import flat, make_env, make_model, moments


class Touch(BaseCallback):
    """Does something to the model at one step in the middle of the second rollout."""

    def __init__(self, touch: Callable[[Any], None]) -> None:
        super().__init__()
        self.touch = touch

    def _on_step(self) -> bool:
        if self.n_calls == 60:
            self.touch(self.model)
        return True


def halve_in_place(model: Any) -> None:
    with th.no_grad():
        for parameter in model.policy.parameters():
            parameter.mul_(0.5)


def halve_data(model: Any) -> None:
    for parameter in model.policy.parameters():
        parameter.data.mul_(0.5)


def replace_data(model: Any) -> None:
    for parameter in model.policy.parameters():
        parameter.data = parameter.data * 0.5


def replace_module(model: Any) -> None:
    # The optimizer keeps the old module's parameters, so this module stops learning, in either engine.
    layer = copy.deepcopy(model.policy.action_net)
    with th.no_grad():
        layer.weight.mul_(0.5)
        layer.bias.add_(0.3)
    model.policy.action_net = layer


def set_parameters(model: Any) -> None:
    parameters = model.get_parameters()
    parameters["policy"] = {name: value * 0.5 for name, value in parameters["policy"].items()}
    model.set_parameters(parameters)


def new_optimizer(model: Any) -> None:
    model.policy.optimizer = th.optim.Adam(model.policy.parameters(), lr=1e-3, eps=1e-5)


def scale_moments(model: Any) -> None:
    for parameter in model.policy.parameters():
        model.policy.optimizer.state[parameter]["exp_avg"].mul_(0.1)


def change_eps(model: Any) -> None:
    model.policy.optimizer.param_groups[0]["eps"] = 1e-2


def save_and_go_on(model: Any) -> None:
    model.policy.optimizer.state_dict()
    copy.deepcopy(model.policy.state_dict())


TOUCHES = (
    *(halve_in_place, halve_data, replace_data, replace_module, set_parameters),
    *(new_optimizer, scale_moments, change_eps, save_and_go_on),
)


@pytest.fixture(scope="module")
def untouched() -> np.ndarray:
    return flat(make_model(engine="reference", n_epochs=2).learn(3 * 48 * 3).policy)


# A module put in place of another is not in the optimizer, which is a reason to fall back, with a warning.
@pytest.mark.filterwarnings("ignore:Using the reference engine")
@pytest.mark.parametrize("touch", TOUCHES, ids=lambda touch: touch.__name__)
def test_what_a_callback_does_takes_effect_at_once(
    touch: Callable[[Any], None], untouched: np.ndarray
) -> None:
    """Training with the touch ends where the reference engine's training with the same touch ends."""
    results = {}
    for engine in ("reference", "auto"):
        model = make_model(engine=engine, n_epochs=2)
        model.learn(3 * 48 * 3, callback=Touch(touch))
        results[engine] = flat(model.policy), moments_or_none(model)
    a, b = results["reference"][0], results["auto"][0]
    assert np.linalg.norm(a - b) < 2e-4 * np.linalg.norm(a)
    if touch is not save_and_go_on:
        assert np.linalg.norm(a - untouched) > 20 * np.linalg.norm(a - b), "the touch did nothing"
    for name, values in (results["reference"][1] or {}).items():
        other = results["auto"][1][name]
        np.testing.assert_allclose(other, values, rtol=2e-2, atol=2e-3 * np.abs(values).max())


def moments_or_none(model: Any) -> dict[str, np.ndarray] | None:
    known = all(model.policy.optimizer.state.get(p) for p in model.policy.parameters())
    return moments(model.policy) if known else None


def test_save_and_load_in_the_middle(tmp_path: Path) -> None:
    """A file written after some training continues as the model itself does, and loads in PPO too."""
    model = make_model(engine="fast", n_epochs=2).learn(2 * 144)
    model.save(tmp_path / "model")
    loaded = SPPO.load(tmp_path / "model", env=make_env())
    assert loaded.engine == "fast"
    assert np.array_equal(flat(model.policy), flat(loaded.policy))
    for name, values in moments(model.policy).items():
        assert np.array_equal(values, moments(loaded.policy)[name]), name
    upstream = PPO.load(tmp_path / "model", env=make_env(), device="cpu")
    assert np.array_equal(flat(model.policy), flat(upstream.policy))
    observation = make_env().reset()
    assert np.array_equal(
        model.predict(observation, deterministic=True)[0],
        upstream.predict(observation, deterministic=True)[0],
    )
    upstream.learn(144)
    loaded.learn(144, reset_num_timesteps=False)
    assert moments(loaded.policy)["step"][0] == 3 * 2 * 9


def test_training_goes_on_in_either_engine() -> None:
    """Adam's state is one: updates of the two engines in turn equal those of one of them."""
    mixed = make_model()
    for engine in ("fast", "reference", "fast", "reference"):
        mixed.engine = engine
        mixed.learn(144, reset_num_timesteps=False)
    plain = make_model(engine="reference")
    for _ in range(4):
        plain.learn(144, reset_num_timesteps=False)
    assert np.linalg.norm(flat(mixed.policy) - flat(plain.policy)) < 2e-4 * np.linalg.norm(flat(plain.policy))
    assert np.array_equal(moments(mixed.policy)["step"], moments(plain.policy)["step"])


def test_get_parameters_is_current() -> None:
    model = make_model(engine="fast").learn(144)
    before = copy.deepcopy(model.get_parameters()["policy"])
    model.learn(144)
    after = model.get_parameters()["policy"]
    assert any(not th.equal(before[name], after[name]) for name in before)
    assert np.array_equal(after["action_net.weight"].numpy(), model.policy.action_net.weight.detach().numpy())


def test_copies_are_independent() -> None:
    model = make_model(engine="fast").learn(144)
    parameters = copy.deepcopy(model.policy.state_dict())
    twin = make_model(engine="fast")
    twin.policy.load_state_dict(parameters)
    start = flat(model.policy)
    twin.learn(144)
    assert np.array_equal(flat(model.policy), start)


def test_same_seed_same_result() -> None:
    a, b = (flat(make_model(engine="fast", n_epochs=3).learn(3 * 144).policy) for _ in range(2))
    assert np.array_equal(a, b)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_minibatch_that_is_not_finite_is_left_out(bad: float) -> None:
    model = make_model(engine="fast").learn(144)
    _, callback = model._setup_learn(1000)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    model.rollout_buffer.returns[3, 1] = bad
    steps = moments(model.policy)["step"][0]
    model.train()
    assert np.isfinite(flat(model.policy)).all()
    assert moments(model.policy)["step"][0] == steps + 8, "one of nine minibatches holds the sample"
