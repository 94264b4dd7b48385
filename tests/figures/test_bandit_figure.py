"""The bandit figure's tables are consistent and its picture has the paper's six panels."""

from __future__ import annotations

import numpy as np
import pytest

from sppo.bandits import ALGORITHMS, simulate
from sppo.figures.bandit import FIGURES, GAPS, HORIZONS, STEP_SIZES
from sppo.figures.figure import read_table, where, write_table

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(scope="module")
def tables():
    return FIGURES[0].compute(quick=True, progress=False)


def test_protocol_is_the_papers():
    """Step sizes, gaps and horizons of Appendix D with its corrections."""
    assert STEP_SIZES == (0.5, 0.05, 0.005, 0.0005, 0.00005)
    assert GAPS == {"easy": 0.5, "hard": 0.1}
    assert HORIZONS == {2: 100_000, 10: 200_000, 100: 600_000}


def test_curves_and_summary_show_the_best_step_size_of_the_grid(tables):
    """In each panel the curve is the one of lowest final regret, and ends where the summary says."""
    assert len(tables["summary"]["eta"]) == len(GAPS) * len(HORIZONS) * len(ALGORITHMS)
    for difficulty in GAPS:
        for arms in HORIZONS:
            for algorithm in ALGORITHMS:
                key = {"difficulty": difficulty, "arms": arms, "algorithm": algorithm}
                grid = where(tables["grid"], **key)
                curve = where(tables["curves"], **key)
                summary = where(tables["summary"], **key)
                best = np.argmin(grid["final_regret"])
                assert set(curve["eta"]) == {grid["eta"][best]} == set(summary["eta"])
                assert curve["regret"][-1] == grid["final_regret"][best]
                assert summary["regret"][0] == pytest.approx(grid["final_regret"][best], rel=1e-12)
                assert curve["round"][-1] == grid["horizon"][best]


def test_excess_is_paired_by_environment(tables):
    """The excess over sEXP3 and its interval come from differences on the same environments."""
    key = {"difficulty": "hard", "arms": 2}
    finals = {}
    for algorithm in ("sexp3", "exp3-lbiw"):
        row = where(tables["summary"], **key, algorithm=algorithm)
        finals[algorithm] = simulate(
            algorithm, arms=2, gap=0.1, horizon=int(row["horizon"][0]), eta=float(row["eta"][0]), seeds=20
        ).final[0]
    difference = finals["exp3-lbiw"] - finals["sexp3"]
    row = where(tables["summary"], **key, algorithm="exp3-lbiw")
    assert row["excess"][0] == pytest.approx(difference.mean())
    # Student's 97.5% quantile with 19 degrees of freedom.
    assert row["excess_half_width"][0] == pytest.approx(2.093024 * difference.std(ddof=1) / np.sqrt(20))


def test_picture_is_drawn_from_the_written_tables(tables, tmp_path):
    """Tables survive the way through CSV, and the picture has 2 × 3 panels with three curves each."""
    for name, table in tables.items():
        write_table(table, tmp_path / f"{name}.csv")
    figure = FIGURES[0].draw({name: read_table(tmp_path / f"{name}.csv") for name in tables})
    assert [len(axis.lines) for axis in figure.axes] == [3] * 6
    assert figure.axes[0].get_title() == "easy (Δ = 0.5), 2 arms"
    plt.close(figure)
