"""The exported policy does what ``predict`` does, in a runtime that knows nothing of PyTorch."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from sppo import SPPO, MaskableRecurrentSPPO, MaskableSPPO, RecurrentSPPO, cli, export_onnx

VECTOR = spaces.Box(-1.0, 1.0, (5,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
SEVERAL = spaces.Dict(
    {
        "position": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
        "camera": IMAGE,
        "action": spaces.Discrete(4),
        "switches": spaces.MultiBinary(4),
        "cards": spaces.MultiDiscrete([4, 3]),
    }
)
LIMITED = spaces.Box(np.array([-1, -0.5, -2], np.float32), np.array([0.5, 2, 1], np.float32))
ACTIONS = [LIMITED, spaces.Discrete(4), spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(3)]
FINITE = ACTIONS[1:]
Outputs = dict[str, np.ndarray]


class Rooms(gym.Env):
    """Observations from a space, at random."""

    def __init__(self, observation: spaces.Space, action: spaces.Space) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 1.0, False, False, {}


def lively(model: Any) -> Any:
    """With weights that make actions differ, and leave some of them outside of the limits."""
    generator = th.Generator().manual_seed(3)
    with th.no_grad():
        for name, weights in model.policy.named_parameters():
            scale = 2 / np.sqrt(weights[0].numel()) if weights.ndim > 1 and name != "log_std" else 0.3
            weights.copy_(scale * th.randn(weights.shape, generator=generator))
    return model


def made(
    cls: type, policy: str, action: spaces.Space, observation: spaces.Space = VECTOR, **arguments: Any
) -> Any:
    return lively(cls(policy, Rooms(observation, action), seed=0, device="cpu", **arguments))


def batch(space: spaces.Space, n: int, seed: int = 0) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: batch(part, n, seed) for key, part in space.spaces.items()}
    space.seed(seed)
    return np.stack([space.sample() for _ in range(n)])


def ran(path: Path, observation: Any, **others: np.ndarray) -> Outputs:
    """The outputs by name; a dictionary's key that is also an output's name has a prefix."""
    session = onnxruntime.InferenceSession(path)
    parts = observation if isinstance(observation, dict) else {"observation": observation}
    names = {key: "observation.action" if key == "action" else key for key in parts}
    inputs = {names[key]: np.asarray(part) for key, part in parts.items()}
    inputs = {
        key: part.astype(np.float32) if part.dtype == np.float64 else part for key, part in inputs.items()
    }
    outputs = session.run(None, inputs | others)
    return dict(zip([output.name for output in session.get_outputs()], outputs, strict=True))


def same(exported: np.ndarray, expected: np.ndarray) -> None:
    """Equal where a choice is made, and to float32's rounding where a number is computed."""
    assert exported.shape == expected.shape
    assert exported.dtype == expected.dtype
    assert np.ptp(expected) > 0 or expected.size == 1, "nothing to tell apart"
    tolerance = 1e-5 if exported.dtype == np.float32 else 0
    np.testing.assert_allclose(exported, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda space: type(space).__name__)
def test_actions_values_and_distributions_of_every_kind_of_action(
    action: spaces.Space, tmp_path: Path
) -> None:
    model = made(SPPO, "MlpPolicy", action)
    export_onnx(model, tmp_path / "policy.onnx", value=True, distribution=True)
    for n in (1, 7, 200):
        observation = batch(VECTOR, n)
        outputs = ran(tmp_path / "policy.onnx", observation)
        expected, _ = model.predict(observation, deterministic=True)
        if n > 1:
            same(outputs["action"], expected)
        np.testing.assert_allclose(outputs["action"], expected, atol=1e-5)
        with th.no_grad():
            tensor = th.as_tensor(observation)
            same(outputs["value"], model.policy.predict_values(tensor).flatten().numpy())
            inner: Any = model.policy.get_distribution(tensor).distribution
        if action is LIMITED:
            same(outputs["mean"], inner.mean.numpy())
            same(outputs["std"], inner.stddev.numpy())
        else:
            groups = inner if isinstance(inner, list) else [inner]
            same(outputs["logits"], np.concatenate([group.logits.numpy() for group in groups], axis=1))
    if action is LIMITED:
        assert np.any(expected == LIMITED.low), "no action reached its limit"
        assert np.any((expected > LIMITED.low) & (expected < LIMITED.high))


@pytest.mark.parametrize(
    ("policy", "observation"),
    [
        ("MultiInputPolicy", SEVERAL),
        ("CnnPolicy", IMAGE),
        ("MlpPolicy", spaces.Discrete(6)),
    ],
    ids=["dict", "image", "discrete"],
)
def test_every_kind_of_observation(policy: str, observation: spaces.Space, tmp_path: Path) -> None:
    model = made(SPPO, policy, LIMITED, observation)
    export_onnx(model, tmp_path / "policy.onnx")
    for n in (1, 7):
        given = batch(model.observation_space, n)
        same(ran(tmp_path / "policy.onnx", given)["action"], model.predict(given, deterministic=True)[0])


@pytest.mark.parametrize("squash", [False, True])
def test_state_dependent_exploration_and_squashed_actions(squash: bool, tmp_path: Path) -> None:
    limits = spaces.Box(-2.0, 3.0, (3,), np.float32)
    model = made(SPPO, "MlpPolicy", limits, use_sde=True, policy_kwargs={"squash_output": squash})
    export_onnx(model, tmp_path / "policy.onnx", distribution=True)
    observation = batch(VECTOR, 7)
    outputs = ran(tmp_path / "policy.onnx", observation)
    same(outputs["action"], model.predict(observation, deterministic=True)[0])
    with th.no_grad():
        inner = model.policy.get_distribution(th.as_tensor(observation)).distribution
    same(outputs["std"], inner.stddev.numpy())


@pytest.mark.parametrize("action", FINITE, ids=lambda space: type(space).__name__)
@pytest.mark.parametrize("memory", [False, True])
def test_masks(action: spaces.Space, memory: bool, tmp_path: Path) -> None:
    model = (
        made(MaskableRecurrentSPPO, "MlpLstmPolicy", action)
        if memory
        else made(MaskableSPPO, "MlpPolicy", action)
    )
    signature = export_onnx(model, tmp_path / "policy.onnx")
    _, width = signature["inputs"]["action_masks"]["shape"]
    sizes = {"Discrete": [4], "MultiDiscrete": [3, 2], "MultiBinary": [2, 2, 2]}[type(action).__name__]
    generator = np.random.default_rng(0)
    for n in (1, 50):
        # Of each group one choice is always allowed.
        masks = generator.random((n, width)) < 0.4
        for group in np.split(np.arange(width), np.cumsum(sizes)[:-1]):
            masks[np.arange(n), generator.choice(group, n)] = True
        observation = batch(VECTOR, n)
        action_, _ = model.predict(observation, deterministic=True, action_masks=masks)
        states = {name: np.zeros((1, n, 256), np.float32) for name in ("lstm_hidden", "lstm_cell")}
        others = {"episode_start": np.ones(n, bool), **states} if memory else {}
        exported = ran(tmp_path / "policy.onnx", observation, action_masks=masks, **others)["action"]
        np.testing.assert_array_equal(exported, action_)
    assert np.any(exported != model.predict(observation, deterministic=True)[0]), "the masks change nothing"


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ({}, LIMITED),
        ({"shared_lstm": True, "enable_critic_lstm": False}, LIMITED),
        ({"enable_critic_lstm": False}, LIMITED),
        ({}, spaces.MultiDiscrete([9, 8])),
    ],
    ids=["critic's own", "shared", "actor's only", "several choices"],
)
def test_memory_over_episodes(kind: dict[str, bool], action: spaces.Space, tmp_path: Path) -> None:
    arguments = {"lstm_hidden_size": 8, "n_lstm_layers": 2, **kind}
    model = made(RecurrentSPPO, "MlpLstmPolicy", action, policy_kwargs=arguments)
    export_onnx(model, tmp_path / "policy.onnx", value=True)
    zeros = np.zeros((2, 7, 8), np.float32)
    names = ["lstm_hidden", "lstm_cell"]
    if not kind:
        names += ["lstm_critic_hidden", "lstm_critic_cell"]
    exported = dict.fromkeys(names, zeros)
    state: Any = None
    both = RNNStates(*((th.as_tensor(zeros), th.as_tensor(zeros)) for _ in range(2)))
    for step in range(12):
        observation, starts = batch(VECTOR, 7, step), np.arange(7) % 5 == step % 6
        outputs = ran(tmp_path / "policy.onnx", observation, episode_start=starts, **exported)
        exported = {name: outputs[f"next_{name}"] for name in names}
        expected, state = model.predict(observation, state, starts, deterministic=True)
        same(outputs["action"], expected)
        same(exported["lstm_hidden"], state[0])
        same(exported["lstm_cell"], state[1])
        with th.no_grad():
            tensors = th.as_tensor(observation), both, th.as_tensor(starts).float()
            _, value, _, both = model.policy(*tensors, deterministic=True)
        same(outputs["value"], value.flatten().numpy())
    if not kind:
        same(exported["lstm_critic_cell"], both.vf[1].numpy())


def test_without_the_value_the_critics_memory_is_not_asked_for(tmp_path: Path) -> None:
    model = made(RecurrentSPPO, "MlpLstmPolicy", FINITE[0], policy_kwargs={"lstm_hidden_size": 8})
    signature = export_onnx(model, tmp_path / "policy.onnx")
    assert list(signature["inputs"]) == ["observation", "episode_start", "lstm_hidden", "lstm_cell"]
    assert list(signature["outputs"]) == ["action", "next_lstm_hidden", "next_lstm_cell"]


def normalized(observation: spaces.Space, policy: str) -> tuple[SPPO, VecNormalize]:
    envs = DummyVecEnv([lambda: Rooms(observation, LIMITED)])
    keys = ["position"] if isinstance(observation, spaces.Dict) else None
    env = VecNormalize(envs, clip_obs=1.3, norm_obs_keys=keys)
    model = SPPO(policy, env, n_steps=64, batch_size=64, seed=0, device="cpu")
    return lively(model.learn(64)), env


@pytest.mark.parametrize("source", ["object", "file", "the model's environment", "the model's file"])
def test_observations_are_normalised_inside(source: str, tmp_path: Path) -> None:
    # So far from zero for its spread that a mean in float32 would be wrong in the second digit.
    model, env = normalized(VECTOR, "MlpPolicy")
    env.obs_rms.mean[:], env.obs_rms.var[:] = 1e4 + 0.01234, 1e-4  # type: ignore[union-attr]
    env.save(str(tmp_path / "stats.pkl"))
    given = {"object": env, "file": tmp_path / "stats.pkl"}.get(source)
    exported: Any = PPO.load(_saved(model, tmp_path)) if given else model
    if source == "the model's file":
        exported = SPPO.load(_saved(model, tmp_path))
    export_onnx(exported, tmp_path / "policy.onnx", given)
    for n in (1, 7):
        observation = (1e4 + 3e-2 * batch(VECTOR, n)).astype(np.float32)
        scaled = env.normalize_obs(observation)
        assert n == 1 or {True, False} == set((np.abs(scaled) == np.float32(1.3)).flat), "clip none or all"
        action, _ = model.predict(scaled, deterministic=True)
        same(ran(tmp_path / "policy.onnx", observation)["action"], action)


def test_of_a_dictionary_only_what_was_normalised_is(tmp_path: Path) -> None:
    model, env = normalized(SEVERAL, "MultiInputPolicy")
    export_onnx(model, tmp_path / "policy.onnx")
    observation = batch(model.observation_space, 7)
    action, _ = model.predict(env.normalize_obs(observation), deterministic=True)
    same(ran(tmp_path / "policy.onnx", observation)["action"], action)
    # And nothing is, if that is what is asked for.
    export_onnx(model, tmp_path / "raw.onnx", False)
    same(ran(tmp_path / "raw.onnx", observation)["action"], model.predict(observation, deterministic=True)[0])


def test_forgotten_and_foreign_statistics_are_named(tmp_path: Path) -> None:
    model, env = normalized(VECTOR, "MlpPolicy")
    loaded = PPO.load(_saved(model, tmp_path))
    with pytest.warns(UserWarning, match="trained under VecNormalize"):
        export_onnx(loaded, tmp_path / "policy.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_onnx(loaded, tmp_path / "policy.onnx", False)
    stacked = made(SPPO, "MlpPolicy", LIMITED, spaces.Box(-1, 1, (15,), np.float32))
    stacked.set_env(VecFrameStack(env, 3))
    stacked.save(tmp_path / "stacked.zip")
    for model in (stacked, SPPO.load(tmp_path / "stacked.zip")):
        with pytest.raises(ValueError, match=r"shape \(5,\)"):
            export_onnx(model, tmp_path / "policy.onnx")
    with pytest.raises(TypeError, match="None or False, not True"):
        export_onnx(stacked, tmp_path / "policy.onnx", True)  # type: ignore[arg-type]


def test_the_file_says_what_it_takes_and_gives(tmp_path: Path) -> None:
    model = made(SPPO, "MultiInputPolicy", LIMITED, SEVERAL)
    signature = export_onnx(model, tmp_path / "policy.onnx")
    assert signature["inputs"] == {
        "observation.action": {"shape": ["batch"], "dtype": "int64"},
        "camera": {"shape": ["batch", 3, 36, 36], "dtype": "uint8"},
        "cards": {"shape": ["batch", 2], "dtype": "int64"},
        "position": {"shape": ["batch", 2, 3], "dtype": "float32"},
        "switches": {"shape": ["batch", 4], "dtype": "int8"},
    }
    assert signature["outputs"] == {"action": {"shape": ["batch", 3], "dtype": "float32"}}
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"], "weights are in another file"
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    assert {kind: json.loads(metadata[kind]) for kind in signature} == signature
    assert metadata["action_space"] == str(LIMITED)
    found = {part.name: part.shape for part in (*session.get_inputs(), *session.get_outputs())}
    assert found == {n: entry["shape"] for table in signature.values() for n, entry in table.items()}


def test_training_goes_on_as_if_nothing_had_been_exported(tmp_path: Path) -> None:
    weights = []
    for exported in (False, True):
        model = SPPO("MlpPolicy", "Pendulum-v1", n_steps=64, use_sde=True, seed=0, device="cpu").learn(64)
        if exported:
            export_onnx(model, tmp_path / "policy.onnx", value=True, distribution=True)
        model.learn(64, reset_num_timesteps=False)
        model.save(tmp_path / "model.zip")
        weights.append(th.nn.utils.parameters_to_vector(model.policy.parameters()))
    assert th.equal(*weights)


def _saved(model: Any, folder: Path) -> str:
    model.save(folder / "model.zip")
    return str(folder / "model.zip")


@pytest.mark.parametrize(
    ("cls", "policy"),
    [
        (SPPO, "MlpPolicy"),
        (PPO, "MlpPolicy"),
        (MaskableSPPO, "MlpPolicy"),
        (RecurrentSPPO, "MlpLstmPolicy"),
        (MaskableRecurrentSPPO, "MlpLstmPolicy"),
    ],
    ids=lambda part: part.__name__ if isinstance(part, type) else "",
)
def test_a_file_becomes_another(
    cls: type, policy: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = made(cls, policy, FINITE[0])
    assert cli.main(["export", _saved(model, tmp_path), str(tmp_path / "policy.onnx"), "--value"]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    # All actions are allowed, and all episodes start: predict needs to know no more than the observations.
    inputs: dict[str, np.ndarray] = {}
    for part in session.get_inputs():
        shape = [50 if size == "batch" else size for size in part.shape]
        inputs[part.name] = np.ones(shape, bool if part.type == "tensor(bool)" else np.float32)
    inputs["observation"] = batch(VECTOR, 50)
    same(session.run(["action"], inputs)[0], model.predict(inputs["observation"], deterministic=True)[0])
    names = [part.name for part in (*session.get_inputs(), *session.get_outputs())]
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == names
    assert ("action_masks" in names) == ("Maskable" in cls.__name__)
    assert ("lstm_critic_cell" in names) == ("Recurrent" in cls.__name__)


def test_statistics_on_the_command_line(tmp_path: Path) -> None:
    model, env = normalized(VECTOR, "MlpPolicy")
    env.save(str(tmp_path / "stats.pkl"))
    arguments = ["export", _saved(model, tmp_path), str(tmp_path / "policy.onnx")]
    assert cli.main([*arguments, "--vecnormalize", str(tmp_path / "stats.pkl")]) == 0
    observation = batch(VECTOR, 7)
    action, _ = model.predict(env.normalize_obs(observation), deterministic=True)
    same(ran(tmp_path / "policy.onnx", observation)["action"], action)


def test_what_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "text.zip").write_text("no model")
    for name in ("text.zip", "none.zip"):
        assert cli.main(["export", str(tmp_path / name), str(tmp_path / "policy.onnx")]) == 1
        assert name in capsys.readouterr().err
    assert not (tmp_path / "policy.onnx").exists()


def test_without_the_exporter_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[onnx\]"'):
        export_onnx(made(SPPO, "MlpPolicy", LIMITED), tmp_path / "policy.onnx")
