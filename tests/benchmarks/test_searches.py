"""The table of trials is what the committed journals hold, and what the report's setting was chosen from."""

from __future__ import annotations

import pytest

from benchmarks import searches
from benchmarks.pages import READMES, fill
from sppo.study.definition import read_plan
from sppo.study.tuning import read_tuning

MILLION = read_plan(searches.STUDIES / "million.toml")


def test_the_published_table_comes_out_of_the_journals() -> None:
    tables = searches.all_tables()
    pages = [page.read_text(encoding="utf-8") for page in READMES]
    assert any(f"<!-- {searches.SCRIPT}: " in page for page in pages)
    assert [fill(page, searches.SCRIPT, tables) for page in pages] == pages


def test_no_setting_was_chosen_with_the_seeds_that_are_reported() -> None:
    reported = {run.seed for run in MILLION.runs}
    for name, _ in searches.SEARCHES:
        assert reported.isdisjoint(
            run.seed for run in read_tuning(searches.STUDIES / f"{name}.toml").base.runs
        )


@pytest.mark.parametrize("env", searches.ENVIRONMENTS)
def test_what_is_reported_was_tried(env: str) -> None:
    ours = next(run for run in MILLION.runs if (run.algorithm, run.env) == ("sppo", env))
    tried = []
    for name, envs in searches.SEARCHES:
        tuning = read_tuning(searches.STUDIES / f"{name}.toml", envs)
        for trial in searches.trials_of(name, tuning):
            tried += [run.parameters for run in tuning.plan(trial.params).runs if run.env == env]
    # The engine is the study's choice, so that PPO trains with it as well.
    assert {**ours.parameters, "engine": "auto"} in [{**one, "engine": "auto"} for one in tried]
