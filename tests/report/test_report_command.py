"""The report as a whole: its files, where they come from, and what it says about runs that are not there."""

from __future__ import annotations

import csv
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sppo import cli
from sppo.report.command import main as report
from tests.records import synthetic_study as synthetic

FILES = {
    "report.html", "provenance.json", "runs.csv", "evaluations.csv", "final_returns.csv", "comparisons.csv",
    "iqm.csv", "profiles.csv",
    *(f"{name}.{ending}" for name in ("grid", "iqm", "improvement", "profiles") for ending in ("png", "pdf")),
}  # fmt: skip
TABLES = ("final_returns.csv", "comparisons.csv", "iqm.csv", "profiles.csv")


def small_grid(**changes: object) -> list[dict]:
    settings: dict = {
        "envs": ["Hopper-v5", "Ant-v5"],
        "clips": [0.1, 0.7],
        "seeds": range(2),
        "evaluations": 4,
    }
    return list(synthetic.grid(**{**settings, **changes}))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with every kind of run, and its report."""
    directory = tmp_path_factory.mktemp("runs") / "small"
    configs = small_grid()
    directory.mkdir()
    for config in configs[4:]:
        synthetic.write_completed(directory, config)
    synthetic.write_failed(directory, configs[0], "FloatingPointError: <NaN> in the loss")
    synthetic.write_header(directory, configs[1])
    synthetic.write_completed(directory, configs[2]).joinpath("evaluations.csv").write_text("")
    synthetic.write_plan(directory, configs)
    assert report([str(directory)]) == 0
    return directory


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_all_files_are_written(study: Path) -> None:
    assert {path.name for path in (study / "report").iterdir()} == FILES | {"tensorboard"}


@pytest.mark.parametrize("name", TABLES)
def test_tables_carry_command_versions_and_seeds(study: Path, name: str) -> None:
    for row in table(study / "report" / name):
        assert row["command"] == "python -m sppo report small"
        assert "torch 2.13.0" in row["versions"]
        assert "git 0123456789ab" in row["versions"]
        assert re.fullmatch(r"[\d, -]*", row["seeds"])


@pytest.mark.parametrize("name", ["grid", "iqm", "improvement", "profiles"])
def test_figures_carry_command_versions_and_seeds(study: Path, name: str) -> None:
    png = (study / "report" / f"{name}.png").read_bytes()
    for text in (b"python -m sppo report small", b"torch 2.13.0", b"Seeds: 0, 1"):
        assert text in png
    assert b"CreationDate" not in (study / "report" / f"{name}.pdf").read_bytes()


def test_counts_of_every_cell_are_in_the_table(study: Path) -> None:
    rows = table(study / "report" / "final_returns.csv")
    counted = {
        name: sum(int(row[name]) for row in rows)
        for name in ("planned", "completed", "unfinished", "failed", "damaged", "missing")
    }
    expected = {"planned": 32, "completed": 28, "unfinished": 1, "failed": 1, "damaged": 1, "missing": 1}
    assert counted == expected
    empty = [row for row in rows if row["completed"] == "0"]
    assert len(empty) == 2
    assert {row["mean"] for row in empty} == {""}


def test_page_lists_runs_that_are_not_in_the_means(study: Path) -> None:
    page = (study / "report" / "report.html").read_text()
    for status in ("unfinished", "failed", "damaged", "missing"):
        assert f"1 {status}" in page
    assert "FloatingPointError: &lt;NaN&gt; in the loss" in page
    assert "FloatingPointError: <NaN>" not in page
    assert "0 of 2 (1 unfinished, 1 failed)" in page
    assert "0 of 2 (1 damaged, 1 missing)" in page


class Outline(HTMLParser):
    """Tags that are open at the end, links to the outside, and images without a description."""

    VOID = frozenset({"meta", "path", "use", "line", "circle", "br", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.undescribed = 0
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.open += [] if tag in self.VOID else [tag]
        self.ids += [values["id"] or ""] if "id" in values else []
        for name in ("src", "href", "xlink:href"):
            link = values.get(name) or ""
            self.links += [link[1:]] if link.startswith("#") else []
            self.outside += [link] if link and not link.startswith(("#", "data:")) else []
        described = (values.get("role") == "img" and values.get("aria-label")) or values.get("aria-hidden")
        self.undescribed += tag in ("svg", "img") and not described

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_page_is_whole_self_contained_and_described(study: Path) -> None:
    page = (study / "report" / "report.html").read_text()
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert outline.outside == []
    assert outline.undescribed == 0
    assert set(outline.links) <= set(outline.ids)
    assert "<script" not in page
    assert "url(http" not in page
    assert "@import" not in page


def test_same_records_same_report(study: Path, tmp_path: Path) -> None:
    """No clock, no machine and no random seed in any file."""
    assert report([str(study), "--out", str(tmp_path)]) == 0
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (study / "report" / name).read_bytes(), name


@pytest.mark.usefixtures("_sheets_left_blank")
def test_published_files_make_the_same_tables(study: Path, tmp_path: Path) -> None:
    published, again = tmp_path / "small", tmp_path / "again"
    published.mkdir()
    for name in ("runs.csv", "evaluations.csv"):
        shutil.copy(study / "report" / name, published)
    assert report([str(published), "--out", str(again)]) == 0
    for name in (*TABLES, "runs.csv", "evaluations.csv"):
        assert (again / name).read_bytes() == (study / "report" / name).read_bytes(), name


@pytest.mark.usefixtures("_sheets_left_blank")
def test_one_seed_per_cell(tmp_path: Path) -> None:
    synthetic.write_study(tmp_path, small_grid(envs=["Hopper-v5"], passes=[10], seeds=[7]))
    assert report([str(tmp_path), "--tensorboard-seeds", "0", "--baseline", "sppo"]) == 0
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Runs per line: 1. One run has no interval." in page
    assert {row["mean_low"] for row in table(tmp_path / "report" / "final_returns.csv")} == {""}
    rows = table(tmp_path / "report" / "comparisons.csv")
    assert {row["probability_low"] for row in rows} == {""}
    assert {row["command"].partition(" --")[2] for row in rows} == {"baseline sppo"}


def section(page: str, name: str) -> str:
    return page[page.index(f'<section id="{name}"') :].partition("</section>")[0]


def texts(svg_page: str) -> set[str]:
    """What stands in the figures."""
    return {re.sub("<[^>]+>", "", text).strip() for text in re.findall(r"<text.*?</text>", svg_page, re.S)}


def test_axes_say_what_they_show(study: Path) -> None:
    page = (study / "report" / "report.html").read_text()
    assert {"IQM of normalised final return", "setting"} <= texts(section(page, "iqm"))
    assert "min-max normalised per environment" in section(page, "iqm")
    assert "setting" in texts(section(page, "improvement"))
    assert "probability that a run beats" in " ".join(texts(section(page, "improvement")))
    assert b"min-max normalised per environment" in (study / "report" / "iqm.png").read_bytes()


def test_counts_of_runs_are_below_the_curves_and_not_on_them(study: Path) -> None:
    curves = section((study / "report" / "report.html").read_text(), "grid")
    assert "Runs per line: 2." in curves
    assert "28 of 32 planned runs are completed (1 unfinished, 1 failed, 1 damaged, 1 missing)." in curves
    assert not any("n =" in text or "missing" in text for text in texts(curves))
    assert "var(--alarm)" not in curves


@pytest.mark.usefixtures("_sheets_left_blank")
def test_cells_beyond_the_grid_have_their_own_figure_and_table(tmp_path: Path) -> None:
    configs = small_grid(envs=["Hopper-v5"], passes=[10])
    for seed in range(2):
        for name in ("mdpo", "smdpo"):
            beyond = {"n_epochs": 10, "clip_range": None, "eta": 1.0, "evaluations": 4}
            configs.append(synthetic.configuration("Hopper-v5", name, seed, **beyond))
        configs.append(synthetic.configuration("Hopper-v5", "trpo", seed, target_kl=0.01, evaluations=4))
    synthetic.write_study(tmp_path, configs)
    assert report([str(tmp_path), "--tensorboard-seeds", "0"]) == 0
    assert (tmp_path / "report" / "beyond.png").exists()
    page = (tmp_path / "report" / "report.html").read_text()
    assert "sMDPO" in section(page, "beyond")
    assert "trpo" in section(page, "beyond")
    rows = table(tmp_path / "report" / "final_returns.csv")
    assert {(row["algorithm"], row["eta"]) for row in rows if not row["epsilon"]} == {
        ("mdpo", "1"), ("smdpo", "1"), ("trpo", ""),
    }  # fmt: skip


def test_no_run_completed_yet(tmp_path: Path) -> None:
    """Right after the start of a study, a report says so instead of failing."""
    configs = small_grid()
    synthetic.write_header(tmp_path, configs[0])
    synthetic.write_plan(tmp_path, configs)
    assert report([str(tmp_path)]) == 0
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<b>0</b> completed" in page
    assert "no completed run" in page


@pytest.mark.usefixtures("_sheets_left_blank")
def test_one_algorithm_alone(tmp_path: Path) -> None:
    synthetic.write_study(tmp_path, small_grid(algorithms=["sppo"], envs=["Hopper-v5"]))
    assert report([str(tmp_path), "--tensorboard-seeds", "0"]) == 0
    assert not (tmp_path / "report" / "improvement.png").exists()


def test_all_returns_equal(tmp_path: Path) -> None:
    """No spread at all: nothing to normalise by, and no division by zero."""
    configs = small_grid(envs=["CartPole-v1"])
    for config in configs:
        synthetic.write_completed(tmp_path, config, [[500.0] * 5] * 4)
    assert report([str(tmp_path), "--tensorboard-seeds", "0"]) == 0
    assert "no normalised score" in (tmp_path / "report" / "report.html").read_text()


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir])
def test_nothing_to_report_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture, make) -> None:
    make(tmp_path / "study")
    assert cli.main(["report", str(tmp_path / "study")]) == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("report", "matplotlib", "plot"),
        ("report", "jinja2", "plot"),
        ("compare", "tensorboard", "tensorboard"),
    ],
)
def test_missing_package_names_what_installs_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    package: str,
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main([command, str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert package in message
    assert f'pip install ".[{extra}]"' in message


@pytest.mark.usefixtures("_sheets_left_blank")
def test_part_of_a_study(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Who ran a tenth of the study can report that tenth, and the report says so."""
    configs = small_grid(passes=[10])
    for config in configs:
        if config["env"] == "Hopper-v5" and config["seed"] == 0:
            synthetic.write_completed(tmp_path, config)
    synthetic.write_plan(tmp_path, configs)
    flags = ["--env", "Hopper-v5", "--seeds", "0:1"]
    assert cli.main(["report", str(tmp_path), *flags, "--tensorboard-seeds", "0"]) == 0
    assert "4 runs, 4 completed" in capsys.readouterr().out
    (command,) = {row["command"] for row in table(tmp_path / "report" / "final_returns.csv")}
    assert command.endswith(" --env Hopper-v5 --seeds 0:1")


def test_environments_without_a_run_are_named_instead_of_drawn(tmp_path: Path) -> None:
    """Rows of empty panels would push what there is off the page; their counts stay in the tables."""
    configs = small_grid(passes=[10])
    for config in configs:
        if config["env"] == "Ant-v5":
            synthetic.write_completed(tmp_path, config)
    synthetic.write_plan(tmp_path, configs)
    assert report([str(tmp_path)]) == 0
    page = (tmp_path / "report" / "report.html").read_text()
    assert "No completed run yet: Hopper-v5." in page
    assert "<figcaption>Ant-v5, ε = 0.7</figcaption>" in page
    assert "<figcaption>Hopper-v5, ε = 0.7</figcaption>" not in page
    assert b"No completed run yet: Hopper-v5." in (tmp_path / "report" / "grid.png").read_bytes()
    assert page.count("no completed run, 8 missing") == 1
    rows = table(tmp_path / "report" / "final_returns.csv")
    assert {row["missing"] for row in rows if row["env"] == "Hopper-v5"} == {"2"}


def test_a_study_without_any_run_is_a_table_as_planned(tmp_path: Path) -> None:
    synthetic.write_plan(tmp_path, small_grid(passes=[10]))
    assert report([str(tmp_path)]) == 0
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<figcaption>" not in page
    assert page.count("0 of 2 (2 missing)") == 8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--env", "Ant"], "the study has Ant-v5, Hopper-v5"),
        (["--algorithm", "a2c"], "the study has ppo, sppo"),
        (["--seeds", "0-3"], '"0:5"'),
        (["--baseline", "nope"], "the study has ppo, sppo"),
        (["--seeds", "9"], "--seeds 9: the study has 0:2"),
    ],
)
def test_impossible_part_of_a_study(
    study: Path, capsys: pytest.CaptureFixture, flags: list[str], message: str
) -> None:
    assert cli.main(["report", str(study), *flags]) == 2
    assert message in capsys.readouterr().err
