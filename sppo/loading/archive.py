"""Reads zip archives from strangers: names, counts and sizes are checked before anything is unpacked.

Nothing is ever written to disk; members are read into memory, up to limits that are proportional to the
size of the file itself, so that a small file cannot ask for a large memory.
"""

from __future__ import annotations

import io
import re
import zipfile

from sppo.loading.errors import LoadError

#: An archive may unpack to this multiple of its own size, plus :data:`FREE_BYTES`. Stable-Baselines3
#: stores its members uncompressed; a model that somebody packed again stays below both.
MAX_RATIO = 20
FREE_BYTES = 64 * 2**20
MAX_MEMBERS = 10_000

_ORDINARY_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\-]*(/[A-Za-z0-9_.][A-Za-z0-9_.\-]*)*")


class Archive:
    """The members of a zip archive that is held in memory.

    :param data: the archive's bytes
    :param label: what to call it in errors
    """

    def __init__(self, data: bytes, label: str) -> None:
        self._label = label
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except Exception as error:
            # zipfile parses hand-made structures with exceptions of many kinds; all mean the same here.
            raise LoadError(f"{label}: it is no zip archive, or a damaged one ({error})") from error
        members = self._zip.infolist()
        if len(members) > MAX_MEMBERS:
            raise LoadError(f"{label}: it has {len(members)} members, more than {MAX_MEMBERS}")
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in members:
            self._check_name(member.filename)
            if member.filename in self._members:
                raise LoadError(f"{label}: it has two members called {member.filename!r}")
            if member.flag_bits & 0x1:
                raise LoadError(f"{label}: its member {member.filename!r} is encrypted")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # The other methods let the file choose how much memory unpacking takes.
                raise LoadError(f"{label}: its member {member.filename!r} is packed in an unusual way")
            if not member.is_dir():
                self._members[member.filename] = member
        if min((member.header_offset for member in members), default=0) != 0:
            # Of a torn file, zipfile finds the archive inside one of its members.
            raise LoadError(f"{label}: it is no zip archive, or a damaged one (it does not start as one)")
        unpacked = sum(member.file_size for member in members)
        allowed = MAX_RATIO * len(data) + FREE_BYTES
        if unpacked > allowed:
            raise LoadError(
                f"{label}: its {len(data)} bytes unpack to {unpacked}, more than {MAX_RATIO} times as much"
            )

    def _check_name(self, name: str) -> None:
        parts = name.rstrip("/").split("/")
        if ".." in parts or "." in parts or not _ORDINARY_NAME.fullmatch(name.rstrip("/")):
            raise LoadError(f"{self._label}: it has a member with the unexpected name {name[:80]!r}")

    @property
    def names(self) -> list[str]:
        """The names of all members, in the archive's order."""
        return list(self._members)

    def size(self, name: str) -> int:
        """How many bytes a member unpacks to."""
        return self._members[name].file_size

    def read(self, name: str, limit: int | None = None) -> bytes:
        """A member's bytes, with their checksum verified.

        :param limit: the largest acceptable number of them
        """
        size = self._members[name].file_size
        if limit is not None and size > limit:
            raise LoadError(f"{self._label}: its member {name!r} has {size} bytes, more than {limit}")
        try:
            with self._zip.open(self._members[name]) as member:
                # zipfile stops at the declared size, so the sum checked above bounds this as well.
                data = member.read(size + 1)
        except Exception as error:
            raise LoadError(f"{self._label}: its member {name!r} is damaged ({error})") from error
        if len(data) != size:
            raise LoadError(f"{self._label}: its member {name!r} is cut short")
        return data
