"""Cells hold runs that differ in their seed only, and the tables say what the runs say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from sppo.records.runs import Run
from sppo.records.studies import read_records
from sppo.report.cells import Setting, build_cells, looks_of, order_environments, seeds_of
from sppo.report.labels import looks, order_labels, title_of
from sppo.report.provenance import collect, seeds_text
from sppo.report.summary import Comparison, Summary, summarise
from sppo.surrogates import REGISTRY, Surrogate
from tests.records import synthetic_study as synthetic


def constant(config: dict, value: float) -> np.ndarray:
    return np.full((config["evaluations"], config["eval_episodes"]), value)


def summary_of(directory: Path) -> Summary:
    return summarise(build_cells(read_records(directory).runs))


def pooled(summary: Summary, setting: str) -> Comparison:
    (row,) = [row for row in summary.comparisons if row.env is None and row.where == setting]
    return row


def test_runs_that_differ_in_more_than_the_seed_are_never_one_cell(tmp_path: Path) -> None:
    for rate in (1e-3, 3e-4):
        configs = synthetic.grid(
            envs=["Hopper-v5"], algorithms=["sppo"], passes=[10], clips=[0.3], learning_rate=rate
        )
        for config in configs:
            synthetic.write_completed(tmp_path, config)
    cells = build_cells(read_records(tmp_path).runs)
    assert [cell.label for cell in cells] == ["sppo (learning_rate=0.0003)", "sppo (learning_rate=0.001)"]
    assert [cell.n for cell in cells] == [3, 3]


def test_what_differs_between_environments_is_no_variant(tmp_path: Path) -> None:
    """Shorter runs on Ant than on Hopper are the study's choice, not two kinds of sPPO."""
    for env, steps in (("Hopper-v5", 500_000), ("Ant-v5", 200_000)):
        for config in synthetic.grid(envs=[env], passes=[10], clips=[0.3], total_timesteps=steps):
            synthetic.write_completed(tmp_path, config)
    assert {cell.label for cell in build_cells(read_records(tmp_path).runs)} == {"ppo", "sppo"}


def test_variants_are_compared_with_the_same_variant_of_the_baseline(tmp_path: Path) -> None:
    for gamma in (0.9, 0.99):
        for config in synthetic.grid(envs=["Hopper-v5"], passes=[10], clips=[0.3], gamma=gamma):
            synthetic.write_completed(tmp_path, config)
    pairs = {(row.label, row.baseline) for row in summary_of(tmp_path).comparisons}
    assert pairs == {("sppo (gamma=0.9)", "ppo (gamma=0.9)"), ("sppo (gamma=0.99)", "ppo (gamma=0.99)")}


def test_orders_and_names() -> None:
    names = ["CartPole-v1", "Humanoid-v5", "Ant-v5", "HalfCheetah-v5", "Walker2d-v5", "Hopper-v4"]
    assert order_environments(names) == [*[f for f in reversed(names) if f != "CartPole-v1"], "CartPole-v1"]
    assert title_of("sppo-one-sided", {}) == "sPPO one-sided"
    assert title_of("SPPO", {}) == "sPPO"
    assert title_of("mine", {}) == "mine"
    assert title_of("ppo (gamma=0.9)", {}) == "PPO (gamma=0.9)"
    assert title_of("trpo", {"class": "trpo"}) == "TRPO"
    assert Setting(10, 0.3, None).text == "m=10, ε=0.3"
    assert Setting(10, None, 1.0).slug == "m=10,eta=1"
    assert Setting().text == "default"
    assert Setting(10, 0.3).on_grid
    assert not Setting(10, None, 1.0).on_grid
    assert not Setting(10, 0.3, 1.0).on_grid


@pytest.mark.parametrize(
    ("label", "mode", "title"),
    [
        ("sppo", "two-sided", "sPPO two-sided"),
        ("sppo", "one-sided", "sPPO"),
        ("sppo-one-sided", "one-sided", "sPPO one-sided"),
        ("sppo-two-sided", "two-sided", "sPPO two-sided"),
        # PPO's clip is one-sided whatever is written, but its bounds may be symmetric
        ("ppo", "two-sided", "PPO"),
        ("ppo", "symmetric", "PPO symmetric"),
        ("ppo-symmetric", "symmetric", "PPO symmetric"),
        ("sppo", "no such mode", "sPPO"),
        ("sppo", ["damaged"], "sPPO"),
        ("mine", "two-sided", "mine"),
    ],
)
def test_runs_are_called_by_what_they_are(label: str, mode: object, title: str) -> None:
    """A published run labelled ``sppo`` has the two-sided clip, which is not the default any more."""
    assert title_of(label, {"class": "sppo", "parameters": {"clip_mode": mode}}) == title


@pytest.mark.parametrize("registered", ["spo", "ppo-penalty"])
def test_what_is_registered_is_drawn_as_it_says(registered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Title, colour and place of a new surrogate come from its class; no label is drawn as another."""
    # registered by its definition, and forgotten with the test
    monkeypatch.setitem(REGISTRY, registered, Surrogate)

    @dataclass(frozen=True)
    class SPO(Surrogate):
        name = registered
        title = "SPO"
        colour = "#123456"

    labels = [registered, "trpo", "sppo", "ppo", *(f"mine-{number}" for number in range(20))]
    assert order_labels(labels)[:3] == ["ppo", "sppo", registered]
    drawn = looks({label: title_of(label, {}) for label in labels})
    assert (drawn[registered].title, drawn[registered].colour) == ("SPO", "#123456")
    assert title_of(f"{registered}-large", {}) == "SPO large"
    assert drawn["sppo"].colour == REGISTRY["sppo"].colour
    assert len({(look.colour, look.marker) for look in drawn.values()}) == len(labels)
    assert drawn["trpo"].title == "trpo"


def test_a_label_with_runs_of_several_kinds_is_called_by_itself(tmp_path: Path) -> None:
    for env, mode in (("Hopper-v5", "two-sided"), ("Ant-v5", "one-sided")):
        config = synthetic.configuration(env, "sppo", 0, n_epochs=10, clip_range=0.3, clip_mode=mode)
        synthetic.write_completed(tmp_path, config)
    assert looks_of(build_cells(read_records(tmp_path).runs))["sppo"].title == "sPPO"


def test_seeds_are_contracted() -> None:
    assert seeds_text([5, 0, 1, 2, 3, 7, 8]) == "0-3, 5, 7, 8"
    assert seeds_text([]) == ""


def test_what_some_runs_did_not_record_is_not_said_of_all() -> None:
    told = [{"torch": "2.13.0", "processor": "an abacus"}, {"torch": "2.13.0"}, {}]
    runs = [Run(str(number), {}, "completed", versions=versions) for number, versions in enumerate(told)]
    assert collect("report", runs).versions == "processor an abacus/unknown, torch 2.13.0"


def test_final_returns_of_completed_runs_only(tmp_path: Path) -> None:
    """Failed, unfinished, damaged and missing runs are counted and change no number."""
    values = [100.0, 130.0, 180.0]
    configs = list(synthetic.grid(["Hopper-v5"], ["sppo"], [10], [0.3], range(7)))
    for config, value in zip(configs, values, strict=False):
        synthetic.write_completed(tmp_path, config, constant(config, value))
    synthetic.write_failed(tmp_path, configs[3])
    synthetic.write_header(tmp_path, configs[4])
    damaged = synthetic.write_completed(tmp_path, configs[5], constant(configs[5], 1e9))
    (damaged / "result.json").write_text("{")
    synthetic.write_plan(tmp_path, configs)
    (cell,) = summary_of(tmp_path).cells
    expected = scipy.stats.t.interval(0.95, 2, loc=np.mean(values), scale=scipy.stats.sem(values))
    assert cell.mean.value == pytest.approx(np.mean(values))
    assert (cell.mean.low, cell.mean.high) == pytest.approx(expected)
    assert (cell.finals.min(), cell.finals.max(), seeds_of([cell])) == (100, 180, (0, 1, 2))
    assert cell.tally() == "3 of 7 (1 unfinished, 1 failed, 1 damaged, 1 missing)"


def test_comparison_with_the_baseline(tmp_path: Path) -> None:
    for seed, (mine, theirs) in enumerate([(10.0, 1.0), (20.0, 15.0), (30.0, 2.0)]):
        for name, value in (("sppo", mine), ("ppo", theirs)):
            config = synthetic.configuration("Hopper-v5", name, seed, n_epochs=10, clip_range=0.3)
            synthetic.write_completed(tmp_path, config, constant(config, value))
    single, over_environments = summary_of(tmp_path).comparisons
    assert single.difference is not None
    assert single.difference.value == pytest.approx(20 - 6)
    # of nine pairs, only 10 against 15 is lost
    assert single.improvement.value == pytest.approx(8 / 9)
    assert (single.env, single.where, over_environments.env) == ("Hopper-v5", "m=10, ε=0.3", None)
    assert over_environments.improvement == single.improvement


def test_divergence_family_has_its_own_baseline(tmp_path: Path) -> None:
    for name in ("mdpo", "smdpo", "ppo"):
        for seed in range(2):
            extra = {"clip_range": 0.3} if name == "ppo" else {"clip_range": None, "eta": 1.0}
            config = synthetic.configuration("Hopper-v5", name, seed, n_epochs=10, **extra)
            synthetic.write_completed(tmp_path, config)
    summary = summary_of(tmp_path)
    assert {(row.label, row.baseline) for row in summary.comparisons} == {("smdpo", "mdpo")}
    assert {row.label for row in summary.aggregates} == {"ppo"}


def test_normalisation_and_aggregate(tmp_path: Path) -> None:
    """Scores are min-max per environment over all completed runs, whatever their algorithm."""
    returns = {
        ("Hopper-v5", "ppo"): [0.0, 50.0],
        ("Hopper-v5", "sppo"): [100.0, 75.0],
        ("Ant-v5", "ppo"): [-10.0, 0.0],
        ("Ant-v5", "sppo"): [10.0, 0.0],
    }
    for (env, name), values in returns.items():
        for seed, value in enumerate(values):
            config = synthetic.configuration(env, name, seed, n_epochs=10, clip_range=0.3)
            synthetic.write_completed(tmp_path, config, constant(config, value))
    summary = summary_of(tmp_path)
    assert summary.bounds == {"Hopper-v5": (0, 100), "Ant-v5": (-10, 10)}
    iqm = {row.label: row.iqm.value for row in summary.aggregates}
    # sPPO's scores 1, 0.75, 1, 0.5: the middle two; PPO's 0, 0.5, 0, 0.5
    assert iqm == {"ppo": pytest.approx(0.25), "sppo": pytest.approx(0.875)}


def test_aggregates_are_over_tasks_that_all_have(tmp_path: Path) -> None:
    """A cell without runs takes its task out of the aggregate of the others, and a note says so."""
    configs = list(synthetic.grid(["Hopper-v5", "Ant-v5", "Walker2d-v5"], passes=[10], clips=[0.3]))
    for config in configs:
        if (config["env"], config["algorithm"]) == ("Ant-v5", "sppo"):
            synthetic.write_failed(tmp_path, config)
        else:
            synthetic.write_completed(tmp_path, config)
    summary = summary_of(tmp_path)
    assert {(row.label, len(row.cells)) for row in summary.aggregates} == {("ppo", 2), ("sppo", 2)}
    assert any("2 of 3 tasks" in note for note in summary.notes)
    assert pooled(summary, "m=10, ε=0.3").tasks == 2


def test_algorithm_of_one_environment_does_not_shrink_the_aggregate(tmp_path: Path) -> None:
    configs = list(synthetic.grid(["Hopper-v5", "Ant-v5", "Walker2d-v5"], passes=[10], clips=[0.3]))
    configs += synthetic.grid(["Hopper-v5"], ["ppo-symmetric"], [10], [0.3])
    for config in configs:
        synthetic.write_completed(tmp_path, config)
    summary = summary_of(tmp_path)
    assert {(row.label, len(row.cells)) for row in summary.aggregates} == {("ppo", 3), ("sppo", 3)}
    assert any("ppo-symmetric" in note and "left out" in note for note in summary.notes)


def test_each_with_a_clip_of_its_own(tmp_path: Path) -> None:
    """As in a study of m: nothing is pooled that is one setting, and what cannot be compared is named."""
    for name, clip in (("ppo", 0.2), ("ppo-budget", 0.2), ("sppo", 0.3)):
        for config in synthetic.grid(["Ant-v5"], [name], [3, 10], [clip]):
            synthetic.write_completed(tmp_path, config)
    summary = summary_of(tmp_path)
    rows = [(row.label, row.where) for row in summary.comparisons if row.env is None]
    assert rows == [("ppo-budget", where) for where in ("m=3, ε=0.2", "m=10, ε=0.2", "all settings")]
    assert any(note.startswith("not compared") and note.endswith("(sppo)") for note in summary.notes)
    assert any(note.startswith("no aggregate") for note in summary.notes)


def test_different_lengths_are_noted(tmp_path: Path) -> None:
    for name, steps in (("ppo", 100_000), ("sppo", 50_000)):
        for config in synthetic.grid(["Ant-v5"], [name], [10], [0.3], total_timesteps=steps):
            synthetic.write_completed(tmp_path, config)
    assert any("50000 steps" in note for note in summary_of(tmp_path).notes)


def test_runs_that_restarted_their_episodes_are_noted(tmp_path: Path) -> None:
    config = synthetic.configuration("Hopper-v5", "sppo", 0, n_epochs=10, clip_range=0.3)
    path = synthetic.write_completed(tmp_path, config) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "episode_restarts": 2}))
    (note,) = [note for note in summary_of(tmp_path).notes if "start their episodes again" in note]
    assert "1 of 1: Hopper-v5, sppo, m=10, ε=0.3" in note


def test_profile_counts_runs_above_each_score(tmp_path: Path) -> None:
    for seed, value in enumerate([0.0, 40.0, 80.0, 100.0]):
        config = synthetic.configuration("Hopper-v5", "sppo", seed, n_epochs=10, clip_range=0.3)
        synthetic.write_completed(tmp_path, config, constant(config, value))
    (profile,) = summary_of(tmp_path).profiles
    assert profile.profile[0][[0, 39, 41, 79, 81, 99, 100]] == pytest.approx(
        [0.75, 0.75, 0.5, 0.5, 0.25, 0.25, 0]
    )
