"""What a file may set: parameters and the training state by name; and weights only if all of them fit."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sppo import SPPO, load_vec_normalize
from sppo.loading import LoadError
from sppo.loading.inspection import report
from sppo.surrogates import Sample, Surrogate, parameter
from tests.loading.filecraft import FIXTURES, members, packed, with_entry, witnessed
from tests.loading.payloads import text

MODEL = FIXTURES / "sb3-2.9.2-discrete.zip"
SMALL: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "device": "cpu", "seed": 1}


class MySPPO(SPPO):
    """A user's class with a parameter of its own."""

    def __init__(self, *args: Any, bonus: float | str = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bonus = bonus
        self.scratch = 1


@pytest.mark.parametrize("run_name", ["../../../evil/pwn_{}", "{:>3000000000}", "{0.__class__}"])
def test_a_file_does_not_choose_where_logs_go(run_name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    SPPO("MlpPolicy", "CartPole-v1", **SMALL).save(tmp_path / "honest")
    inside = tmp_path / "a" / "b" / "c" / "logs"
    raw = with_entry(tmp_path / "honest.zip", "run_name", value=run_name)
    with pytest.warns(UserWarning, match="run_name: it is neither a parameter"):
        model = SPPO.load(io.BytesIO(raw), env=gym.make("CartPole-v1"), tensorboard_log=str(inside))
    assert "run_name" not in vars(model)
    model.learn(16)
    assert {path.name for path in tmp_path.iterdir()} == {"honest.zip", "a"}
    assert [path.name for path in inside.iterdir()] == ["SPPO_1"]


@pytest.mark.parametrize(
    "attribute",
    [
        "run_name",
        "surrogate_name",
        "policy_aliases",
        "batch_norm",
        "_finite_guard",
        "learn",
        "__class__",
        "_fast",
    ],
)
def test_nothing_but_parameters_and_training_state(attribute: str) -> None:
    """Class attributes, methods and inventions stay as they are; ``inspect`` names them."""
    raw = with_entry(MODEL, attribute, value="evil")
    with pytest.warns(UserWarning, match=attribute):
        model = SPPO.load(io.BytesIO(raw))
    assert vars(model).get(attribute) != "evil"
    lines, complete = report(raw, "file")
    assert not complete
    assert any(line.strip().startswith(f"{attribute} ") and "LEFT OUT" in line for line in lines)


@pytest.mark.parametrize("bonus", [0.5, "auto"])
def test_a_users_own_parameters_are_restored(bonus: float | str, tmp_path: Path) -> None:
    model = MySPPO("MlpPolicy", "CartPole-v1", bonus=bonus, **SMALL)
    model.scratch = 2
    model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match="left out.*scratch") as caught:
        loaded = MySPPO.load(tmp_path / "model", env=gym.make("CartPole-v1"))
    assert len(caught) == 1
    assert (loaded.bonus, loaded.scratch) == (bonus, 1)
    loaded.learn(16)


def files_that_do_not_fit(path: Path) -> dict[str, bytes]:
    """Weights of other shapes, names and kinds, the policy's own being right in some of them."""
    parts = members(path)

    def changed(member: str, change: Any) -> bytes:
        values = th.load(io.BytesIO(parts[member]), weights_only=True)
        stream = io.BytesIO()
        th.save(change(values), stream)
        return packed({**parts, member: stream.getvalue()})

    def shape(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "action_net.bias": th.zeros(7)}

    def groups(**options: Any) -> Any:
        return lambda values: {**values, "param_groups": [{**values["param_groups"][0], **options}]}

    return {
        "shape": changed("policy.pth", shape),
        "missing": changed("policy.pth", lambda values: dict(list(values.items())[1:])),
        "no-tensor": changed("policy.pth", lambda values: {**values, "action_net.bias": 3}),
        "no-dictionary": changed("policy.pth", lambda values: [values]),
        "no-groups": changed("policy.optimizer.pth", lambda values: {"state": {}}),
        "groups-of-text": changed("policy.optimizer.pth", lambda values: {**values, "param_groups": "ab"}),
        "fewer-parameters": changed("policy.optimizer.pth", groups(params=[0])),
        "unnumbered": changed("policy.optimizer.pth", groups(params=[0] * 12)),
        "learning-rate": changed("policy.optimizer.pth", groups(lr="fast")),
        "state-of-nothing": changed(
            "policy.optimizer.pth", lambda values: {**values, "state": {99: {"a": 1}}}
        ),
        "state-of-text": changed("policy.optimizer.pth", lambda values: {**values, "state": {0: "abc"}}),
        "state-too-large": changed(
            "policy.optimizer.pth", lambda values: {**values, "state": {0: {"exp_avg": th.zeros(10**6)}}}
        ),
        "unknown-part": packed({**parts, "policy.action_net.pth": parts["policy.pth"]}),
        "one-part": packed({k: v for k, v in parts.items() if k != "policy.optimizer.pth"}),
        "no-zip": b"hello",
    }


def test_weights_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    model, other = (SPPO("MlpPolicy", "CartPole-v1", **{**SMALL, "seed": seed}).learn(16) for seed in (1, 2))
    other.save(tmp_path / "other")
    path = tmp_path / "file.zip"
    before = json.dumps(model.get_parameters(), default=lambda tensor: tensor.tolist())
    for kind, raw in files_that_do_not_fit(tmp_path / "other.zip").items():
        path.write_bytes(raw)
        with pytest.raises(LoadError, match=r"file\.zip"):
            model.set_parameters(path)
        after = json.dumps(model.get_parameters(), default=lambda tensor: tensor.tolist())
        assert before == after, kind
    model.set_parameters(tmp_path / "other.zip")
    assert th.equal(model.policy.action_net.weight, other.policy.action_net.weight)
    model.learn(16)


def test_some_of_the_weights(tmp_path: Path) -> None:
    """``exact_match=False`` takes what is there."""
    model, other = (SPPO("MlpPolicy", "CartPole-v1", **{**SMALL, "seed": seed}) for seed in (1, 2))
    other.save(tmp_path / "other")
    parts = members(tmp_path / "other.zip")
    del parts["policy.optimizer.pth"]
    (tmp_path / "part.zip").write_bytes(packed(parts))
    model.set_parameters(tmp_path / "part.zip", exact_match=False)
    assert th.equal(model.policy.action_net.weight, other.policy.action_net.weight)


def test_statistics_of_other_observations(tmp_path: Path) -> None:
    VecNormalize(make_vec_env("CartPole-v1", 1)).save(str(tmp_path / "statistics.pkl"))

    class Room(gym.Env):
        observation_space: spaces.Space = spaces.Box(-1, 1, (3,))
        action_space = spaces.Discrete(2)

    class House(Room):
        observation_space = spaces.Dict({"a": spaces.Box(-1, 1, (4,))})

    for env in (Room, House):
        with pytest.raises(LoadError, match=r"statistics\.pkl: .* of other observations"):
            load_vec_normalize(tmp_path / "statistics.pkl", DummyVecEnv([env]))


def test_statistics_set_nothing_else() -> None:
    class Room(gym.Env):
        observation_space = spaces.Box(-1, 1, (3,))
        action_space = spaces.Discrete(2)

    genuine = (FIXTURES / "sb3-2.9.2-vecnormalize.pkl").read_bytes()
    venv = DummyVecEnv([Room])
    attributes = vars(VecNormalize(venv)).keys()
    for attribute in ("spec", "step_wait", "venv", "reward_range", "num_envs", "action_space"):
        loaded = load_vec_normalize(io.BytesIO(genuine[:-2] + text(attribute) + b"Nsb."), venv)
        assert vars(loaded).keys() == attributes
        assert getattr(loaded, attribute, "") is not None


@dataclass(frozen=True)
class Quadratic(Surrogate):
    """A user's own surrogate, with a number and a schedule of its own."""

    name = "quadratic-of-test-settable"
    title = "Quadratic"
    colour = "#000000"

    width: float = parameter(0.2, "float", "half the interval", above=0.0)
    strength: Any = parameter(1.0, "schedule", "weight of the penalty", above=0.0)

    def objective(self, sample: Sample) -> th.Tensor:
        penalty = sample.advantage.abs() * (sample.ratio - 1) ** 2 / (2 * self.width)
        return sample.advantage * sample.ratio - self.strength * penalty


@pytest.mark.parametrize("chosen", [Quadratic.name, f"{__name__}:Quadratic"])
def test_the_parameters_of_a_surrogate_are_restored(chosen: str, tmp_path: Path) -> None:
    """By value, function or not; and a surrogate that the program lacks is asked for, never imported."""
    options: dict[str, Any] = {"surrogate": chosen, "width": 0.3, "strength": lambda left: 1 + left}
    model = SPPO("MlpPolicy", "CartPole-v1", **SMALL, **options).learn(16)
    model.save(tmp_path / "model")
    loaded = SPPO.load(tmp_path / "model", env=gym.make("CartPole-v1"))
    assert loaded.surrogate_at(0.3) == model.surrogate_at(0.3)
    loaded.learn(16)


@pytest.mark.parametrize(
    "chosen", ["antigravity:geohash", "nothing", "os:system", "sppo.cli:main", ":", "os:", 3]
)
def test_a_file_imports_no_surrogate(chosen: Any) -> None:
    raw = with_entry(MODEL, "surrogate", value=chosen)
    with witnessed() as seen, pytest.warns(UserWarning, match="surrogate: "):
        model = SPPO.load(io.BytesIO(raw), device="cpu")
    assert not seen
    with pytest.raises(ValueError, match=r"training needs.*surrogate"):
        model.learn(16)
