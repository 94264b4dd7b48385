"""The log directory that a report builds for TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from sppo.records.studies import read_records
from sppo.report.cells import build_cells
from sppo.report.command import main as report
from sppo.report.tensorboard import build_logdir, read_scalars, scalar, write_events
from tests.records import synthetic_study as synthetic

RUN = "runs/Hopper-v5/m=10,eps=0.3/sppo/seed=0"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    configs = list(
        synthetic.grid(["Hopper-v5"], passes=[10], clips=[0.1, 0.3], seeds=range(3), evaluations=4)
    )
    for config in configs[:-1]:
        path = synthetic.write_completed(tmp_path / "study", config)
        (path / "tensorboard").mkdir()
        events = [(step, scalar("rollout/ep_rew_mean", step / 10)) for step in (0, 100, 200)]
        write_events(path / "tensorboard" / "events.out.tfevents.1700000000.host", events)
    synthetic.write_failed(tmp_path / "study", configs[-1])
    synthetic.write_plan(tmp_path / "study", configs)
    return tmp_path / "study"


def build(directory: Path, seeds: int = 10, thin: int = 0) -> Path:
    loaded = read_records(directory)
    build_logdir(build_cells(loaded.runs), directory / "tb", seeds, thin)
    return directory / "tb"


def tree(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and "tb" not in path.relative_to(directory).parts
    }


def test_runs_have_readable_names_and_their_own_scalars(study: Path) -> None:
    out = build(study)
    scalars = read_scalars(out / RUN, ["rollout/ep_rew_mean", "evaluation/mean_return"])
    assert scalars["rollout/ep_rew_mean"].steps.tolist() == [0, 100, 200]
    assert len(scalars["evaluation/mean_return"].steps) == 4


def test_records_are_linked_and_not_touched(study: Path) -> None:
    before = tree(study)
    out = build(study)
    (link,) = [path for path in (out / RUN).iterdir() if path.is_symlink()]
    assert not os.path.isabs(os.readlink(link))
    build(study)
    assert tree(study) == before


def test_thinned_runs_stand_alone_and_keep_the_last_point(study: Path) -> None:
    out = build(study, thin=2)
    assert not any(path.is_symlink() for path in out.rglob("*"))
    scalars = read_scalars(out / RUN, ["rollout/ep_rew_mean", "evaluation/mean_return"])
    assert scalars["rollout/ep_rew_mean"].steps.tolist() == [0, 200]
    assert len(scalars["evaluation/mean_return"].steps) == 4


def test_number_of_seeds_is_limited(study: Path) -> None:
    assert len(list((build(study, seeds=1) / "runs").rglob("seed=*"))) == 4


def test_means_are_of_all_completed_runs(study: Path) -> None:
    out = build(study, seeds=1)
    (cell,) = [
        c for c in build_cells(read_records(study).runs) if c.label == "sppo" and c.setting.clip_range == 0.1
    ]
    names = [f"Hopper-v5/m=10,eps=0.1/{what}" for what in ("return", "low", "high")]
    scalars = read_scalars(out / "means" / "sppo", names)
    np.testing.assert_allclose(scalars[names[0]].values, cell.curves[1].mean(axis=0), rtol=1e-6)
    assert (scalars[names[1]].values < scalars[names[2]].values).all()


@pytest.mark.usefixtures("_sheets_left_blank")
def test_a_report_without_runs_makes_the_means_anew(study: Path) -> None:
    """Curves of an earlier report would stay beside tables that have gone on."""
    tag, out = "Hopper-v5/m=10,eps=0.1/return", study / "report" / "tensorboard"
    means = []
    for flags in (["--tensorboard-seeds", "1"], ["--tensorboard-seeds", "0", "--seeds", "0:2"]):
        assert report([str(study), *flags]) == 0
        means.append(read_scalars(out / "means" / "sppo", [tag])[tag].values)
    (cell,) = [
        c for c in build_cells(read_records(study).runs) if c.label == "sppo" and c.setting.clip_range == 0.1
    ]
    returns = cell.curves[1]
    np.testing.assert_allclose(means, [returns.mean(axis=0), returns[:2].mean(axis=0)], rtol=1e-6)
    assert not (out / "runs").exists()


def test_layout_has_a_chart_per_environment_and_setting(study: Path) -> None:
    """Both algorithms have the chart's tags, so both are drawn on it."""
    out = build(study)
    accumulator = EventAccumulator(str(out / "means")).Reload()
    tensor = accumulator.Tensors("custom_scalars__config__")[0].tensor_proto
    layout = layout_pb2.Layout.FromString(tensor.string_val[0])
    (category,) = layout.category
    assert category.title == "Hopper-v5"
    # the page draws them from the last to the first
    titles = ["Hopper-v5, m=10, ε=0.3", "Hopper-v5, m=10, ε=0.1"]
    assert [chart.title for chart in category.chart] == titles
    for chart in category.chart:
        (series,) = chart.margin.series
        wanted = [series.value, series.lower, series.upper]
        for label in ("ppo", "sppo"):
            assert set(read_scalars(out / "means" / label, wanted)) == set(wanted)


def hparams(directory: Path) -> dict[str, plugin_data_pb2.HParamsPluginData]:
    accumulator = EventAccumulator(str(directory)).Reload()
    content = accumulator.PluginTagToContent("hparams")
    return {tag: plugin_data_pb2.HParamsPluginData.FromString(text) for tag, text in content.items()}


def test_hparams_of_runs_and_their_outcome(study: Path) -> None:
    out = build(study)
    data = hparams(out / RUN)
    start = data["_hparams_/session_start_info"].session_start_info
    assert start.group_name == RUN.removeprefix("runs/")
    assert start.hparams["algorithm"].string_value == "sppo"
    assert start.hparams["clip_range"].number_value == 0.3
    assert start.hparams["use_softmax"].bool_value is True
    assert start.hparams["status"].string_value == "completed"
    failed = hparams(out / "runs/Hopper-v5/m=10,eps=0.3/sppo/seed=2")["_hparams_/session_start_info"]
    assert failed.session_start_info.hparams["status"].string_value == "failed"


def test_foreign_directory_is_not_replaced(study: Path) -> None:
    (study / "tb").mkdir()
    (study / "tb" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not made by a report"):
        build(study)
    assert (study / "tb" / "thesis.txt").read_text() == "mine"
