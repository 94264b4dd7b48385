"""Fast collection gives the rollouts, statistics and callbacks that Stable-Baselines3's loop gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from sppo import SPPO
from sppo.engine.collect import finish
from sppo.engine.normalize import stepper
from tests.engine.engine_models import make_env, make_model

ARRAYS = (
    "observations",
    "actions",
    "rewards",
    "episode_starts",
    "values",
    "log_probs",
    "advantages",
    "returns",
)
#: what callbacks read of a step
SHOWN = (
    *("obs_tensor", "actions", "clipped_actions", "values", "log_probs"),
    *("new_obs", "rewards", "dones"),
)


class Recorder(BaseCallback):
    """Keeps what a callback is shown at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []
        self.timesteps: list[int] = []

    def _on_step(self) -> bool:
        self.steps.append(dict(self.locals))
        self.timesteps.append(self.num_timesteps)
        return True


def rollout(model: Any, engine: str) -> tuple[Any, Recorder]:
    model.engine = engine
    recorder = Recorder()
    _, callback = model._setup_learn(10_000, recorder)
    arguments = () if not hasattr(model.rollout_buffer, "action_masks") else (True,)
    for _ in range(2):
        assert model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps, *arguments)
    return model.rollout_buffer, recorder


def assert_same(ours: Any, theirs: Any, name: str) -> None:
    """Same kind of array or dictionary of arrays, in shape, type and order, and same numbers to rounding."""
    assert type(ours) is type(theirs), name
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), name
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{name}, {key}")
        return
    assert ours.shape == theirs.shape, name
    assert ours.dtype == theirs.dtype, name
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5, err_msg=name)


def assert_same_rollout(make: Callable[[], Any]) -> tuple[Any, Any]:
    """The models that collected it, the reference one first."""
    first = make()
    reference, shown = rollout(first, "reference")
    # Made only now: a model seeds the generators that all models draw from.
    second = make()
    fast, shown_fast = rollout(second, "fast")
    names = [*ARRAYS, "action_masks"] if hasattr(reference, "action_masks") else ARRAYS
    for name in names:
        assert_same(getattr(fast, name), getattr(reference, name), name)
    assert (reference.pos, reference.full) == (fast.pos, fast.full)
    assert shown.timesteps == shown_fast.timesteps
    for a, b in zip(shown.steps, shown_fast.steps, strict=True):
        for name in SHOWN:
            if name not in a:
                assert name == "clipped_actions", "MaskablePPO has no such variable"
                continue
            assert_same(b[name], a[name], name)
        assert {"self", "env", "infos", "rollout_buffer", "n_steps", "callback"} <= b.keys()
        assert [sorted(info) for info in a["infos"]] == [sorted(info) for info in b["infos"]]
    return first, second


@pytest.mark.parametrize("action", ["box", "matrix", "discrete", "multidiscrete", "multibinary"])
def test_actions(action: str) -> None:
    assert_same_rollout(lambda: make_model(action=action))


@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "multibinary"])
@pytest.mark.parametrize("observation", ["vector", "dict"])
def test_masked_actions(observation: str, action: str) -> None:
    assert_same_rollout(lambda: make_model(observation, action, masked=True))


@pytest.mark.parametrize(
    "observation", ["double", "matrix", "discrete", "multidiscrete", "multibinary", "dict", "dict-vectors"]
)
def test_observations(observation: str) -> None:
    assert_same_rollout(lambda: make_model(observation=observation))


def normalized(observation: str, **kwargs: Any) -> SPPO:
    env = VecNormalize(make_env(observation), gamma=0.9, clip_obs=1.5, clip_reward=2.0, **kwargs)
    policy = "MultiInputPolicy" if observation.startswith("dict") else "MlpPolicy"
    return SPPO(policy, env, n_steps=24, batch_size=24, seed=1, device="cpu")


def statistics(env: VecNormalize) -> list[RunningMeanStd]:
    if not env.norm_obs:
        return [env.ret_rms]
    return [env.ret_rms, *(env.obs_rms.values() if isinstance(env.obs_rms, dict) else [env.obs_rms])]


@pytest.mark.parametrize("options", [{}, {"norm_obs": False}, {"norm_reward": False}, {"training": False}])
@pytest.mark.parametrize(
    ("observation", "keys"),
    [
        ("double", None),
        ("integers", None),
        ("dict-vectors", None),
        ("dict", ["grid", "place"]),
        ("dict", ["apples"]),
        ("dict", []),
    ],
)
def test_vec_normalize(observation: str, keys: list[str] | None, options: dict[str, Any]) -> None:
    """Same statistics, same normalised observations and rewards, same normalised last observations."""
    options = {**options, "norm_obs_keys": keys}
    models = assert_same_rollout(lambda: normalized(observation, **options))
    a, b = (model.get_vec_normalize_env() for model in models)
    assert a is not None
    assert b is not None
    for x, y in zip(statistics(a), statistics(b), strict=True):
        np.testing.assert_allclose(y.mean, x.mean, rtol=1e-6)
        np.testing.assert_allclose(y.var, x.var, rtol=1e-6)
        assert y.count == x.count
        assert np.shape(y.mean) == np.shape(x.mean)
    assert_same(b.get_original_obs(), a.get_original_obs(), "original observations")
    np.testing.assert_allclose(a.get_original_reward(), b.get_original_reward(), rtol=1e-4, atol=1e-5)


def test_statistics_of_different_age_are_kept_apart() -> None:
    """A part whose mean and variance were taken from elsewhere moves less with every step."""
    models = []
    for engine in ("reference", "fast"):
        model = normalized("dict-vectors")
        env = model.get_vec_normalize_env()
        assert env is not None
        assert isinstance(env.obs_rms, dict)
        env.obs_rms["goal"].count = 1000.0
        rollout(model, engine)
        models.append(env)
    for x, y in zip(*map(statistics, models), strict=True):
        np.testing.assert_allclose(y.mean, x.mean, rtol=1e-6)
        assert y.count == x.count


@pytest.mark.parametrize("step", ["subset", "replaced"])
def test_a_normalisation_that_was_changed_by_hand_is_upstreams(step: str) -> None:
    env = VecNormalize(make_env("dict-vectors"))
    assert isinstance(env.obs_rms, dict)
    assert stepper(env) != env.step
    if step == "subset":
        env.norm_obs_keys = ["place"]
    else:
        env.obs_rms["place"] = type("Own", (RunningMeanStd,), {})(shape=(3,))
    assert stepper(env) == env.step


def test_normalized_steps_from_the_same_actions_are_the_same_numbers() -> None:
    ours, theirs = (VecNormalize(make_env("double"), clip_obs=1.5) for _ in range(2))
    assert np.array_equal(ours.reset(), theirs.reset())
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(60):
        actions = rng.uniform(-1, 1, (3, 3)).astype(np.float32)
        a, b = stepper(ours)(actions), theirs.step(actions)
        for x, y in zip(a[:3], b[:3], strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)
        for x, y in zip(a[3], b[3], strict=True):
            if "terminal_observation" in y:
                ended += 1
                np.testing.assert_allclose(x["terminal_observation"], y["terminal_observation"], rtol=1e-6)
        np.testing.assert_allclose(ours.returns, theirs.returns)
    assert ended > 5
    assert isinstance(ours.obs_rms, type(theirs.obs_rms))
    np.testing.assert_allclose(ours.obs_rms.var, theirs.obs_rms.var, rtol=1e-12)
    np.testing.assert_allclose(ours.ret_rms.var, theirs.ret_rms.var, rtol=1e-12)


def test_advantages_are_bit_for_bit_the_buffers() -> None:
    rng = np.random.default_rng(0)
    space = make_env().observation_space
    buffer = RolloutBuffer(50, space, make_env().action_space, "cpu", gae_lambda=0.93, gamma=0.97, n_envs=4)
    for name in ("rewards", "values"):
        setattr(buffer, name, rng.standard_normal((50, 4)).astype(np.float32))
    buffer.episode_starts = (rng.random((50, 4)) < 0.1).astype(np.float32)
    last, dones = rng.standard_normal(4).astype(np.float32), rng.random(4) < 0.5
    buffer.advantages, buffer.returns = np.zeros((2, 50, 4), np.float32)
    finish(buffer, th.as_tensor(last), dones)
    advantages, returns = buffer.advantages.copy(), buffer.returns.copy()
    buffer.compute_returns_and_advantage(th.as_tensor(last), dones)
    assert np.array_equal(advantages, buffer.advantages)
    assert np.array_equal(returns, buffer.returns)


def test_timeouts_are_bootstrapped() -> None:
    """A time limit's last reward carries the value of the state it cut off, a real ending's does not."""
    model = make_model()
    buffer, recorder = rollout(model, "fast")
    cut = 0
    for step in recorder.steps[-model.n_steps :]:
        for index, info in enumerate(step["infos"]):
            stored = buffer.rewards[step["n_steps"], index]
            if info["TimeLimit.truncated"]:
                cut += 1
                last = th.as_tensor(info["terminal_observation"])[None]
                with th.no_grad():
                    value = model.policy.predict_values(last).item()
                assert np.isclose(stored, np.float32(info["height"]) + model.gamma * value, atol=1e-5)
            else:
                assert np.isclose(stored, np.float32(info["height"]))
    assert cut > 3


def test_a_callback_can_end_the_training() -> None:
    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.n_calls < 5

    model = make_model(engine="fast").learn(10_000, callback=Stop())
    assert model.num_timesteps == 5 * model.n_envs
