"""A run that was ever published is found by its hash, whatever parameters are added later."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sppo.parameters import Parameter
from sppo.records import parameters
from sppo.records.config import RunConfig, same_run, settled
from sppo.records.published import completed_runs
from sppo.records.run_files import BOOKKEEPING, PLAN, RunWriter
from sppo.records.studies import read_records
from sppo.study.command import select
from sppo.study.definition import StudyError, parse_plan, read_plan
from sppo.surrogates import family, parameter

PUBLISHED = sorted((Path(__file__).parents[2] / "benchmarks" / "results" / "mujoco").glob("*/runs.csv"))
NEW = Parameter("float", "changes nothing at 0.5", 0.5)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code as it is."""


def with_parameters_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = (*parameters.CLASSES.values(), parameters.NORMALIZE, parameters.POLICY_KWARGS)
    for table in tables:
        monkeypatch.setitem(table, "fictitious", NEW)
    for table in parameters.CLASSES.values():
        shape = table["policy_kwargs"]
        default = parameters.defaults(parameters.POLICY_KWARGS)
        monkeypatch.setitem(table, "policy_kwargs", replace(shape, default=default))


def with_parameters_of_surrogates(monkeypatch: pytest.MonkeyPatch) -> None:
    for cell, kind in list(family._TABLE.items()):
        field = parameter(0.5, "float", NEW.help)
        extended = make_dataclass(kind.__name__, [("fictitious", float, field)], bases=(kind,), frozen=True)
        monkeypatch.setitem(family._TABLE, cell, extended)
        monkeypatch.setattr(parameters, kind.__name__, extended)


CODES = [plain, with_parameters_of_classes, with_parameters_of_surrogates]


def test_no_published_run_was_lost() -> None:
    """Studies go on, so there may be more."""
    completed = [row for path in PUBLISHED for row in rows(path) if row["status"] == "completed"]
    assert len(completed) >= 790


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
def test_every_published_hash_is_made_again(
    path: Path, code: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the study's file and from the configuration on record."""
    code(monkeypatch)
    planned = {run.directory_name: run for run in read_plan(path.with_name("study.toml")).runs}
    if code is not plain:
        assert all("fictitious" in run.parameters for run in planned.values() if run.cls == "sppo")
    for row in rows(path):
        stored = json.loads(row["config"])
        assert row["hash"] in planned
        assert RunConfig.from_dict(stored).directory_name == row["hash"]
        assert same_run(planned[row["hash"]].as_dict(), stored)
        assert settled(planned[row["hash"]].as_dict()) == settled(stored)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
def test_published_runs_are_left_out_of_what_is_to_do(
    path: Path, code: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`study run --published` finds them, and so does a report."""
    code(monkeypatch)
    plan = read_plan(path.with_name("study.toml"))
    flags = argparse.Namespace(env=None, algorithm=None, seeds=None, where=None, published=path.parent)
    left = {run.directory_name for run in select(plan, flags)}
    done = completed_runs(path.parent)
    assert left | done.keys() == {run.directory_name for run in plan.runs}
    assert not left & done.keys()
    assert read_records(path.parent).counts()["completed"] == len(done)


TINY = """
name = "tiny"
environments = ["CartPole-v1"]
total_timesteps = 40_960
[algorithms.one]
"""


def hash_of(line: str) -> str:
    (run,) = parse_plan(TINY + line, "tiny.toml").runs
    return run.hash


def test_what_makes_a_difference_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with_parameters_of_classes(monkeypatch)
    found = {hash_of(line) for line in ("", "fictitious = 0.25", "gamma = 0.9", 'clip_mode = "two-sided"')}
    assert len(found) == 4
    assert hash_of("fictitious = 0.5") == hash_of("")


def test_a_divergence_counts_where_there_is_one_and_it_is_exact() -> None:
    """Runs from before one could say so had the sampled one."""
    assert hash_of('divergence = "sampled"') == hash_of("")
    exact, sampled = hash_of("eta = 1.0"), hash_of('eta = 1.0\ndivergence = "sampled"')
    assert exact != sampled
    (run,) = parse_plan(TINY + 'eta = 1.0\ndivergence = "sampled"', "tiny.toml").runs
    config = run.as_dict()
    del config["parameters"]["divergence"]
    before = RunConfig.from_dict(config)
    assert before.hash == sampled
    assert before.parameters["divergence"] == "sampled"


@pytest.mark.parametrize(
    "line",
    [
        "kl_budget = 0.03",
        "n_critic_epochs = 30",
        'critic_learning_rate = "lin_1e-3"',
        "recompute_advantages = true",
    ],
)
def test_a_trust_region_is_another_run_and_none_is_the_run_of_before(line: str) -> None:
    assert hash_of(line) != hash_of("")
    name = line.partition(" ")[0]
    assert hash_of(f"{name} = false" if name == "recompute_advantages" else f'{name} = "none"') == hash_of("")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('eta = "auto"', "kl_budget=0.03"),
        ('clip_range = "none"', "kl_budget=0.03"),
        ("kl_budget = 0", "too small"),
        ('kl_budget = "auto"', "neither a number"),
        ("n_critic_epochs = 1.5", "not a whole number"),
    ],
)
def test_impossible_trust_regions_are_named_with_their_line(lines: str, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        parse_plan(TINY + lines, "tiny.toml")


def test_ppo_has_one_clip_and_a_symmetric_one() -> None:
    ppo = {mode: hash_of(f'use_softmax = false\nclip_mode = "{mode}"') for mode in ("one-sided", "two-sided")}
    assert len(set(ppo.values())) == 1
    assert hash_of('use_softmax = false\nclip_mode = "symmetric"') not in ppo.values()
    smdpo = 'clip_range = "none"\neta = 1.0\n'
    assert hash_of(smdpo + 'clip_mode = "two-sided"') == hash_of(smdpo)


def test_new_studies_cut_on_one_side() -> None:
    (run,) = parse_plan(TINY, "tiny.toml").runs
    assert run.parameters["clip_mode"] == "one-sided"


def test_a_report_knows_runs_from_before_a_parameter_was_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,) = parse_plan(TINY, "tiny.toml").runs
    directory = tmp_path / old.directory_name
    directory.mkdir()
    RunWriter(directory, lambda path, data: path.write_bytes(data) and None, lambda: None).config(
        old, {}, None
    )
    with_parameters_of_classes(monkeypatch)
    (new,) = parse_plan(TINY, "tiny.toml").runs
    assert new.as_dict() != old.as_dict()
    entries: list[dict[str, Any]] = [{"hash": new.hash, "config": new.as_dict()}]
    (tmp_path / BOOKKEEPING).mkdir()
    (tmp_path / BOOKKEEPING / PLAN).write_text(json.dumps(entries))
    (run,) = read_records(tmp_path).runs
    assert run.status == "unfinished", run.error
