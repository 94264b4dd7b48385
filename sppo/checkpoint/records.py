"""Record files (TensorBoard events, tables): how long they were at a checkpoint, and cutting them there.

Both kinds only ever grow, so a position is a length in bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat

from sppo.checkpoint.files import CheckpointError, sync_directory

#: What TensorBoard's own writer calls its files; other writers' files (with a suffix) are left alone.
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.\d+\..+\.\d+\.\d+")


def positions(logger: Logger | None, tables: Iterable[str | os.PathLike[str]] = ()) -> dict[str, object]:
    """The lengths of a logger's TensorBoard files and of further tables, after writing them to disk."""
    directory = None
    for output in [] if logger is None else logger.output_formats:
        if isinstance(output, TensorBoardOutputFormat):
            output.writer.flush()
            directory = os.path.abspath(output.writer.log_dir)
    events = [] if directory is None else _event_files(directory)
    return {
        "directory": directory,
        "events": {path.name: _synced_length(path) for path in events},
        "tables": {os.fspath(path): _synced_length(Path(path)) for path in tables},
    }


def cut_events(directory: str | os.PathLike[str], events: Mapping[str, int]) -> None:
    """Cut TensorBoard files back to the given lengths and remove those that began later.

    :raises CheckpointError: if a file is gone or too short; then nothing has been cut
    """
    for name, length in events.items():
        _require(Path(directory, name), length)
    for path in _event_files(directory):
        if path.name in events:
            os.truncate(path, events[path.name])
        else:
            path.unlink()


def cut_table(path: str | os.PathLike[str], length: int) -> None:
    """Cut a table back to the given length.

    :raises CheckpointError: if it is shorter
    """
    if _require(Path(path), length) > length:
        os.truncate(path, length)


def _require(path: Path, length: int) -> int:
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        raise CheckpointError(
            f"{path} has {size} bytes, but had {length} at the checkpoint: records are missing"
        )
    return size


def _event_files(directory: str | os.PathLike[str]) -> list[Path]:
    return sorted(path for path in Path(directory).glob("events.*") if _EVENT_FILE.fullmatch(path.name))


def _synced_length(path: Path) -> int:
    if not path.exists():
        return 0
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        length = os.fstat(file.fileno()).st_size
    sync_directory(path.parent)
    return length
