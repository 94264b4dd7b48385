"""Honest files load in full, or say what they lack: old releases, every policy kind, schedules, our own."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import ConstantSchedule, LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

import sppo
from sppo import SPPO, MaskableRecurrentSPPO, MaskableSPPO, RecurrentSPPO, load_vec_normalize
from sppo.loading import LoadError, inspection
from tests.algorithms.environments import SpaceEnv
from tests.loading.filecraft import FIXTURES

RELEASES = ["2.0.0", "2.3.2", "2.6.0", "2.7.0", "2.9.2"]
KINDS: dict[str, tuple[Any, Any]] = {
    "discrete": (SPPO, PPO),
    "dict": (SPPO, PPO),
    "box-linear": (SPPO, PPO),
    "maskable": (MaskableSPPO, MaskablePPO),
    "recurrent": (RecurrentSPPO, RecurrentPPO),
}
SMALL: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "device": "cpu", "seed": 1}
NET: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}}


class TinyExtractor(BaseFeaturesExtractor):
    """A user's own feature extractor."""

    def __init__(self, observation_space: spaces.Space, features_dim: int = 3, gain: float = 1.0) -> None:
        super().__init__(observation_space, features_dim)
        self.linear = th.nn.Linear(int(np.prod(observation_space.shape)), features_dim)
        self.gain = gain

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.gain * self.linear(observations.flatten(1))


class NamedBox(spaces.Box):
    """A user's own space."""

    def __init__(self, name: str) -> None:
        super().__init__(-1.0, 1.0, (5,), np.float32)
        self.name = name


def environments(observation: str, action: str, n_envs: int = 2) -> VecEnv:
    return make_vec_env(SpaceEnv, n_envs, seed=3, env_kwargs={"observation": observation, "action": action})


def assert_same_model(restored: Any, original: Any) -> None:
    """Weights, optimizer, spaces and all plain parameters."""
    for name, weights in original.policy.state_dict().items():
        assert th.equal(weights, restored.policy.state_dict()[name]), name
    before, after = original.policy.optimizer.state_dict(), restored.policy.optimizer.state_dict()
    assert before["param_groups"] == after["param_groups"]
    for index, state in before["state"].items():
        assert all(
            th.equal(th.as_tensor(state[key]), th.as_tensor(after["state"][index][key])) for key in state
        )
    assert restored.observation_space == original.observation_space
    assert restored.action_space == original.action_space
    assert restored.policy_kwargs == original.policy_kwargs
    skipped = {"_last_obs", "_last_original_obs", "_last_episode_starts", *original._excluded_save_params()}
    for key, value in vars(original).items():
        if isinstance(value, (int, float, str, type(None))) and key not in skipped:
            assert vars(restored)[key] == value, key
    for key in ("learning_rate", "clip_range", "clip_range_vf", "eta", "lr_schedule"):
        if hasattr(original, key):
            assert repr(vars(restored)[key]) == repr(vars(original)[key]), key


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", KINDS)
def test_old_releases(release: str, kind: str) -> None:
    """The weights, the actions and the numbers in the schedules are those that upstream's loader finds."""
    ours, upstream = KINDS[kind]
    path = FIXTURES / f"sb3-{release}-{kind}.zip"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = ours.load(path, device="cpu")
    with warnings.catch_warnings():
        # Unpickling old arrays imports NumPy's old names.
        warnings.simplefilter("ignore")
        theirs = upstream.load(path, device="cpu")
    for name, weights in theirs.policy.state_dict().items():
        assert th.equal(weights, model.policy.state_dict()[name])
    theirs.observation_space.seed(0)
    observation = theirs.observation_space.sample()
    ours_action = model.predict(observation, deterministic=True)[0]
    assert np.array_equal(ours_action, theirs.predict(observation, deterministic=True)[0])
    assert model.observation_space == theirs.observation_space
    for progress in (1.0, 0.8, 0.4, 0.0):
        assert model.lr_schedule(progress) == pytest.approx(theirs.lr_schedule(progress), rel=1e-12)
    if kind == "box-linear":
        # The script that made the file wrote this schedule as a function of its own.
        assert [str(w.message).count("clip_range:") for w in caught] == [1]
        with pytest.raises(ValueError, match=r'custom_objects=\{"clip_range": \.\.\.\}'):
            model.learn(8)
        assert model.clip_range_vf(0.5) == theirs.clip_range_vf(0.5)
    else:
        assert not caught
        assert model.clip_range(0.5) == theirs.clip_range(0.5)


@pytest.mark.parametrize("release", RELEASES)
def test_old_statistics(release: str) -> None:
    path = FIXTURES / f"sb3-{release}-vecnormalize.pkl"
    box = spaces.Box(-1.0, np.array([1.0, np.inf, 2.0], np.float32), (3,), np.float32)

    class Room(gym.Env):
        observation_space = box
        action_space = spaces.Box(-1, 1, (2,), np.float32)

    venv = DummyVecEnv([Room])
    ours = load_vec_normalize(path, venv)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = VecNormalize.load(str(path), venv)
    assert vars(ours).keys() == vars(VecNormalize(venv)).keys()
    observation = np.array([[0.5, 3.0, -1.0]], np.float32)
    assert np.array_equal(ours.normalize_obs(observation), theirs.normalize_obs(observation))
    assert np.array_equal(ours.normalize_reward(np.ones(1)), theirs.normalize_reward(np.ones(1)))
    assert (ours.ret_rms.count, ours.clip_obs, ours.gamma) == (
        theirs.ret_rms.count,
        theirs.clip_obs,
        theirs.gamma,
    )


@pytest.mark.parametrize(
    ("cls", "policy", "observation", "action", "options"),
    [
        (SPPO, "MlpPolicy", "vector", "box", {"eta": 0.5, "clip_range": None}),
        (SPPO, "MlpPolicy", "vector", "multibinary", {"eta": LinearSchedule(1.0, 0.1, 0.5)}),
        (
            SPPO,
            "CnnPolicy",
            "image",
            "discrete",
            {"policy_kwargs": {"features_extractor_kwargs": {"features_dim": 16}}},
        ),
        (SPPO, "MultiInputPolicy", "dict", "multidiscrete", {"clip_range_vf": ConstantSchedule(0.3)}),
        (
            SPPO,
            "MlpPolicy",
            "vector",
            "box",
            {"use_sde": True, "learning_rate": LinearSchedule(1e-3, 0.0, 1.0)},
        ),
        (
            SPPO,
            "MlpPolicy",
            "vector",
            "box",
            {"engine": "reference", "policy_kwargs": {"features_extractor_class": TinyExtractor}},
        ),
        (
            SPPO,
            "MlpPolicy",
            "vector",
            "box",
            {
                "policy_kwargs": {
                    "activation_fn": th.nn.SiLU,
                    "optimizer_class": th.optim.AdamW,
                    "optimizer_kwargs": {"weight_decay": 0.01, "betas": (0.9, 0.99)},
                    "net_arch": {"pi": [8, 4], "vf": []},
                    "ortho_init": False,
                }
            },
        ),
        (MaskableSPPO, "MlpPolicy", "vector", "discrete", {"use_softmax": False}),
        (MaskableSPPO, "MultiInputPolicy", "dict", "discrete", {"clip_mode": "one-sided"}),
        (RecurrentSPPO, "MlpLstmPolicy", "vector", "box", {"policy_kwargs": {"lstm_hidden_size": 4}}),
        (
            RecurrentSPPO,
            "MultiInputLstmPolicy",
            "dict",
            "discrete",
            {"policy_kwargs": {"lstm_hidden_size": 4}},
        ),
        (
            MaskableRecurrentSPPO,
            "MlpLstmPolicy",
            "vector",
            "discrete",
            {"policy_kwargs": {"lstm_hidden_size": 4}},
        ),
    ],
)
def test_what_we_save_loads_in_full(
    cls: Any, policy: str, observation: str, action: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """No warning (warnings are errors here), nothing lost, and training goes on as if never interrupted."""
    venv = environments(observation, action)
    model = cls(policy, venv, **{**SMALL, **NET, **options}).learn(32)
    model.save(tmp_path / "model")
    restored = cls.load(tmp_path / "model", env=venv, device="cpu")
    assert_same_model(restored, model)
    assert "_left_out" not in vars(restored)
    assert list(restored.ep_info_buffer) == list(model.ep_info_buffer)
    lines, complete = inspection.report((tmp_path / "model.zip").read_bytes(), "model.zip")
    assert complete, "\n".join(lines)
    trusted = cls.load(tmp_path / "model", env=environments(observation, action), device="cpu", trust=True)
    trusted.set_random_seed(5)
    trusted.learn(32, reset_num_timesteps=False)
    again = cls.load(tmp_path / "model", env=environments(observation, action), device="cpu")
    again.set_random_seed(5)
    again.learn(32, reset_num_timesteps=False)
    for name, weights in trusted.policy.state_dict().items():
        assert th.equal(weights, again.policy.state_dict()[name]), name


def test_spaces_of_all_kinds() -> None:
    import cloudpickle

    from sppo.loading.budget import Budget
    from sppo.loading.pickletree import parse
    from sppo.loading.rebuild import Rebuilder

    def rebuilt(raw: bytes) -> Any:
        return Rebuilder(parse(raw, Budget(len(raw)))).root()

    nested = spaces.Dict(
        {
            "z": spaces.Dict(
                {"y": spaces.Discrete(3, start=-1), "x": spaces.MultiDiscrete([[2, 3], [4, 5]])}
            ),
            "a": spaces.MultiBinary([2, 3]),
            "u": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "i": spaces.Box(-5, 5, (), np.int64),
            "f": spaces.Box(np.array([-np.inf, 0.0]), np.array([1.0, np.inf]), dtype=np.float64),
        }
    )
    for seed in (None, 7):
        nested.seed(seed)
        restored = rebuilt(cloudpickle.dumps(nested))
        assert restored == nested
        assert repr(restored) == repr(nested)
        assert restored.sample().keys() == nested.sample().keys()
    mine = NamedBox("lidar")
    restored = rebuilt(cloudpickle.dumps(mine))
    assert type(restored) is NamedBox
    assert restored == mine
    assert restored.name == "lidar"


def test_lambda_is_left_out_and_asked_for(tmp_path: Path) -> None:
    env = environments("vector", "box")
    options = {"learning_rate": lambda left: 1e-3 * left**2, "eta": lambda left: 1 + left**2}
    model = SPPO("MlpPolicy", env, **SMALL, **NET, **options).learn(32)
    model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match="eta: the function .*; learning_rate: the function") as caught:
        loaded = SPPO.load(tmp_path / "model", env=env)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    observation = env.reset()
    assert np.array_equal(
        loaded.predict(observation, deterministic=True)[0], model.predict(observation, deterministic=True)[0]
    )
    before = {name: weights.clone() for name, weights in loaded.policy.state_dict().items()}
    with pytest.raises(ValueError, match=r'custom_objects=\{"eta": \.\.\., "learning_rate": \.\.\.\}'):
        loaded.learn(32)
    assert all(th.equal(before[name], weights) for name, weights in loaded.policy.state_dict().items())

    # Saved again, it still asks; a file that somebody trusts, or completes, trains.
    loaded.save(tmp_path / "again")
    with pytest.warns(UserWarning, match="learning_rate"):
        again = SPPO.load(tmp_path / "again", env=env)
    with pytest.raises(ValueError, match="learning_rate"):
        again.learn(32)
    SPPO.load(tmp_path / "again", env=env, trust=True, learning_rate=1e-3, eta=1.0).learn(32)
    SPPO.load(tmp_path / "model", env=env, custom_objects={"learning_rate": 1e-3, "eta": 1.0}).learn(32)
    SPPO.load(tmp_path / "model", env=env, learning_rate=1e-3, eta=None).learn(32)
    trusted = SPPO.load(tmp_path / "model", env=env, trust=True).learn(32)
    assert trusted.lr_schedule(0.5) == 2.5e-4


def test_optimizer_that_is_not_imported(tmp_path: Path) -> None:
    """As with any other class of the policy, the error says what to import or to give."""

    class Mine(th.optim.SGD):
        pass

    env = environments("vector", "box")
    kwargs = {"optimizer_class": Mine, "optimizer_kwargs": {"momentum": 0.9}, "net_arch": [8]}
    model = SPPO("MlpPolicy", env, **SMALL, engine="reference", policy_kwargs=kwargs).learn(32)
    model.save(tmp_path / "model")
    with pytest.raises(LoadError, match=r"Mine.*custom_objects=\{\"policy_kwargs\": \.\.\.\}"):
        SPPO.load(tmp_path / "model")
    SPPO.load(tmp_path / "model", env=env, custom_objects={"policy_kwargs": kwargs}).learn(32)


def test_extractor_that_is_not_imported(tmp_path: Path) -> None:
    """Without the network's code there is no model; the error says what to import or to give."""

    class Hidden(TinyExtractor):
        pass

    env = environments("vector", "box")
    kwargs = {"features_extractor_class": Hidden, "net_arch": [8]}
    SPPO("MlpPolicy", env, **SMALL, policy_kwargs=kwargs).save(tmp_path / "model")
    with pytest.raises(LoadError, match=r"Hidden.*custom_objects=\{\"policy_kwargs\": \.\.\.\}"):
        SPPO.load(tmp_path / "model")
    SPPO.load(tmp_path / "model", custom_objects={"policy_kwargs": kwargs}).predict(env.reset())


def test_upstream_behaviour_is_kept(tmp_path: Path) -> None:
    env = environments("vector", "box")
    model = SPPO("MlpPolicy", env, **SMALL, **NET).learn(32)
    model.save(tmp_path / "model")
    with (tmp_path / "model.zip").open("rb") as file:
        assert SPPO.load(file, env=env, force_reset=False)._last_obs is not None
    assert SPPO.load(io.BytesIO((tmp_path / "model.zip").read_bytes()), env=env)._last_obs is None
    assert SPPO.load(str(tmp_path / "model"), verbose=1, n_steps=4).n_steps == 4
    with pytest.raises(ValueError, match="Observation spaces do not match"):
        SPPO.load(tmp_path / "model", env=environments("image", "box"))
    with pytest.raises(ValueError, match="policy kwargs"):
        SPPO.load(tmp_path / "model", policy_kwargs={"net_arch": [3]})
    with pytest.raises(FileNotFoundError):
        SPPO.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="custom_objects"):
        SPPO.load(tmp_path / "model", custom_objects=[])
    assert PPO.load(tmp_path / "model").policy is not None


def test_print_system_info(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SPPO("MlpPolicy", environments("vector", "box"), **SMALL, **NET).save(tmp_path / "model")
    SPPO.load(tmp_path / "model", print_system_info=True)
    printed = capsys.readouterr().out
    assert "SAVED MODEL SYSTEM INFO" in printed
    assert printed.count("Stable-Baselines3") >= 2


def test_set_parameters_reads_files_safely(tmp_path: Path) -> None:
    env = environments("vector", "box")
    model, other = (SPPO("MlpPolicy", env, **{**SMALL, "seed": seed}, **NET) for seed in (1, 2))
    model.save(tmp_path / "model")
    other.set_parameters(tmp_path / "model.zip")
    assert th.equal(other.policy.action_net.weight, model.policy.action_net.weight)
    (tmp_path / "torn.zip").write_bytes((tmp_path / "model.zip").read_bytes()[:5000])
    with pytest.raises(LoadError, match="torn"):
        other.set_parameters(tmp_path / "torn.zip")


@pytest.mark.parametrize("observation", ["vector", "dict"])
def test_our_statistics(observation: str, tmp_path: Path) -> None:
    keys = {"norm_obs_keys": ["position"]} if observation == "dict" else {}
    venv = VecNormalize(environments(observation, "box"), gamma=0.9, **keys)
    policy = "MultiInputPolicy" if observation == "dict" else "MlpPolicy"
    SPPO(policy, venv, **SMALL, **NET).learn(32)
    path = tmp_path / "statistics.pkl"
    venv.save(str(path))
    ours = load_vec_normalize(path, environments(observation, "box"))
    theirs = load_vec_normalize(path, environments(observation, "box"), trust=True)
    assert ours.norm_obs_keys == theirs.norm_obs_keys
    for _ in range(3):
        a, b = ours.reset(), theirs.reset()
        assert all(np.array_equal(x, y) for x, y in zip(_parts(a), _parts(b), strict=True))
    assert inspection.report(path.read_bytes(), "statistics.pkl")[1]
    assert sppo.load_vec_normalize is load_vec_normalize


def _parts(observations: Any) -> list[np.ndarray]:
    return list(observations.values()) if isinstance(observations, dict) else [observations]


def test_inspect_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sppo.cli import main

    assert main(["inspect", str(FIXTURES / "sb3-2.9.2-discrete.zip")]) == 0
    assert "restores all of it" in capsys.readouterr().out
    assert main(["inspect", str(FIXTURES / "sb3-2.6.0-box-linear.zip")]) == 1
    printed = capsys.readouterr().out
    assert "LEFT OUT" in printed
    assert "__main__.linear_schedule.<locals>.func, with its code" in printed
    assert main(["inspect", str(tmp_path / "nothing.zip")]) == 1
    (tmp_path / "bad.pkl").write_bytes(b"cos\nsystem\n(S'echo hello'\ntR.")
    assert main(["inspect", str(tmp_path / "bad.pkl")]) == 1
    assert "calls os.system('echo hello')" in capsys.readouterr().out
