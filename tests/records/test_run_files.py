"""What a run leaves on disk is read back as it was written, or named as what it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sppo.checkpoint import write_atomically
from sppo.records.run_files import CONFIG, SCHEMA, RunWriter, read_evaluations
from sppo.records.runs import read_run
from sppo.study.lock import BusyError
from tests.study.trained_runs import small_config


def writer(directory: Path) -> RunWriter:
    return RunWriter(directory, write_atomically, lambda: None)


def test_evaluations_come_back_by_evaluation(tmp_path: Path) -> None:
    assert len(read_evaluations(tmp_path).returns) == 0
    for number, returns in enumerate(([1.0, 3.0], [1e8, 1e8 + 1.0, 1e8 + 2.0]), start=1):
        writer(tmp_path).evaluation(number, 100 * number, [(value, 7) for value in returns])
    with (tmp_path / "evaluations.csv").open("a") as table:
        table.write("3,300,0,5")  # killed while writing
    found = read_evaluations(tmp_path)
    assert found.timesteps.tolist() == [100, 200]
    assert found.returns.tolist() == [2.0, 1e8 + 1.0]
    assert found.episodes.tolist() == [2, 3]
    assert found.spreads == pytest.approx(np.array([1.0, np.sqrt(2 / 3)]))


def test_records_of_a_later_version_are_not_guessed_at(tmp_path: Path) -> None:
    config = small_config()
    directory = tmp_path / config.directory_name
    directory.mkdir()
    writer(directory).config(config, {}, None)
    assert read_run(directory).status == "unfinished"
    header = json.loads((directory / CONFIG).read_text())
    (directory / CONFIG).write_text(json.dumps({**header, "schema": SCHEMA + 1}))
    run = read_run(directory)
    assert (run.status, run.error) == (
        "damaged",
        "config.json is of version 2, this sppo reads 1: upgrade it",
    )


def test_nothing_is_written_into_a_directory_that_is_somebody_elses_by_now(tmp_path: Path) -> None:
    def guard() -> None:
        raise BusyError("taken over")

    late, config = RunWriter(tmp_path, write_atomically, guard), small_config()
    for write in (
        lambda: late.file("model.zip", b""),
        lambda: late.config(config, {}, None),
        lambda: late.evaluation(1, 1, [(0.0, 1)]),
        lambda: late.restart(1),
        lambda: late.progress(1, 2, 0.1),
        lambda: late.failure("E", "", 1),
    ):
        with pytest.raises(BusyError):
            write()
    assert not list(tmp_path.iterdir())
