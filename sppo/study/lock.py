"""One training per run directory, whoever else has been started on the study.

Two mechanisms together. ``flock`` is exact on one machine, and the kernel releases it with the process,
however that ends. Shared storage may pass it on to other machines or not; so the owner also touches the
file every few seconds, and another machine takes over only after a minute of silence.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

FILE = ".lock"
HEARTBEAT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
#: How long to insist: whoever only asks (``is_locked``) holds the lock for an instant, too.
_INSIST_SECONDS = 1.0
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class BusyError(RuntimeError):
    """Another process is training this run; the message says which."""


class RunLock:
    """Exclusive use of a run directory, as a context manager.

    :raises BusyError: on entry, if somebody else has it
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory, FILE)
        self._descriptor = -1
        self._done = threading.Event()

    def __enter__(self) -> RunLock:
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._acquire()
        except BaseException:
            os.close(self._descriptor)
            raise
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        # An empty file means: released, no need to wait for silence. Never deleted, since another
        # process may be about to lock the very same file.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    def _acquire(self) -> None:
        deadline = time.monotonic() + _INSIST_SECONDS
        while (exclusive := _flock(self._descriptor, fcntl.LOCK_EX)) is False and time.monotonic() < deadline:
            time.sleep(0.05)
        owner = _owner(self.path)
        if exclusive is False or (owner is not None and _alive(self.path, owner, exclusive)):
            raise BusyError(f"it is being trained by {_describe(owner)}")
        token = {
            "host": socket.gethostname(),
            "kernel": _kernel(),
            "pid": os.getpid(),
            "token": secrets.token_hex(8),
        }
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(token).encode(), 0)
        if owner is not None and owner.get("kernel") != token["kernel"]:
            # Two machines may have noticed the silence at once: the last to write stays.
            os.fsync(self._descriptor)
            time.sleep(2.0)
            if (current := _owner(self.path)) != token:
                raise BusyError(f"it is being trained by {_describe(current)}")

    def _beat(self) -> None:
        while not self._done.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self.path)


def is_locked(directory: str | os.PathLike[str]) -> bool:
    """Whether some process, here or elsewhere, is training in this directory."""
    path = Path(directory, FILE)
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        exclusive = _flock(descriptor, fcntl.LOCK_SH)
        owner = _owner(path)
        return exclusive is False or (owner is not None and _alive(path, owner, exclusive))
    finally:
        os.close(descriptor)


def _flock(descriptor: int, kind: int) -> bool | None:
    """Whether the lock was got; ``None`` where the file system has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return True


def _owner(path: Path) -> dict[str, Any] | None:
    try:
        owner = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return owner if isinstance(owner, dict) else None


def _alive(path: Path, owner: dict[str, Any], exclusive: bool | None) -> bool:
    """Whether the owner named in the file still lives, as far as its heartbeat tells."""
    if exclusive and owner.get("kernel") == _kernel():
        return False
    # Both times come from the storage's clock, since machines' clocks differ.
    probe = path.with_name(f"{FILE}.{secrets.token_hex(4)}.probe")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime < SILENCE_SECONDS
    except OSError:
        return True
    finally:
        probe.unlink(missing_ok=True)


@cache
def _kernel() -> str:
    """The running kernel, within which ``flock`` can be relied on: across containers, but not reboots."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _describe(owner: dict[str, Any] | None) -> str:
    if owner is None:
        return "another process"
    return f"process {owner.get('pid')} on {owner.get('host')}"
