"""Record files (TensorBoard events, tables): how long they were at a checkpoint, and cutting them there.

Both kinds only ever grow, so a position is a length in bytes. TensorBoard's files are sequences of
records ``length (8 bytes) | crc of it (4) | data | crc of them (4)``; a cut must fall between two.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path

from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat

from sppo.checkpoint.files import CheckpointError, sync_directory

#: What TensorBoard's own writer calls its files; other writers' files (with a suffix) are left alone.
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.\d+\..+\.\d+\.\d+")


def positions(logger: Logger | None, tables: Iterable[str | os.PathLike[str]] = ()) -> dict[str, object]:
    """The lengths of a logger's TensorBoard files and of further tables, after writing them to disk."""
    directory = None
    files: dict[str, int] = {}
    for output in [] if logger is None else logger.output_formats:
        if isinstance(output, TensorBoardOutputFormat):
            output.writer.flush()
            directory = Path(output.writer.log_dir)
            files = {path.name: _synced_length(path) for path in _event_files(directory)}
    return {
        "directory": None if directory is None else os.path.abspath(directory),
        "events": files,
        "tables": {os.fspath(path): _synced_length(Path(path)) for path in tables},
    }


def cut_events(directory: str | os.PathLike[str], events: dict[str, int]) -> None:
    """Cut TensorBoard files back to the given lengths and remove those that began later.

    :raises CheckpointError: if a file is gone, too short, or the cut would fall inside a record; then
        nothing has been cut
    """
    directory = Path(directory)
    for name, length in events.items():
        path = directory / name
        if not path.exists():
            raise CheckpointError(f"the TensorBoard file {path} of the checkpoint is gone")
        if not _ends_record(path, length):
            raise CheckpointError(
                f"the TensorBoard file {path} was changed since the checkpoint: "
                f"no record ends at byte {length}"
            )
    for path in _event_files(directory):
        if path.name in events:
            os.truncate(path, events[path.name])
        else:
            path.unlink()


def cut_table(path: str | os.PathLike[str], length: int) -> None:
    """Cut a table back to the given length.

    :raises CheckpointError: if it is shorter
    """
    path = Path(path)
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        raise CheckpointError(
            f"{path} has {size} bytes, but had {length} at the checkpoint: rows are missing"
        )
    if size > length:
        os.truncate(path, length)


def _event_files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if _EVENT_FILE.fullmatch(path.name))


def _ends_record(path: Path, position: int) -> bool:
    """Whether a record of a TensorBoard file ends at this byte."""
    size, offset = path.stat().st_size, 0
    with open(path, "rb") as file:
        while offset < position:
            header = file.read(8)
            if len(header) < 8:
                return False
            offset += 8 + 4 + struct.unpack("<Q", header)[0] + 4
            file.seek(offset)
    return offset == position <= size


def _synced_length(path: Path) -> int:
    if not path.exists():
        return 0
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        length = os.fstat(file.fileno()).st_size
    sync_directory(path.parent)
    return length
