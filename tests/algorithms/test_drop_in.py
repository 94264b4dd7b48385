"""What people do with Stable-Baselines3's PPO keeps working with the classes in its place."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

import sppo
from sppo import SPPO, MaskableSPPO, RecurrentSPPO
from tests.algorithms.environments import SpaceEnv

SMALL: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "seed": 3}
PARENTS = {SPPO: PPO, MaskableSPPO: MaskablePPO, RecurrentSPPO: RecurrentPPO}
POLICIES = {SPPO: "MlpPolicy", MaskableSPPO: "MlpPolicy", RecurrentSPPO: "MlpLstmPolicy"}
LSTM: dict[str, Any] = {"policy_kwargs": {"lstm_hidden_size": 8}}
CLASSES = pytest.mark.parametrize("algorithm", PARENTS, ids=lambda cls: cls.__name__)


def small_env(n_envs: int = 2, **kwargs: Any) -> Any:
    return make_vec_env(SpaceEnv, n_envs=n_envs, seed=5, env_kwargs={"action": "discrete", **kwargs})


def make(algorithm: type[BaseAlgorithm], **kwargs: Any) -> BaseAlgorithm:
    recurrent = LSTM if issubclass(algorithm, RecurrentPPO) else {}
    return algorithm(POLICIES[algorithm], small_env(), **{**SMALL, **recurrent, **kwargs})


def weights(model: BaseAlgorithm) -> dict[str, th.Tensor]:
    return {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}


def same(first: dict[str, th.Tensor], second: dict[str, th.Tensor]) -> bool:
    return first.keys() == second.keys() and all(th.equal(first[name], second[name]) for name in first)


@CLASSES
def test_signature_is_the_parents_plus_keyword_only(algorithm: type[BaseAlgorithm]) -> None:
    parent = inspect.signature(PARENTS[algorithm]).parameters
    ours = inspect.signature(algorithm).parameters
    assert list(ours)[: len(parent)] == list(parent)
    assert all(ours[name].default == parameter.default for name, parameter in parent.items())
    new = {name: ours[name] for name in list(ours)[len(parent) :]}
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in new.values())
    assert new["use_softmax"].default is True
    assert new["eta"].default is None
    assert new["clip_mode"].default == "one-sided"
    assert issubclass(algorithm, PARENTS[algorithm])


def test_subclasses_keep_their_own_signature() -> None:
    class Mine(SPPO):
        def __init__(self, env: Any, verbose: int = 0) -> None:
            super().__init__("MlpPolicy", env, verbose=verbose)

    assert list(inspect.signature(Mine).parameters) == ["env", "verbose"]


def test_positional_arguments_are_the_parents() -> None:
    model = SPPO("MlpPolicy", small_env(), 1e-3, 64, 32, 5)
    assert (model.learning_rate, model.n_steps, model.batch_size, model.n_epochs) == (1e-3, 64, 32, 5)


@CLASSES
@pytest.mark.parametrize("use_softmax", [True, False])
def test_a_file_of_ours_loads_here_and_upstream(
    algorithm: type[BaseAlgorithm], use_softmax: bool, tmp_path: Path
) -> None:
    model = make(algorithm, use_softmax=use_softmax, eta=0.5, clip_mode="one-sided").learn(64)
    model.save(tmp_path / "model.zip")
    again = algorithm.load(tmp_path / "model.zip", env=small_env())
    assert same(weights(model), weights(again))
    assert (again.use_softmax, again.clip_mode, again.eta(1.0)) == (use_softmax, "one-sided", 0.5)
    again.learn(64)

    upstream = PARENTS[algorithm].load(tmp_path / "model.zip", env=small_env())
    assert same(weights(model), weights(upstream))
    upstream.learn(64)


@CLASSES
def test_an_upstream_file_loads_here_with_the_stated_defaults(
    algorithm: type[BaseAlgorithm], tmp_path: Path
) -> None:
    recurrent = LSTM if algorithm is RecurrentSPPO else {}
    parent = PARENTS[algorithm](POLICIES[algorithm], small_env(), **SMALL, **recurrent).learn(64)
    parent.save(tmp_path / "model")
    model = algorithm.load(tmp_path / "model", env=small_env())
    assert same(weights(parent), weights(model))
    assert (model.use_softmax, model.eta, model.clip_mode) == (True, None, "one-sided")
    assert model.clip_range(1.0) == 0.2
    model.learn(64)
    kept = algorithm.load(tmp_path / "model", use_softmax=False)
    assert kept.use_softmax is False


def test_a_clipless_file_loads_upstream_and_clips_nothing(tmp_path: Path) -> None:
    make(SPPO, clip_range=None, eta=1.0).save(tmp_path / "model")
    assert PPO.load(tmp_path / "model").clip_range(1.0) == float("inf")
    assert SPPO.load(tmp_path / "model").surrogate_name == "SMDPO"


def test_files_hold_nothing_that_needs_this_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone without sppo can load the file with plain PPO: blocked here by poisoned imports."""
    make(SPPO, eta=LinearSchedule(1.0, 0.1, 1.0), policy_kwargs={"net_arch": [8]}).save(
        tmp_path / "model.zip"
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "sppo"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError):
        importlib.import_module("sppo.surrogates")
    # A value that cannot be read is a warning upstream, and warnings are errors here.
    PPO.load(tmp_path / "model.zip")
    monkeypatch.undo()
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        data = json.loads(archive.read("data"))
    assert {"use_softmax", "eta", "clip_mode"} <= data.keys()


def test_get_and_set_parameters() -> None:
    source, target = make(SPPO).learn(64), make(SPPO, seed=4)
    assert not same(weights(source), weights(target))
    target.set_parameters(source.get_parameters())
    assert same(weights(source), weights(target))


def test_set_env_and_continue() -> None:
    model = make(SPPO).learn(64)
    model.set_env(small_env())
    before = weights(model)
    model.learn(64, reset_num_timesteps=False)
    assert model.num_timesteps == 128
    assert not same(before, weights(model))


def test_callbacks(tmp_path: Path) -> None:
    class Counter(BaseCallback):
        calls = 0

        def _on_step(self) -> bool:
            self.calls += 1
            return True

    counter = Counter()
    model = make(SPPO)
    callbacks = [
        counter,
        EvalCallback(
            small_env(1),
            eval_freq=20,
            n_eval_episodes=2,
            best_model_save_path=str(tmp_path / "best"),
            verbose=0,
        ),
        CheckpointCallback(save_freq=20, save_path=str(tmp_path / "checkpoints")),
    ]
    model.learn(64, callback=callbacks)
    assert counter.calls == 32
    assert (tmp_path / "best" / "best_model.zip").is_file()
    checkpoints = sorted((tmp_path / "checkpoints").glob("*.zip"))
    assert len(checkpoints) == 1
    SPPO.load(checkpoints[0])


def test_vec_normalize_round_trip(tmp_path: Path) -> None:
    env = VecNormalize(small_env())
    model = SPPO("MlpPolicy", env, **SMALL).learn(64)
    model.save(tmp_path / "model")
    env.save(str(tmp_path / "statistics.pkl"))
    loaded = VecNormalize.load(str(tmp_path / "statistics.pkl"), small_env())
    again = SPPO.load(tmp_path / "model", env=loaded)
    assert np.array_equal(loaded.obs_rms.mean, env.obs_rms.mean)
    again.learn(64)
    mean, _ = evaluate_policy(again, loaded, n_eval_episodes=2)
    assert np.isfinite(mean)


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_progress_bar(capfd: pytest.CaptureFixture[str]) -> None:
    make(SPPO).learn(64, progress_bar=True)
    output = capfd.readouterr()
    assert "64/64" in output.out + output.err


def test_custom_policy_and_features() -> None:
    class Features(BaseFeaturesExtractor):
        def __init__(self, observation_space: gym.Space, features_dim: int = 7) -> None:
            super().__init__(observation_space, features_dim)
            assert observation_space.shape is not None
            self.layer = th.nn.Linear(observation_space.shape[0], features_dim)

        def forward(self, observations: th.Tensor) -> th.Tensor:
            return self.layer(observations)

    class Policy(ActorCriticPolicy):
        pass

    model = SPPO(
        Policy, small_env(), **SMALL, policy_kwargs={"features_extractor_class": Features, "net_arch": [8]}
    )
    before = weights(model)
    model.learn(64)
    assert not same(before, weights(model))


def test_environment_name_and_device() -> None:
    model = SPPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=1, device="auto").learn(32)
    action, _ = model.predict(model.get_env().reset(), deterministic=True)
    assert action.shape == (1,)


@CLASSES
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "SPPO"),
        ({"use_softmax": False}, "PPO"),
        ({"clip_range": None, "eta": 1.0}, "SMDPO"),
        ({"clip_range": None, "eta": 1.0, "use_softmax": False}, "MDPO"),
    ],
)
def test_runs_are_named_after_the_surrogate(
    algorithm: type[BaseAlgorithm], options: dict[str, Any], name: str, tmp_path: Path
) -> None:
    prefix = algorithm.__name__.removesuffix("SPPO")
    make(algorithm, tensorboard_log=str(tmp_path), **options).learn(64)
    assert [path.name for path in tmp_path.iterdir()] == [f"{prefix}{name}_1"]


def test_run_name_can_be_given(tmp_path: Path) -> None:
    make(SPPO, tensorboard_log=str(tmp_path)).learn(64, tb_log_name="mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine_1"]


def test_logged_keys() -> None:
    upstream = PPO("MlpPolicy", small_env(), **SMALL).learn(64)
    ours = make(SPPO, eta=2.0).learn(64)
    upstream_keys, our_keys = set(upstream.logger.name_to_value), set(ours.logger.name_to_value)
    assert upstream_keys <= our_keys
    assert our_keys - upstream_keys == {
        "train/engine",
        "train/clip_fraction_above",
        "train/clip_fraction_below",
        "train/skipped_updates",
        "train/log_ratio_abs_mean",
        "train/log_ratio_abs_max",
        "train/eta",
        "train/eta_term",
    }


def test_logged_log_ratio_matches_the_policies() -> None:
    """With one pass in one minibatch at the old policy every log-ratio is zero; later ones are not."""
    model = make(SPPO, batch_size=64, n_epochs=1, learning_rate=1e-2).learn(64)
    assert model.logger.name_to_value["train/log_ratio_abs_max"] == pytest.approx(0.0, abs=1e-5)
    model = make(SPPO, batch_size=64, n_epochs=2, learning_rate=1e-2).learn(64)
    values = model.logger.name_to_value
    assert 0 < values["train/log_ratio_abs_mean"] < values["train/log_ratio_abs_max"]


@CLASSES
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": 0.0}, r"eta=0\.0 is too small: must be above 0"),
        ({"eta": -1.0}, "eta=None"),
        ({"eta": float("nan")}, "eta=nan is not a number"),
        ({"eta": "0.1"}, r"eta='0\.1' is neither a number nor a function"),
        ({"eta": "lin_0.1"}, r"eta='lin_0\.1' is neither a number nor a function"),
        ({"use_softmax": "no"}, "use_softmax='no' is neither true nor false"),
        ({"use_softmax": 0}, "use_softmax=0 is neither true nor false"),
        ({"clip_range": 0.0}, r"clip_range=0\.0 is too small"),
        ({"clip_range": "wide"}, "clip_range='wide' is "),
        ({"clip_range": -0.2}, "clip_range=None"),
        ({"clip_range": None}, "neither a clip nor eta"),
        ({"clip_mode": "both"}, "clip_mode='both' is none of one-sided, two-sided, symmetric"),
        ({"surrogate": "spppo"}, r"did you mean sppo\?.*write one of ppo, sppo"),
        ({"surrogate": "no_such_module:Spo"}, "no_such_module"),
        ({"surrogate": "json:JSONDecoder"}, "no subclass of sppo.surrogates.Surrogate"),
        ({"clip_mode": "symmetric"}, "use_softmax=False"),
    ],
)
def test_bad_parameters_say_what_to_write(
    algorithm: type[BaseAlgorithm], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(algorithm, **options)


@CLASSES
def test_unknown_parameters_are_named_with_what_was_meant(algorithm: type[BaseAlgorithm]) -> None:
    with pytest.raises(TypeError, match=rf"{algorithm.__name__}\(softmax=.*did you mean use_softmax\?"):
        make(algorithm, softmax=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("clip_mode", "two-sidded"), ("engine", "quick"), ("eta", -1.0), ("use_softmax", "no")],
)
def test_bad_parameters_are_refused_if_set_later(name: str, value: Any) -> None:
    """Not taken for something else."""
    model = make(SPPO)
    setattr(model, name, value)
    with pytest.raises(ValueError, match=f"{value}|neither"):
        model.learn(64)


def test_bad_parameters_are_refused_at_load_too(tmp_path: Path) -> None:
    make(SPPO).save(tmp_path / "model")
    with pytest.raises(ValueError, match="neither a clip nor eta"):
        SPPO.load(tmp_path / "model", clip_range=None)


def test_eta_schedule_that_ends_at_zero_is_refused_in_time() -> None:
    model = make(SPPO, eta=lambda left: left)
    with pytest.raises(ValueError, match=r"let its schedule end above zero.*progress_remaining=0"):
        model.learn(64)


def test_schedules_of_clip_and_eta_are_followed() -> None:
    model = make(SPPO, eta=lambda left: 1.0 + left, clip_range=lambda left: 0.1 + left).learn(128)
    assert model.logger.name_to_value["train/eta"] == pytest.approx(1.0)
    assert model.logger.name_to_value["train/clip_range"] == pytest.approx(0.1)


def test_importing_the_package_is_light() -> None:
    """``sppo.exact`` and ``sppo.bandits`` stand alone because this holds."""
    code = "import sys, sppo; sys.exit(any(name in sys.modules for name in ('torch', 'stable_baselines3')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    assert {"SPPO", "MaskableSPPO", "RecurrentSPPO"} <= set(dir(sppo))
    with pytest.raises(AttributeError, match="no attribute 'PPO'"):
        sppo.PPO  # noqa: B018


@pytest.mark.parametrize("options", [{}, {"clip_range": None, "eta": 1.0}])
def test_sppo_learns_cartpole(options: dict[str, Any]) -> None:
    """Every member of the softmax family improves a policy: random play scores about 20."""
    model = SPPO("MlpPolicy", make_vec_env("CartPole-v1", 4, seed=0), n_steps=128, seed=0, **options)
    model.learn(12_000)
    mean, _ = evaluate_policy(model, make_vec_env("CartPole-v1", 1, seed=1), n_eval_episodes=5)
    assert mean > 100
