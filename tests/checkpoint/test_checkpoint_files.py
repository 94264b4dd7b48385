"""Checkpoint and record files: whole or not at all, verified, cut only where it is safe."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common import logger as sb3_logger

from sppo.checkpoint import CheckpointError, checkpoints, files, newest_readable, records, write_atomically


def write_checkpoint(path: Path) -> None:
    write_atomically(path, files.pack({"a": b"x" * 5000, "b": os.urandom(5000)}, {"timesteps": 1}))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_atomically(tmp_path / "c", files.pack({"a": b"1", "b": b""}, {"timesteps": 7}))
    manifest, members = files.read(tmp_path / "c")
    assert manifest["timesteps"] == 7
    assert members == {"a": b"1", "b": b""}


@pytest.mark.parametrize("kept", [0, 1, 100, 3000, -1])
def test_a_truncated_checkpoint_is_recognised(kept: int, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c")
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(data[:kept])
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        files.read(tmp_path / "c")


def test_every_damaged_byte_is_recognised(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c")
    data = bytearray((tmp_path / "c").read_bytes())
    for position in range(0, len(data), 97):
        damaged = bytearray(data)
        damaged[position] ^= 0xFF
        (tmp_path / "c").write_bytes(damaged)
        try:
            _, members = files.read(tmp_path / "c")
        except CheckpointError:
            continue
        # Some bytes of a zip (times, attributes) carry nothing; then the contents are intact.
        assert members["a"] == b"x" * 5000


def test_an_unreadable_newest_falls_back_to_the_one_before(tmp_path: Path) -> None:
    for timesteps in (64, 128, 1024):
        write_checkpoint(tmp_path / files.file_name(timesteps))
    (tmp_path / "1024_steps.checkpoint").write_bytes(b"")
    messages: list[str] = []
    assert newest_readable(tmp_path, messages.append) == tmp_path / "128_steps.checkpoint"
    assert "1024_steps.checkpoint is truncated" in messages[0]
    assert "128_steps.checkpoint instead" in messages[0]


def test_no_readable_checkpoint_is_an_error_and_none_at_all_is_not(tmp_path: Path) -> None:
    assert newest_readable(tmp_path) is None
    (tmp_path / "64_steps.checkpoint").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        newest_readable(tmp_path)


def test_newest_means_most_steps_not_last_in_the_alphabet(tmp_path: Path) -> None:
    for timesteps in (64, 9000, 10000):
        write_checkpoint(tmp_path / files.file_name(timesteps))
    assert [path.name.split("_")[0] for path in checkpoints(tmp_path)] == ["10000", "9000", "64"]


def test_pruning_keeps_the_newest_and_sweeps_what_killed_writers_left(tmp_path: Path) -> None:
    for timesteps in (64, 128, 192):
        write_checkpoint(tmp_path / files.file_name(timesteps))
    (tmp_path / ".192_steps.checkpoint.0123abcd.aside").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    files.prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "128_steps.checkpoint",
        "192_steps.checkpoint",
        "notes.txt",
    ]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_litter(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_atomically(tmp_path / "file", b"old")
    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", b"new")
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_tables_are_cut_to_their_length_and_never_extended(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a\nb\nc\n")
    records.cut_table(table, 4)
    assert table.read_text() == "a\nb\n"
    with pytest.raises(CheckpointError, match="records are missing"):
        records.cut_table(table, 5)


def make_events(directory: Path) -> tuple[sb3_logger.Logger, dict[str, Any]]:
    logger = sb3_logger.configure(str(directory), ["tensorboard"])
    logger.record("x", 1.0)
    logger.dump(1)
    return logger, records.positions(logger)


def test_events_are_cut_between_records_and_later_files_removed(tmp_path: Path) -> None:
    logger, position = make_events(tmp_path)
    (name,) = position["events"]
    logger.record("x", 2.0)
    logger.dump(2)
    logger.close()
    later = sb3_logger.configure(str(tmp_path), ["tensorboard"])
    later.close()
    (tmp_path / "events.out.tfevents.1.host.1.1.hparams").write_bytes(b"another writer's")
    assert len(list(tmp_path.iterdir())) == 3
    records.cut_events(tmp_path, position["events"])
    assert (tmp_path / name).stat().st_size == position["events"][name]
    assert len(list(tmp_path.iterdir())) == 2


def test_events_that_became_shorter_are_not_cut(tmp_path: Path) -> None:
    logger, position = make_events(tmp_path)
    logger.close()
    (name,) = position["events"]
    before = (tmp_path / name).read_bytes()
    for gone, length in ((name, len(before) + 1), ("events.out.tfevents.0.host.0.0", 10)):
        with pytest.raises(CheckpointError, match="records are missing"):
            records.cut_events(tmp_path, {name: 4, gone: length})
        assert (tmp_path / name).read_bytes() == before
