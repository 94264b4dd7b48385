"""The robustness figure's numbers, from made-up runs and from the committed ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from benchmarks import robustness
from benchmarks.pages import READMES, fill
from sppo.records.studies import read_records
from tests.records import synthetic_study as synthetic


@pytest.fixture
def scores(tmp_path: Path) -> robustness.Scores:
    """PPO and sPPO at two m; a run's final return is 100 times its seed plus one, twice that at m = 100."""
    configs = [
        synthetic.configuration(env, label, seed, n_epochs=m, learning_rate="lin_0.0003")
        for env in robustness.ENVIRONMENTS
        for label in ("ppo", "sppo")
        for m in (10, 100)
        for seed in range(3)
        if (env, label, m) != ("Hopper-v5", "sppo", 100)
    ]
    for config in configs:
        final = 100.0 * (config["seed"] + 1) * (2 if config["parameters"]["n_epochs"] == 100 else 1)
        final = -50.0 if config["algorithm"] == "sppo" and config["seed"] == 0 else final
        synthetic.write_completed(tmp_path, config, np.full((18, 5), final))
    synthetic.write_plan(tmp_path, configs)
    return robustness.scores_of(read_records(tmp_path).runs)


def test_scores_are_shares_of_the_best_mean_and_not_negative(scores: robustness.Scores) -> None:
    assert scores["ppo", 100, "0.0003"] == [pytest.approx([0.5, 1, 1.5])] * 3
    assert scores["sppo", 10, "0.0003"] == [pytest.approx([0, 0.5, 0.75])] * 3


def test_a_point_without_an_environment_is_left_out(scores: robustness.Scores) -> None:
    assert ("sppo", 100, "0.0003") not in scores
    _, rows = robustness.by_passes(scores, [10, 100])
    sppo = next(row for row in rows if row[0] == "sPPO")
    assert sppo[2:] == ("", "")


def test_leads_are_taken_from_ppo_at_ten_passes(scores: robustness.Scores) -> None:
    found = robustness.lead(scores["ppo", 100, "0.0003"], scores[robustness.BASELINE])
    assert found.value == pytest.approx(0.5)
    spread = np.sqrt((np.var([0.5, 1, 1.5], ddof=1) + np.var([0.25, 0.5, 0.75], ddof=1)) / 3 / 3)
    assert found.value - found.low > scipy.stats.norm.ppf(0.975) * spread


def test_published_tables_come_out_of_the_committed_files() -> None:
    tables = robustness.all_tables(robustness.scores_of(robustness.published_runs()))
    pages = [page.read_text(encoding="utf-8") for page in READMES]
    assert any(f"<!-- {robustness.SCRIPT}: " in page for page in pages)
    assert [fill(page, robustness.SCRIPT, tables) for page in pages] == pages
