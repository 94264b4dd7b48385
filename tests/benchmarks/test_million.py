"""The study at a million steps: recipes as published, and the table from made-up runs."""

from __future__ import annotations

import inspect
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sb3_contrib import TRPO
from stable_baselines3 import PPO
from torch import nn

import sppo
from benchmarks import million
from benchmarks.pages import READMES, fill
from sppo.records.config import RunConfig
from sppo.records.published import read_runs, write_runs
from sppo.records.studies import read_records
from sppo.study.definition import read_plan
from sppo.study.training import make_model
from tests.records import synthetic_study as synthetic

STUDY = Path(__file__).parents[2] / "benchmarks" / "studies" / "million.toml"
ENVIRONMENTS = ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5")


def recipes() -> dict[tuple[str, str], RunConfig]:
    return {(run.algorithm, run.env): run for run in reversed(read_plan(STUDY).runs)}


@pytest.mark.parametrize("env", ENVIRONMENTS)
@pytest.mark.parametrize(("label", "cls"), [("rl-zoo", PPO), ("trpo", TRPO)])
def test_the_zoos_recipes_are_the_zoos(label: str, cls: type, env: str) -> None:
    # Not imported, because that changes Gymnasium's classes.
    package = find_spec("rl_zoo3")
    if package is None or package.origin is None:
        pytest.skip("rl_zoo3 is not installed")
    path = Path(package.origin).parent / "hyperparams" / f"{cls.__name__.lower()}.yml"
    entry = yaml.safe_load(path.read_text())[env.replace("-v5", "-v4")]
    assert entry.pop("normalize") is True
    entry.pop("n_timesteps")
    assert_same_setting(recipes()[label, env], entry, cls)


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_our_entries_for_the_zoo_are_our_recipe(env: str) -> None:
    """What `python -m sppo.zoo train` trains is what the table reports."""
    path = Path(sppo.__file__).parent / "hyperparams" / "sppo.yml"
    entry, ours = yaml.safe_load(path.read_text())[env], recipes()["sppo", env]
    normalize = eval(entry.pop("normalize"))
    assert normalize == {"norm_obs": True, "norm_reward": True, "clip_obs": ours.normalize["clip_obs"]}
    assert float(entry.pop("n_timesteps")) == ours.total_timesteps
    # The engine is the study's choice, so that PPO trains with it as well.
    assert ours.parameters.pop("engine") == "fast"
    assert_same_setting(ours, entry, sppo.SPPO)


def test_the_numbers_beside_our_entries_are_those_of_the_published_runs() -> None:
    comment = (Path(sppo.__file__).parent / "hyperparams" / "sppo.yml").read_text().replace("\n#", "")
    cells = million.published_cells()
    for env in ENVIRONMENTS:
        assert f"{env.partition('-')[0]} {cells[env, million.OURS].mean.value:.0f}" in comment


def assert_same_setting(ours: RunConfig, entry: dict[str, Any], cls: type) -> None:
    """Every value of an entry of the zoo's YAML; what that leaves out is the default of the class."""
    assert all(ours.normalize[name] for name in ("observations", "rewards"))
    assert ours.n_envs == entry.pop("n_envs", 1)
    shape = eval(entry.pop("policy_kwargs", "dict()"), {"nn": nn})
    if isinstance(shape.get("net_arch"), dict):
        shape["net_arch"] = shape["net_arch"]["pi"]
    if "activation_fn" in shape:
        shape["activation_fn"] = {nn.ReLU: "relu", nn.Tanh: "tanh"}[shape["activation_fn"]]
    neutral = {"net_arch": [64, 64], "activation_fn": "tanh", "ortho_init": True, "log_std_init": 0.0}
    theirs = {key: _number(value) for key, value in entry.items()} | {"policy_kwargs": {**neutral, **shape}}
    defaults = {name: one.default for name, one in inspect.signature(cls).parameters.items()}
    known = {name: theirs.get(name, defaults[name]) for name in ours.parameters if name in defaults}
    assert known == {name: _number(ours.parameters[name]) for name in known}
    assert theirs.keys() <= known.keys()


def _number(value: Any) -> Any:
    """YAML 1.1 takes ``2.0633e-05`` for a number and ``1e-3`` for text; ``lin_`` is a decay, in both."""
    if isinstance(value, str) and value.startswith("lin_"):
        return "lin", float(value.removeprefix("lin_"))
    return float(value) if isinstance(value, str) and value[0].isdigit() else value


def test_upstreams_defaults_are_the_zoos_recipe_for_ant() -> None:
    """Its entry there says no more than `normalize: true`."""
    found = recipes()
    for env in ENVIRONMENTS:
        assert found["ppo-defaults", env].parameters == found["rl-zoo", "Ant-v5"].parameters
        assert found["ppo-defaults", env].n_envs == 1


def test_seeds_are_the_same_for_all_and_nothing_runs_twice() -> None:
    runs = read_plan(STUDY).runs
    assert len({run.hash for run in runs}) == len(runs) == 5 * 5 * 10
    assert {run.total_timesteps for run in runs} == {1_000_000}


@pytest.mark.parametrize("label", ["sppo", "ppo-defaults", "rl-zoo", "tianshou"])
def test_every_recipe_but_trpo_trains_with_the_engine(label: str) -> None:
    """One arithmetic for all, and hours instead of days."""
    model = make_model(recipes()[label, "Hopper-v5"])
    assert model.n_steps * model.n_envs <= 2048
    model.learn(1)
    assert model.engine_in_use == "fast"  # type: ignore[attr-defined]


def run(env: str, label: str, seed: int, curve: list[float]) -> tuple[dict[str, Any], np.ndarray]:
    config = synthetic.configuration(env, label, seed, evaluations=len(curve), n_epochs=10)
    return config, np.repeat(np.array(curve)[:, None], 5, axis=1)


def published(directory: Path, runs: list[tuple[dict[str, Any], np.ndarray]]) -> million.Cells:
    """Through the two files, as the script reads them."""
    for config, returns in runs:
        synthetic.write_completed(directory / "records", config, returns)
    failed = synthetic.configuration("Ant-v5", "trpo", 7, n_epochs=10)
    synthetic.write_failed(directory / "records", failed)
    synthetic.write_plan(directory / "records", [failed, *(config for config, _ in runs)])
    write_runs(read_records(directory / "records").runs, directory)
    return million.cells_of(read_runs(directory))


@pytest.fixture
def cells(tmp_path: Path) -> million.Cells:
    """On Hopper ours ends at 3000 +- 100 and was at 3300; Walker2d has one run of each."""
    runs = [run("Hopper-v5", "sppo", 100 + k, [3300.0, 3000.0 + 100 * (k - 1)]) for k in range(3)]
    runs += [
        run("Hopper-v5", label, 100 + k, [0.0, 2000.0 + k]) for label in million.RIVALS for k in range(2)
    ]
    runs += [run("Walker2d-v5", "sppo", 100, [100.0, 90.0])]
    runs += [run("Walker2d-v5", label, 100, [0.0, 95.0]) for label in million.RIVALS]
    return published(tmp_path, runs)


def as_dicts(table: tuple) -> list[dict[str, str]]:
    header, body = table
    return [dict(zip(header, row, strict=True)) for row in body]


def test_every_number_stands_with_its_runs(cells: million.Cells) -> None:
    ours, *others = as_dicts(million.overview(cells))
    assert ours["Hopper-v5"].startswith("**3000** [")
    assert ours["Hopper-v5"].endswith("(n = 3)")
    assert ours["Walker2d-v5"] == "90.0 (n = 1)"
    assert ours["Ant-v5"] == "–", "a failed run is none"
    found = [*["**95.0** (n = 1)"] * 3, "–"]
    assert [row["Walker2d-v5"] for row in others] == found


def test_time_is_the_fastest_runs(cells: million.Cells) -> None:
    """The others may have been made on a slower machine."""
    key = "Hopper-v5", "sppo"
    first, *others = cells[key].runs
    slower = replace(cells[key], runs=(replace(first, wall_seconds=90.0), *others))
    row = as_dicts(million.in_full({key: slower}))[0]
    assert row["minutes, fastest run"] == "0.2"


def test_final_and_best_are_told_apart(cells: million.Cells) -> None:
    row = as_dicts(million.in_full(cells))[0]
    assert (row["n"], row["best over training"]) == ("3", "3300")
    assert row["mean, 95 % interval"] == "3000 [2752, 3248]"
    mine = [row for row in as_dicts(million.beside_published(cells)) if row[""].startswith("-v5, 1 to 3")]
    assert [row["Hopper-v5"] for row in mine] == ["3000 ± 82", "3300"]


def test_the_goals_count_only_what_was_run(cells: million.Cells) -> None:
    first, above, surely = as_dicts(million.goals(cells))
    assert first["found"] == "1 of 2 (Hopper)"
    assert above["found"] == "1 of 2 (Hopper)"
    assert surely["found"] == "1 of 2 (Hopper)", "2752 is above 2609, and one run has no interval"
    assert first["runs of ours per environment"] == "1 to 3"
    # Nothing at all is no success.
    assert [row["found"] for row in as_dicts(million.goals({}))] == ["0 of 0"] * 3


def test_leads_have_an_interval_where_both_sides_have_two_runs(cells: million.Cells) -> None:
    row, *_, published = as_dicts(million.leads(cells))
    assert row["Hopper-v5"].startswith("999.5 [")
    assert row["Walker2d-v5"] == "−5.000"
    assert row["Humanoid-v5"] == published["Humanoid-v5"] == "–"
    # Tianshou's 2609 and KLip-PPO's 3717.
    assert published["Hopper-v5"].startswith("391.0 [")
    assert published["Walker2d-v5"] == "−3627"


def test_a_recipe_that_is_anothers_needs_no_runs_of_its_own(tmp_path: Path) -> None:
    """See :func:`test_upstreams_defaults_are_the_zoos_recipe_for_ant`."""
    cells = published(
        tmp_path, [run(env, "ppo-defaults", 100, [1.0, 2.0]) for env in ("Ant-v5", "Hopper-v5")]
    )
    zoo = next(row for row in as_dicts(million.overview(cells)) if "Zoo's tuned" in row["IQM, 95 % interval"])
    assert (zoo["Ant-v5"], zoo["Hopper-v5"]) == ("**2.000** (n = 1)", "–")


def test_two_settings_of_one_recipe_are_not_averaged(tmp_path: Path) -> None:
    runs = [run("Hopper-v5", "sppo", seed, [1.0, 2.0]) for seed in (100, 101)]
    runs[1][0]["parameters"]["n_epochs"] = 20
    with pytest.raises(ValueError, match="sppo has runs of two settings in Hopper-v5"):
        published(tmp_path, runs)


def test_the_curves_are_drawn_whatever_is_missing(cells: million.Cells, tmp_path: Path) -> None:
    million.draw(cells, tmp_path / "million.png")
    assert (tmp_path / "million.png").stat().st_size > 10_000


def test_published_tables_come_out_of_the_committed_files() -> None:
    tables = million.all_tables(million.published_cells())
    pages = [page.read_text(encoding="utf-8") for page in READMES]
    assert any(f"<!-- {million.SCRIPT}: " in page for page in pages)
    assert [fill(page, million.SCRIPT, tables) for page in pages] == pages
