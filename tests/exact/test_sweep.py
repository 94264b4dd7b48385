"""A sweep is the same runs as solve(), arranged on named axes."""

import numpy as np
import pytest

from sppo.exact import FMA, deep_sea_treasure, solve, sweep


def test_every_setting_equals_its_own_solve(cliff):
    result = sweep(
        cliff,
        "smdpo",
        "fixed",
        iterations=20,
        inner_steps=[1, 5],
        eta=[0.01, 0.1],
        alpha=np.array([0.1, 0.5, 1.0]),
        keep_curves=True,
        progress=False,
    )
    assert list(result.axes) == ["eta", "alpha", "inner_steps"]
    assert result.final.shape == (2, 3, 2)
    assert result.curves.shape == (2, 3, 2, 20)
    for i, eta in enumerate(result.axes["eta"]):
        for j, alpha in enumerate(result.axes["alpha"]):
            for k, m in enumerate(result.axes["inner_steps"]):
                alone = solve(cliff, "smdpo", "fixed", iterations=20, inner_steps=m, eta=eta, alpha=alpha)
                assert np.array_equal(result.curves[i, j, k], alone.values)
                assert result.final[i, j, k] == alone.values[-1]


def test_best_setting_and_its_curve(cliff):
    result = sweep(cliff, "mdpo", "closed_form", iterations=30, eta=[0.001, 0.1, 0.01], progress=False)
    assert result.best_value == pytest.approx(result.final.max(), abs=1e-9)
    again = solve(cliff, "mdpo", "closed_form", iterations=30, **result.best_setting)
    assert np.array_equal(result.best_curve, again.values)
    assert result.best_along("eta").tolist() == result.final.tolist()
    assert repr(result).startswith("SweepResult(mdpo, closed_form; eta: 3; best J ")


def test_the_fastest_of_equals_wins():
    """All three end at the optimum, to rounding; the largest step is there first."""
    mdp = deep_sea_treasure()
    result = sweep(
        mdp, "mdpo", "closed_form", iterations=300, eta=[5.0, 20.0, 10.0], progress=False, threads=2
    )
    assert np.ptp(result.final) < 1e-12
    assert result.best_setting == {"eta": 20.0}
    assert np.array_equal(
        result.best_curve, solve(mdp, "mdpo", "closed_form", iterations=300, eta=20.0).values
    )


def test_categorical_and_fixed_parameters(cliff):
    result = sweep(
        cliff,
        "trpo",
        "line_search",
        iterations=3,
        inner_steps=2,
        eta=0.01,
        armijo=[0.1, 0.5],
        armijo_test=["regularized", "published"],
        progress=False,
    )
    assert result.final.shape == (2, 2)
    assert result.axes["armijo_test"] == ("regularized", "published")


def test_members_of_the_general_family_are_swept_like_the_named_ones(cliff):
    family = FMA("direct", "euclidean")
    common = {"iterations": 5, "inner_steps": 3, "alpha": 0.3}
    result = sweep(cliff, family, "fixed", **common, eta=[0.01, 0.1], progress=False)
    alone = [solve(cliff, family, "fixed", **common, eta=eta) for eta in (0.01, 0.1)]
    assert result.objective == "fma"
    assert result.final.tolist() == [one.values[-1] for one in alone]
    assert result.final[0] != result.final[1]


def test_progress_is_shown_on_standard_error(cliff, capsys):
    sweep(cliff, "mdpo", "closed_form", iterations=2, eta=[0.1, 0.2])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2/2" in captured.err


def test_bad_grids_are_refused(cliff):
    with pytest.raises(ValueError, match="nothing to sweep"):
        sweep(cliff, "mdpo", "closed_form", iterations=2, eta=0.1)
    with pytest.raises(ValueError, match="empty"):
        sweep(cliff, "mdpo", "closed_form", iterations=2, eta=[])
    with pytest.raises(TypeError, match="takes no delta"):
        sweep(cliff, "mdpo", "closed_form", iterations=2, eta=[0.1], delta=[0.1])
    with pytest.raises(ValueError, match="eta must be positive"):
        sweep(cliff, "mdpo", "closed_form", iterations=2, eta=[0.1, -1.0])
    with pytest.raises(ValueError, match="inner_steps must be 1"):
        sweep(cliff, "mdpo", "closed_form", iterations=2, inner_steps=[1, 2], eta=[0.1])
    with pytest.raises(KeyError, match="its axes are eta"):
        sweep(cliff, "mdpo", "closed_form", iterations=2, eta=[0.1], progress=False).best_along("alpha")
