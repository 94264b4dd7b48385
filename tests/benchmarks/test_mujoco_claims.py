"""The tables of claims, on made-up runs whose differences are known."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks import mujoco_claims as claims
from benchmarks.pages import READMES, fill
from sppo.records.published import is_published, write_runs
from sppo.records.studies import read_records
from sppo.report.cells import build_cells
from sppo.report.provenance import collect, shown_path
from sppo.report.summary import summarise
from sppo.report.tables import write_tables
from sppo.report.tensorboard import scalar, write_events
from tests.records import synthetic_study as synthetic


def result(algorithm: str, m: int, clip: float, seed: int) -> float:
    """PPO loses 400 epsilon at m = 100; sPPO never does; the one-sided variant is PPO plus 10."""
    base = 1000.0 + 100.0 * seed
    ppo = base - (400.0 * clip if m == 100 else 0.0)
    return {"ppo": ppo, "sppo": base, "sppo-one-sided": ppo + 10.0}[algorithm]


def publish(root: Path, name: str, shift: float, seeds: tuple[int, ...] = (0, 1)) -> None:
    source, copy = root / "records" / name, root / name
    copy.mkdir()
    algorithms = ("ppo", "sppo", "sppo-one-sided")
    for config in synthetic.grid(["Hopper-v5", "Ant-v5"], algorithms, clips=(0.1, 0.3, 0.5), seeds=seeds):
        parameters = config["parameters"]
        value = result(config["algorithm"], parameters["n_epochs"], parameters["clip_range"], config["seed"])
        value -= shift if config["algorithm"] == "ppo" else 0.0
        synthetic.write_completed(source, config, np.full((18, 5), value))
    write_runs(read_records(source).runs, copy)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    publish(tmp_path, "mujoco-500k", shift=0.0)
    publish(tmp_path, "mujoco-500k-nodecay", shift=500.0)
    return tmp_path


def rows(table: tuple) -> list[dict[str, str]]:
    header, body = table
    return [dict(zip(header, row, strict=True)) for row in body]


def test_differences_are_paired_and_averaged_over_settings(root: Path) -> None:
    found = rows(claims.in_every_environment(claims.Runs.load("mujoco-500k", root)))
    assert [row["environment"] for row in found] == ["Hopper-v5"] * 2 + ["Ant-v5"] * 2
    softmax, one_sided = found[:2]
    # 0 at m = 10; 40, 120 and 200 at m = 100
    assert softmax["difference, 95 % interval"].startswith("60.0 [")
    assert softmax["better in"] == "3 of 6"
    assert one_sided["difference, 95 % interval"] == "10.0 [10.0, 10.0]"
    assert one_sided["better in"] == "6 of 6"


def test_environments_together(root: Path) -> None:
    runs = claims.Runs.load("mujoco-500k", root)
    found = rows(claims.all_environments(runs, claims.normalisation_bounds(runs.cells.values())))
    assert [(row["m"], row["pairs"]) for row in found[:3]] == [("10", "6"), ("100", "6"), ("10, 100", "12")]
    assert [row["better in"] for row in found[:3]] == ["0 of 6", "6 of 6", "6 of 12"]
    assert found[5]["scaled difference, 95 % interval"] == "0.03 [0.03, 0.03]"


def test_growth_of_the_lead(root: Path) -> None:
    """In units of the spread of all results: from 1000 - 200 to 1100 + 10."""
    runs = claims.Runs.load("mujoco-500k", root)
    bounds = claims.normalisation_bounds(runs.cells.values())
    assert bounds["Hopper-v5"] == (800.0, 1110.0)
    softmax, one_sided = rows(claims.growth_of_lead(runs, bounds))
    assert softmax["lead at m = 100 minus at m = 10"].startswith("0.39 [")
    assert softmax["pairs"] == "6"
    # slope 0 at m = 10 and 400 / 310 at m = 100, in two environments
    assert softmax["slope of the lead in ε"].startswith("0.65 [")
    assert one_sided["lead at m = 100 minus at m = 10"] == "0.00 [0.00, 0.00]"


def test_what_is_left_without_decay(root: Path) -> None:
    runs, plain = (claims.Runs.load(name, root) for name in ("mujoco-500k", "mujoco-500k-nodecay"))
    ppo, softmax, _ = rows(claims.without_decay(runs, plain))[:3]
    assert ppo["change, 95 % interval"] == "−500.0 [−500.0, −500.0]"
    assert ppo["kept"] == "49%"
    assert softmax["kept"] == "100%"


def test_verdicts(root: Path) -> None:
    """sPPO's lead grows by construction, the one-sided variant's lead of 10 is certain and constant."""
    found = {row["claim"]: row for row in rows(claims.all_tables(root)["Verdicts"])}
    decided = {claim: row["verdict"].strip("*") for claim, row in found.items()}
    assert decided == {
        "(a) on average two-sided sPPO is at least as good as PPO": "holds",
        "(a) on average one-sided sPPO is at least as good as PPO": "holds",
        "(b) the lead of two-sided sPPO grows with the number of passes m": "holds",
        "(b) the lead of one-sided sPPO grows with the number of passes m": "open",
        "(b) the lead of two-sided sPPO grows with the clip ε": "open",
        "(b) the lead of one-sided sPPO grows with the clip ε": "open",
        "(c) without decay and clipping PPO fails": "refuted",
        "(c) without them two-sided sPPO degrades only mildly": "holds",
        "(c) without them one-sided sPPO degrades only mildly": "holds",
        "(c) without them two-sided sPPO is ahead of PPO": "holds",
        "(c) without them one-sided sPPO is ahead of PPO": "holds",
    }
    assert (
        "ahead on average in 2 of 2 environments (Hopper, Ant)"
        in next(iter(found.values()))["evidence: scaled, mean and 95 % interval"]
    )


def test_verdicts_on_the_whole_curve(tmp_path: Path) -> None:
    """A lead of 50 that is lost in the last evaluation counts over the whole training only."""
    source, copy = tmp_path / "records", tmp_path / "mujoco-500k"
    copy.mkdir()
    for config in synthetic.grid(["Hopper-v5"], ["ppo", "sppo"], seeds=range(2)):
        returns = np.full((18, 5), 100.0 + config["seed"])
        returns[:-1] += 50.0 if config["algorithm"] == "sppo" else 0.0
        synthetic.write_completed(source, config, returns)
    write_runs(read_records(source).runs, copy)
    tables = claims.all_tables(tmp_path)
    by_end, by_curve = (
        rows(tables[name])[0]["verdict"] for name in ("Verdicts", "Verdicts by the mean over all evaluations")
    )
    assert (by_end, by_curve) == ("open", "**holds**")


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "refuted"), (960.0, "holds"), (890.0, "open")])
def test_failing_is_to_keep_less_than_a_tenth(tmp_path: Path, shift: float, verdict: str) -> None:
    """PPO's results lie between 850 and 1050: without both, 960 less is a tenth of none of them."""
    publish(tmp_path, "mujoco-500k", shift=0.0)
    publish(tmp_path, "mujoco-500k-nodecay", shift=shift)
    found = {row["claim"]: row["verdict"] for row in rows(claims.all_tables(tmp_path)["Verdicts"])}
    assert found["(c) without decay and clipping PPO fails"].strip("*") == verdict


def test_changes_are_between_the_seeds_that_both_have(tmp_path: Path) -> None:
    """Every seed is 100 better than the one before: other seeds would show as a change."""
    publish(tmp_path, "mujoco-500k", shift=0.0, seeds=(0, 1, 2))
    publish(tmp_path, "mujoco-500k-nodecay", shift=0.0, seeds=(2,))
    runs, plain = (claims.Runs.load(name, tmp_path) for name in ("mujoco-500k", "mujoco-500k-nodecay"))
    for row in rows(claims.without_decay(runs, plain)):
        assert (row["change, 95 % interval"], row["kept"]) == ("0.000 [0.000, 0.000]", "100%")
    # If there is no such seed, all are used.
    publish(tmp_path, "elsewhere", shift=0.0, seeds=(5,))
    found = rows(claims.without_decay(runs, claims.Runs.load("elsewhere", tmp_path)))
    assert found[0]["change, 95 % interval"] == "400.0 [400.0, 400.0]"


def test_other_bounds_by_size_of_the_clip(root: Path) -> None:
    """Symmetric bounds that are worth 100 epsilon: 10 at the small clip, 30 and 50 at the large ones."""
    source, copy = root / "records" / "symmetric", root / "mujoco-500k-symmetric"
    copy.mkdir()
    for config in synthetic.grid(["Hopper-v5"], ["ppo-symmetric"], clips=(0.1, 0.3, 0.5), seeds=[1]):
        parameters = config["parameters"]
        value = result("ppo", parameters["n_epochs"], parameters["clip_range"], 1)
        synthetic.write_completed(source, config, np.full((18, 5), value + 100 * parameters["clip_range"]))
    write_runs(read_records(source).runs, copy)
    found = rows(claims.all_tables(root)["What symmetric bounds change"])
    assert [(row["ε"], row["settings"], row["runs"]) for row in found] == [
        ("0.1", "2", "2"),
        ("0.3, 0.5", "4", "4"),
        ("0.1, 0.3, 0.5", "6", "6"),
    ]
    gaps = [row["[1/(1+ε), 1+ε] minus [1−ε, 1+ε]"] for row in found]
    assert gaps[0] == "10.0 [10.0, 10.0]"
    assert [gap.split()[0] for gap in gaps[1:]] == ["40.0", "30.0"]


def test_longer_runs_count_once_they_are_complete(root: Path) -> None:
    """Ant's of a million steps, ten passes each: sPPO leads by 70 there, and by nothing before."""
    source, copy = root / "records" / "ant", root / "mujoco-1m-ant"
    copy.mkdir()
    algorithms = ("ppo", "sppo", "sppo-one-sided")
    for config in synthetic.grid(["Ant-v5"], algorithms, passes=[10], clips=(0.1, 0.3, 0.5), seeds=[0, 1]):
        value = 5070.0 if config["algorithm"] == "sppo" else 5000.0
        synthetic.write_completed(source, config, np.full((18, 5), value + config["seed"]))
    everything = read_records(source).runs
    kind = next(run.config["parameters"] for run in everything if run.algorithm == "sppo")
    write_runs([run for run in everything if run.config["parameters"] != kind], copy)
    before = claims.all_tables(root)["(a) Against PPO, environment by environment"]
    assert [row["PPO, mean"] for row in rows(before) if row["environment"] == "Ant-v5"] == ["990.0"] * 2
    write_runs(everything, copy)
    found = rows(claims.all_tables(root)["(a) Against PPO, environment by environment"])
    softmax, one_sided = [row for row in found if row["environment"] == "Ant-v5"]
    assert (softmax["settings"], softmax["difference, 95 % interval"]) == ("3", "70.0 [70.0, 70.0]")
    assert (one_sided["PPO, mean"], one_sided["difference, 95 % interval"].split()[0]) == ("5000", "0.000")
    assert found[:2] == rows(before)[:2], "Hopper's are as before"


def test_divergences_stand_beside_the_clips(root: Path) -> None:
    source, copy = root / "records" / "mirror", root / "mujoco-500k-mirror"
    copy.mkdir()
    for label, eta in (("trpo", None), ("smdpo", 1.0), ("smdpo", 10.0)):
        config = synthetic.configuration("Hopper-v5", label, 0, n_epochs=10, clip_range="none", eta=eta)
        synthetic.write_completed(source, config, np.full((18, 5), 7.0))
    write_runs(read_records(source).runs, copy)
    found = rows(claims.all_tables(root)["The divergence instead of the clip, and TRPO"])
    assert {row["environment"] for row in found} == {"Hopper-v5"}
    assert {(row["algorithm"], row["η"]) for row in found if row["ε"] == "–"} == {
        ("trpo", "–"),
        ("sMDPO", "1.0"),
        ("sMDPO", "10.0"),
    }
    ppo = next(row for row in found if row["algorithm"] == "PPO")
    assert (ppo["ε"], ppo["n"], ppo["result, 95 % interval"].split()[0]) == ("0.3", "2", "1050")


def test_ranking_is_over_environments_that_all_have(root: Path) -> None:
    runs = claims.Runs.load("mujoco-500k", root)
    runs.cells.pop(("Ant-v5", "sppo-one-sided", 10, 0.1, None))
    found = rows(claims.settings_ranked(runs, claims.normalisation_bounds(runs.cells.values())))
    assert len(found) == 18
    assert "Ant-v5" not in found[0]
    assert (found[0]["algorithm"], found[0]["m"]) == ("sPPO one-sided", "10")
    assert found[0]["Hopper-v5"] == "1060"


def test_only_what_was_run_is_tabulated(root: Path) -> None:
    tables = claims.all_tables(root)
    assert not any("TRPO" in heading or "symmetric" in heading for heading in tables)
    assert all(len(set(map(len, [header, *body]))) == 1 for header, body in tables.values())


def test_published_tables_come_out_of_the_committed_files() -> None:
    """Every table of the two READMEs, to the letter, from what is in git."""
    tables = claims.all_tables(claims.RESULTS)
    pages = [page.read_text(encoding="utf-8") for page in READMES]
    assert any(f"<!-- {claims.SCRIPT}: " in page for page in pages)
    assert [fill(page, claims.SCRIPT, tables) for page in pages] == pages


@pytest.mark.parametrize("name", [name for name in claims.STUDIES if is_published(claims.RESULTS / name)])
def test_published_reports_come_out_of_the_committed_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables of a report, to the byte, from its runs and evaluations."""
    monkeypatch.chdir(claims.ROOT)
    directory = claims.RESULTS / name
    runs = read_records(directory).runs
    command, study_file = f"python -m sppo report {shown_path(directory)}", directory / "study.toml"
    provenance = collect(command, runs, shown_path(study_file))
    for path in write_tables(summarise(build_cells(runs)), provenance, tmp_path):
        assert path.read_bytes() == (directory / path.name).read_bytes(), path.name


def test_distances_are_the_medians_of_event_files_and_stay_when_these_are_gone(root: Path) -> None:
    """Mean over a cell's runs of their medians; a second reading replaces a run's own row alone."""
    runs, studies = claims.Runs.load("mujoco-500k", root), [root / "records" / "mujoco-500k"]
    (root / claims.DISTANCES).unlink(missing_ok=True)
    assert claims.distance_of_updates(runs, root)[1] == []

    def write(values: dict[int, float]) -> None:
        """Logs of one cell's runs, with these medians by seed."""
        for run in read_records(studies[0]).runs:
            wanted = ("Hopper-v5", "sppo", 10, 0.3)
            setting = run.parameters["n_epochs"], run.parameters["clip_range"]
            if (run.env, run.algorithm, *setting) == wanted and run.seed in values and run.path:
                points = [1.0, 2.0, values[run.seed], 9999.0, 9999.0]
                events = [(step, scalar("train/approx_kl", value)) for step, value in enumerate(points)]
                write_events(run.path / "tensorboard" / "events.out.tfevents.1.own", events)

    write({0: 500.0, 1: 2000.0})
    claims.read_distances(studies, root)
    (row,) = rows(claims.distance_of_updates(runs, root))
    place = {"environment": "Hopper-v5", "algorithm": "sPPO"}
    assert row == {**place, "runs per setting": "2", "m = 10, ε = 0.3": "1200"}
    for path in studies[0].glob("*/tensorboard"):
        shutil.rmtree(path)
    write({1: 700.0})
    claims.read_distances(studies, root)
    (row,) = rows(claims.distance_of_updates(runs, root))
    assert row["m = 10, ε = 0.3"] == "600"
    assert len(claims.published_distances(root)) == 2
