"""The value-gradient figure: what its tables must show, and that it can be drawn from CSV."""

from __future__ import annotations

import numpy as np
import pytest

from sppo.figures.figure import read_table, where, write_table
from sppo.figures.lqr import CURVES, FIGURES, SCALES

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(scope="module")
def tables():
    return FIGURES[0].compute(quick=True, progress=False)


def test_guaranteed_curves_never_fall(tables):
    """Every curve with a guarantee improves in each iteration."""
    guaranteed = [label for label in CURVES if "tuned" not in label]
    assert len(guaranteed) == 4
    for kind in SCALES:
        for label in guaranteed:
            assert (np.diff(where(tables["curves"], kind=kind, curve=label)["gap"]) <= 1e-12).all()


def test_one_update_obeys_both_step_sizes(tables):
    """J stays above ℓ up to the guaranteed η, and above its start up to the improving η; not for ever."""
    for kind in SCALES:
        rows = where(tables["update"], kind=kind)
        guaranteed = rows["eta"] <= rows["guaranteed_eta"]
        improving = rows["eta"] <= rows["improving_eta"]
        assert guaranteed.any()
        assert (rows["value_gain"] >= rows["surrogate_gain"])[guaranteed].all()
        assert (rows["value_gain"] > 0)[improving].all()
        assert not (rows["value_gain"] >= rows["surrogate_gain"]).all()


def test_picture_is_drawn_from_the_written_tables(tables, tmp_path):
    """Tables survive the way through CSV, infinite gaps included."""
    for name, table in tables.items():
        write_table(table, tmp_path / f"{name}.csv")
    figure = FIGURES[0].draw({name: read_table(tmp_path / f"{name}.csv") for name in tables})
    assert len(figure.axes) == 4
    assert len(figure.axes[0].lines) == len(CURVES)
    plt.close(figure)
