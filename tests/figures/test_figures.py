"""Figures: data first, written losslessly, and drawn from the data alone."""

import numpy as np
import pytest

from sppo.cli import main as cli
from sppo.figures import command
from sppo.figures.figure import Figure, read_table, rows, stack, where, write_table


def test_tables_survive_the_round_trip(tmp_path):
    table = {"n": [1, 2], "x": [0.1, 1 / 3], "label": ["sMDPO", "a, b"], "gap": [float("nan"), -np.inf]}
    write_table(stack(rows({}, **table)), tmp_path / "t.csv")
    back = read_table(tmp_path / "t.csv")
    assert back["n"].dtype.kind == "i"
    assert back["x"].tolist() == table["x"]
    assert back["label"].tolist() == table["label"]
    assert np.isnan(back["gap"][0])


def test_selecting_and_stacking_rows():
    table = stack([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "x"}])
    assert where(table, b="x")["a"].tolist() == [1, 3]


def test_every_figure_has_a_name_and_a_title():
    figures = command.FIGURES
    assert {
        "learning_curves",
        "ablation_cliffworld",
        "ablation_deepseatreasure",
        "ppo_sensitivity",
        "mdpo_plateaus",
        "per_state",
    } <= set(figures)
    for name, figure in figures.items():
        assert isinstance(figure, Figure)
        assert figure.name == name
        assert figure.title


def test_command_writes_pictures_and_data_and_redraws(tmp_path, capsys):
    assert cli(["figures", "mdpo_plateaus", "--quick", "--no-progress", "--out", str(tmp_path)]) == 0
    for ending in (".png", ".pdf", "-curve.csv"):
        assert (tmp_path / f"mdpo_plateaus{ending}").stat().st_size > 1000
    curve = read_table(tmp_path / "mdpo_plateaus-curve.csv")
    assert curve["value"][-1] == pytest.approx(0.9**6, abs=1e-3)
    (tmp_path / "mdpo_plateaus.png").unlink()
    assert cli(["figures", "mdpo_plateaus", "--redraw", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "mdpo_plateaus.png").exists()
    with pytest.raises(SystemExit, match="run without --redraw"):
        cli(["figures", "per_state", "--redraw", "--out", str(tmp_path)])
