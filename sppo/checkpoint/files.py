"""Checkpoint files: written whole or not at all, verified when read."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
MANIFEST = "manifest.json"
Manifest = dict[str, Any]
_NAME = re.compile(r"(\d+)_steps\.checkpoint")
_ASIDE = re.compile(r"\..*\.[0-9a-f]{8}\.aside")


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written, read or continued; the message says what to do."""


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Make ``path`` hold ``data``, or leave it as it was: write aside, fsync, rename.

    The directory is synced too, so that the new name survives a power failure.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.aside")
    try:
        with open(aside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to disk, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def pack(members: Mapping[str, bytes], about: Mapping[str, object]) -> bytes:
    """A checkpoint's bytes: a zip of the members and a manifest with their digests."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    buffer = io.BytesIO()
    # Level 1: MuJoCo states are mostly zeros, and training waits for this.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(MANIFEST, json.dumps({"format": FORMAT, **about, "sha256": digests}, indent=1))
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def read(path: str | os.PathLike[str]) -> tuple[Manifest, dict[str, bytes]]:
    """A checkpoint's manifest and members, verified; :class:`CheckpointError` if anything is wrong."""
    with _opened(path) as (archive, manifest):
        members = {name: archive.read(name) for name in manifest["sha256"]}
        if manifest.get("format") != FORMAT:
            raise CheckpointError(
                f"checkpoint {os.fspath(path)} has format {manifest.get('format')}, this sppo reads {FORMAT}"
            )
        for name, data in members.items():
            if hashlib.sha256(data).hexdigest() != manifest["sha256"][name]:
                raise ValueError(f"{name} has changed")
    return manifest, members


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[zipfile.ZipFile, Manifest]]:
    """A checkpoint, with what goes wrong while reading it as a :class:`CheckpointError`."""
    name = os.fspath(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if MANIFEST not in archive.namelist() and "policy.pth" in archive.namelist():
                raise CheckpointError(
                    f"{name} is a model that save() wrote, not a checkpoint: it holds the weights, not the "
                    "state of a training. Load it with SPPO.load, or the load of its own class"
                )
            yield archive, json.loads(archive.read(MANIFEST))
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {name}: {error.strerror or error}") from error
    except Exception as error:  # whatever zipfile, zlib or json find wrong with arbitrary bytes
        raise CheckpointError(
            f"checkpoint {name} is truncated or damaged ({error}): resume from an older one, or delete it"
        ) from error


def file_name(timesteps: int) -> str:
    """The name of the checkpoint taken after ``timesteps`` steps."""
    return f"{timesteps}_steps.checkpoint"


def checkpoints(directory: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints in a directory, newest (most steps) first."""
    found = [(int(m[1]), path) for path in Path(directory).glob("*") if (m := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def newest_readable(
    directory: str | os.PathLike[str], report: Callable[[str], None] | None = None
) -> Path | None:
    """The newest checkpoint that can be read; ``None`` if the directory has no checkpoint at all.

    :param report: called with a message for each newer one that cannot be read
    :raises CheckpointError: if there are checkpoints but none can be read, or of several trainings
    """
    problems = []
    for path in checkpoints(directory):
        try:
            manifest, _ = read(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        others = of_other_runs(directory, manifest.get("run"))
        if others:
            raise CheckpointError(
                f"{os.fspath(directory)} holds checkpoints of several trainings ({path.name} of one, "
                f"{others[0].name} of another): resume the file that you mean, not the directory"
            )
        if report is not None:
            for problem in problems:
                report(f"{problem}; going on from {path.name} instead")
        return path
    if problems:
        raise CheckpointError("no checkpoint can be read: " + "; ".join(problems))
    return None


def of_other_runs(directory: str | os.PathLike[str], run: str | None) -> list[Path]:
    """The checkpoints in a directory that another training wrote, newest first."""
    others = []
    for path in checkpoints(directory):
        # What cannot be read belongs to nobody.
        with contextlib.suppress(CheckpointError), _opened(path) as (_, manifest):
            if manifest.get("run") != run:
                others.append(path)
    return others


def prune(directory: str | os.PathLike[str], keep: int) -> None:
    """Delete all but the newest ``keep`` checkpoints, and what killed writers left aside."""
    for path in checkpoints(directory)[keep:]:
        path.unlink(missing_ok=True)
    sweep(directory)


def sweep(directory: str | os.PathLike[str]) -> None:
    """Delete what killed writers left aside; nobody else may be writing in the directory."""
    for path in Path(directory).iterdir():
        if _ASIDE.fullmatch(path.name):
            path.unlink(missing_ok=True)
