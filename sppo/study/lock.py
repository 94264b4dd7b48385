"""One training per run directory, whoever else has been started on the study.

Two mechanisms together. ``flock`` is exact on one machine, and the kernel releases it with the process,
however that ends. Shared storage may pass it on to other machines or not; so the owner also touches the
file every few seconds, and another machine takes over only after a minute of silence. An owner that was
silent for so long but lives (stopped, or cut off from the storage) finds another token than its own before
its next write, and gives up. (filelock's lease takes over by exchanging two names, which NFS refuses.)
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

from sppo.records.parameters import Values
from sppo.records.run_files import read_json

FILE = ".lock"
HEARTBEAT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
#: How long to insist: whoever only asks (``is_locked``) holds the lock for an instant, too.
_INSIST_SECONDS = 1.0
#: Two machines may notice the silence of a third at once: the last to write its token stays.
SETTLE_SECONDS = 2.0
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class BusyError(RuntimeError):
    """Another process is training this run; the message says which."""


class RunLock:
    """Exclusive use of a run directory; :class:`BusyError` on entry, if somebody else has it."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory, FILE)
        self._done = threading.Event()
        self._me: dict[str, object] = {
            "host": socket.gethostname(), "kernel": _kernel(), "pid": os.getpid(),
            "token": secrets.token_hex(8),
        }  # fmt: skip

    def __enter__(self) -> RunLock:
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._acquire()
        except BaseException:
            os.close(self._descriptor)
            raise
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        # An empty file means: released, no need to wait for silence. Never deleted, since another
        # process may be about to lock the very same file.
        with contextlib.suppress(OSError, BusyError):
            self.check()
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    def check(self) -> None:
        """To be called before every write: :class:`BusyError` if another machine has taken over meanwhile."""
        if (owner := read_json(self.path)) != self._me:
            raise BusyError(f"taken over by {_describe(owner)}, since this process was silent for too long")

    def _acquire(self) -> None:
        deadline = time.monotonic() + _INSIST_SECONDS
        while (held := _held(self.path, self._descriptor, fcntl.LOCK_EX)) and time.monotonic() < deadline:
            time.sleep(0.05)
        before = read_json(self.path)
        if held:
            raise BusyError(f"it is being trained by {_describe(before)}")
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(self._me).encode(), 0)
        if before is not None and before.get("kernel") != self._me["kernel"]:
            os.fsync(self._descriptor)
            time.sleep(SETTLE_SECONDS)
            self.check()

    def _beat(self) -> None:
        with contextlib.suppress(BusyError):
            while not self._done.wait(HEARTBEAT_SECONDS):
                self.check()
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
        return _held(path, descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _held(path: Path, descriptor: int, kind: int) -> bool:
    """Whether somebody else has the lock; if not, this process now has the ``flock`` of it."""
    flocked = True
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        flocked = False
    owner = read_json(path)
    if owner is None or (flocked and owner.get("kernel") == _kernel()):
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


def _describe(owner: Values | None) -> str:
    return "another process" if owner is None else f"process {owner.get('pid')} on {owner.get('host')}"
