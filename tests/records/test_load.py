"""Nothing on disk is averaged that should not be, and nothing that was planned disappears."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sppo.records.published import write_runs
from sppo.records.runs import Run
from sppo.records.studies import read_records
from sppo.report.cells import build_cells
from sppo.report.summary import summarise
from tests.records import synthetic_study as synthetic

CONFIG = synthetic.configuration("Hopper-v5", "sppo", 0, n_epochs=10, clip_range=0.3)


def only_run(directory: Path) -> Run:
    (run,) = read_records(directory).runs
    return run


def test_completed_run_has_the_mean_of_each_evaluation(tmp_path: Path) -> None:
    returns = np.arange(18 * 5).reshape(18, 5)
    synthetic.write_completed(tmp_path, CONFIG, returns)
    run = only_run(tmp_path)
    assert run.status == "completed"
    np.testing.assert_allclose(run.returns, returns.mean(axis=1))
    np.testing.assert_allclose(run.spreads, returns.std(axis=1))
    assert run.episodes.tolist() == [5] * 18
    assert run.timesteps[-1] == CONFIG["total_timesteps"]
    assert run.final_return == returns[-1].mean()


def test_failed_run_keeps_its_error_and_traceback(tmp_path: Path) -> None:
    synthetic.write_failed(tmp_path, CONFIG, "ValueError: NaN in the loss")
    run = only_run(tmp_path)
    assert (run.status, run.error, run.steps_done) == ("failed", "ValueError: NaN in the loss", 4096)
    assert "Traceback" in run.traceback


def test_run_in_progress_is_unfinished_and_has_no_curve(tmp_path: Path) -> None:
    path = synthetic.write_completed(tmp_path, CONFIG)
    (path / "result.json").unlink()
    (path / "progress.json").write_text(json.dumps({"timesteps": 2048}))
    run = only_run(tmp_path)
    assert run.status == "unfinished"
    assert "2048 of 100000" in run.error
    assert not len(run.returns)


def edit_csv(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        lines = (path / "evaluations.csv").read_text().splitlines()
        (path / "evaluations.csv").write_text("\n".join(change(lines)) + "\n")

    return damage


def edit_config(path: Path, **changes: object) -> None:
    header = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**header, **changes}))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "config half written": (lambda p: (p / "config.json").write_text('{"conf'), "config.json"),
    "config gone": (lambda p: (p / "config.json").unlink(), "config.json"),
    "config without seed": (lambda p: edit_config(p, config={"env": "a", "algorithm": "b"}), "lacks seed"),
    "config of another run": (lambda p: edit_config(p, hash="f" * 16), "belongs to the run"),
    "result empty": (lambda p: (p / "result.json").write_text(""), "result.json is unreadable"),
    "result binary": (lambda p: (p / "result.json").write_bytes(b"\x00\xff"), "result.json is unreadable"),
    "evaluations gone": (lambda p: (p / "evaluations.csv").unlink(), "without a single evaluation"),
    "evaluations empty": (lambda p: (p / "evaluations.csv").write_text(""), "without a single evaluation"),
    "other header": (edit_csv(lambda lines: ["a,b", *lines[1:]]), "first line"),
    "text for a number": (edit_csv(lambda lines: [*lines[:-1], "18,100000,4,oops,7"]), "cannot be read"),
    "row cut short": (edit_csv(lambda lines: [*lines[:-1], "18,1000"]), "cannot be read"),
    "binary evaluations": (lambda p: (p / "evaluations.csv").write_bytes(b"\xff\xfe\n"), "cannot be read"),
    "last evaluation gone": (edit_csv(lambda lines: lines[:-5]), "17 of 18 evaluations"),
    "last episode gone": (edit_csv(lambda lines: lines[:-1]), "4 of 5 episodes"),
    "return not a number": (edit_csv(lambda lines: [*lines[:-1], "18,100000,4,nan,7"]), "not finite"),
    "other final return": (edit_csv(lambda lines: [*lines[:-1], "18,100000,4,1e6,7"]), "final return"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_record_is_named_and_not_averaged(tmp_path: Path, name: str) -> None:
    damage, message = DAMAGE[name]
    damage(synthetic.write_completed(tmp_path, CONFIG))
    run = only_run(tmp_path)
    assert run.status == "damaged"
    assert message in run.error
    assert str(tmp_path) not in run.error
    assert not len(run.returns)


def test_deleted_run_is_missing_by_the_plan(tmp_path: Path) -> None:
    configs = list(synthetic.grid(envs=["Hopper-v5"], passes=[10], clips=[0.3]))
    for config in configs[1:]:
        synthetic.write_completed(tmp_path, config)
    synthetic.write_plan(tmp_path, configs)
    study = read_records(tmp_path)
    assert study.counts() == {
        "completed": 5, "unfinished": 0, "failed": 0, "damaged": 0, "missing": 1, "unplanned": 0,
    }  # fmt: skip
    assert study.runs[0].status == "missing"
    assert study.runs[0].config == configs[0]


@pytest.mark.parametrize("plan", ["", "{}", "[1]", '[{"hash": "x"}]'])
def test_without_a_readable_plan_the_runs_on_disk_are_the_study(tmp_path: Path, plan: str) -> None:
    configs = list(synthetic.grid(envs=["Hopper-v5"], passes=[10], clips=[0.3]))
    for config in configs[1:]:
        synthetic.write_completed(tmp_path, config)
    (tmp_path / ".study").mkdir()
    (tmp_path / ".study" / "plan.json").write_text(plan)
    study = read_records(tmp_path)
    assert not study.planned
    assert [run.status for run in study.runs] == ["completed"] * 5


def test_run_outside_the_plan_is_listed_and_in_no_cell(tmp_path: Path) -> None:
    """As when a study's file was changed after some runs: the old ones must not enter the new means."""
    old = {**CONFIG, "total_timesteps": 50_000}
    synthetic.write_completed(tmp_path, old)
    synthetic.write_completed(tmp_path, CONFIG)
    synthetic.write_plan(tmp_path, [CONFIG])
    study = read_records(tmp_path)
    assert sorted(run.status for run in study.runs) == ["completed", "unplanned"]
    (cell,) = build_cells(study.runs)
    assert (cell.label, cell.n, len(cell.runs)) == ("sppo", 1, 1)


def test_published_files_give_the_same_study(tmp_path: Path) -> None:
    """A report can be made again from the CSV files of a report."""
    configs = list(synthetic.grid(envs=["Hopper-v5", "Ant-v5"], passes=[10], clips=[0.3]))
    source, copy = tmp_path / "source", tmp_path / "copy"
    copy.mkdir()
    for config in configs[2:]:
        synthetic.write_completed(source, config)
    synthetic.write_failed(source, configs[1], 'error with "quotes", commas\nand lines')
    synthetic.write_plan(source, configs)
    before = read_records(source)
    write_runs(before.runs, copy)
    after = read_records(copy)
    assert after.counts() == before.counts()
    for old, new in zip(before.runs, after.runs, strict=True):
        assert (new.hash, new.status, new.error, new.config) == (old.hash, old.status, old.error, old.config)
        assert dict(new.versions) == dict(old.versions)
        np.testing.assert_array_equal(new.returns, old.returns)
        np.testing.assert_array_equal(new.timesteps, old.timesteps)
        np.testing.assert_array_equal(new.episodes, old.episodes)


def test_an_earlier_report_completes_a_study(tmp_path: Path) -> None:
    """Runs that this machine does not have come from the published files; its own count where it has them."""
    configs = list(synthetic.grid(envs=["Hopper-v5"], passes=[10], clips=[0.3]))
    earlier, now, copy = tmp_path / "earlier", tmp_path / "now", tmp_path / "copy"
    copy.mkdir()
    for config in configs[:4]:
        synthetic.write_completed(earlier, config)
    write_runs(read_records(earlier).runs, copy)
    own = np.full((configs[3]["evaluations"], configs[3]["eval_episodes"]), 7.0)
    synthetic.write_completed(now, configs[3], own)
    synthetic.write_plan(now, configs)
    study = read_records(now).completed_from(copy)
    assert [run.status for run in study.runs] == ["completed"] * 4 + ["missing"] * 2
    assert [run.final_return == 7.0 for run in study.runs[:4]] == [False, False, False, True]
    ours = study.runs[3].hash
    with pytest.raises(FileNotFoundError, match=r"runs\.csv"):
        study.completed_from(tmp_path)

    # What the earlier report alone has is kept, or said to be left out.
    synthetic.write_plan(now, configs[2:])
    with pytest.warns(UserWarning, match="2 completed runs of .*copy are not in the plan"):
        study = read_records(now).completed_from(copy)
    assert [run.status for run in study.runs] == ["completed"] * 2 + ["missing"] * 2
    (now / ".study" / "plan.json").unlink()
    study = read_records(now).completed_from(copy)
    assert [run.hash for run in study.runs] == [run.hash for run in read_records(copy).runs]
    assert [run.hash for run in study.runs if run.final_return == 7.0] == [ours]


def test_published_evaluations_that_were_cut_are_noticed(tmp_path: Path) -> None:
    synthetic.write_completed(tmp_path / "source", CONFIG)
    out = tmp_path / "copy"
    out.mkdir()
    write_runs(read_records(tmp_path / "source").runs, out)
    lines = (out / "evaluations.csv").read_text().splitlines()
    (out / "evaluations.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert only_run(out).status == "damaged"


def test_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_records(tmp_path / "nowhere")


JUNK = [None, "x", 7, -1.5, [], {}, True, 10**30, "9" * 400, float("nan"), {"a": [1]}]


def scrambled(content: object, rng: random.Random) -> object:
    """The JSON value with one entry, at any depth, replaced or removed."""
    if isinstance(content, dict) and content and rng.random() < 0.9:
        name = rng.choice(sorted(content))
        changed = dict(content)
        if rng.random() < 0.2:
            del changed[name]
        else:
            changed[name] = scrambled(content[name], rng)
        return changed
    return rng.choice(JUNK)


def scramble_file(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    kind = rng.randrange(4)
    if kind == 0 and path.suffix == ".json":
        path.write_text(json.dumps(scrambled(json.loads(data), rng)))
        return
    if kind == 1:
        data = data[: rng.randrange(len(data))]
    elif kind == 2:
        at = rng.randrange(len(data))
        data[at : at + 3] = bytes(rng.randrange(256) for _ in range(3))
    else:
        data[rng.randrange(len(data))] = rng.choice(b"0123456789,-.e\n")
    path.write_bytes(data)


@pytest.mark.parametrize("planned", [True, False], ids=["with a plan", "without"])
def test_no_damage_stops_the_report_of_the_other_runs(tmp_path: Path, planned: bool) -> None:
    """Whatever is done to a file of one run, all runs stay listed and the tables are computed."""
    configs = list(synthetic.grid(["Hopper-v5"], passes=[10], clips=[0.3], seeds=range(2), evaluations=3))
    for config in configs:
        synthetic.write_completed(tmp_path, config)
    failed = synthetic.configuration("Hopper-v5", "ppo", 2, n_epochs=10, clip_range=0.3, evaluations=3)
    synthetic.write_failed(tmp_path, failed)
    if planned:
        synthetic.write_plan(tmp_path, [*configs, failed])
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for seed in range(80):
        rng = random.Random(seed)
        path = rng.choice(files)
        before = path.read_bytes()
        scramble_file(path, rng)
        study = read_records(tmp_path)
        summary = summarise(build_cells(study.runs))
        assert len(study.runs) >= 5, seed
        assert sum(len(cell.runs) for cell in summary.cells) >= 4 or ".study" in path.parts, seed
        path.write_bytes(before)
