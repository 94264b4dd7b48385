"""The study at a million steps: recipes as published, and the table from made-up runs."""

from __future__ import annotations

import inspect
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from sb3_contrib import TRPO
from stable_baselines3 import PPO
from torch import nn

from sppo.records.config import RunConfig
from sppo.study.definition import read_plan
from sppo.study.training import make_model

STUDY = Path(__file__).parents[2] / "benchmarks" / "studies" / "million.toml"
ENVIRONMENTS = ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5")


def recipes() -> dict[tuple[str, str], RunConfig]:
    return {(run.algorithm, run.env): run for run in reversed(read_plan(STUDY).runs)}


@pytest.mark.parametrize("env", ENVIRONMENTS)
@pytest.mark.parametrize(("label", "cls"), [("rl-zoo", PPO), ("trpo", TRPO)])
def test_the_zoos_recipes_are_the_zoos(label: str, cls: type, env: str) -> None:
    """Every value of its YAML; what that leaves out is the default of the class."""
    pytest.importorskip("rl_zoo3")
    entries = yaml.safe_load(
        resources.files("rl_zoo3").joinpath("hyperparams", f"{cls.__name__.lower()}.yml").read_text()
    )
    theirs: dict[str, Any] = entries[env.replace("-v5", "-v4")]
    ours = recipes()[label, env]
    assert theirs.pop("normalize") is True
    assert all(ours.normalize[name] for name in ("observations", "rewards"))
    assert ours.n_envs == theirs.pop("n_envs", 1)
    theirs.pop("n_timesteps")
    shape = eval(theirs.pop("policy_kwargs", "dict()"), {"nn": nn})
    if shape:
        shape["net_arch"] = shape["net_arch"]["pi"]
        shape["activation_fn"] = {nn.ReLU: "relu"}[shape["activation_fn"]]
    neutral = {"net_arch": [64, 64], "activation_fn": "tanh", "ortho_init": True, "log_std_init": 0.0}
    theirs = {key: _number(value) for key, value in theirs.items()} | {"policy_kwargs": {**neutral, **shape}}
    defaults = {name: one.default for name, one in inspect.signature(cls).parameters.items()}
    known = {name: theirs.get(name, defaults[name]) for name in ours.parameters if name in defaults}
    assert known == {name: ours.parameters[name] for name in known}
    assert theirs.keys() <= known.keys()


def _number(value: Any) -> Any:
    """YAML 1.1 takes ``2.0633e-05`` for a number and ``1e-3`` for text."""
    return float(value) if isinstance(value, str) and value[0].isdigit() else value


def test_upstreams_defaults_are_the_zoos_recipe_for_ant() -> None:
    """Its entry there says no more than `normalize: true`."""
    found = recipes()
    for env in ENVIRONMENTS:
        assert found["ppo-defaults", env].parameters == found["rl-zoo", "Ant-v5"].parameters
        assert found["ppo-defaults", env].n_envs == 1


def test_seeds_are_the_same_for_all_and_nothing_runs_twice() -> None:
    runs = read_plan(STUDY).runs
    assert len({run.hash for run in runs}) == len(runs) == 6 * 5 * 10
    assert {run.total_timesteps for run in runs} == {1_000_000}


@pytest.mark.parametrize("label", ["sppo", "sppo-budget", "ppo-defaults", "rl-zoo", "tianshou"])
def test_every_recipe_but_trpo_trains_with_the_engine(label: str) -> None:
    """One arithmetic for all, and hours instead of days."""
    model = make_model(recipes()[label, "Hopper-v5"])
    assert model.n_steps * model.n_envs <= 2048
    model.learn(1)
    assert model.engine_in_use == "fast"  # type: ignore[attr-defined]
