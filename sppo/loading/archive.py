"""Reads zip archives from strangers: names, places and sizes are checked before anything is unpacked.

Nothing is ever written to disk; members are read into memory, within the file's budget.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile

from sppo.loading.budget import Budget
from sppo.loading.errors import LoadError, brief

MAX_MEMBERS = 10_000

_ORDINARY_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\-]*(/[A-Za-z0-9_.][A-Za-z0-9_.\-]*)*")
_LOCAL_SIGNATURE = b"PK\x03\x04"
_LOCAL_HEADER_BYTES = 30
#: A data descriptor is a checksum and two sizes of 4 or 8 bytes, with or without a signature.
_DESCRIPTORS = (12, 16, 20, 24)
#: The others let the file choose how much memory unpacking takes.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Archive:
    """The members of a zip archive that is held in memory."""

    def __init__(self, data: bytes, budget: Budget) -> None:
        self.budget = budget
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except Exception as error:
            # zipfile parses hand-made structures with exceptions of many kinds; all mean the same here.
            torn = data.startswith(_LOCAL_SIGNATURE)
            what = "the zip archive is cut short or damaged" if torn else "it is no zip archive"
            raise LoadError(f"{what} ({error})") from error
        members = self._zip.infolist()
        if len(members) > MAX_MEMBERS:
            raise LoadError(f"it has {len(members)} members, more than {MAX_MEMBERS}")
        self._check_places(data, members)
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in members:
            name = member.filename
            plain = name.rstrip("/")
            if {"..", "."} & set(plain.split("/")) or not _ORDINARY_NAME.fullmatch(plain):
                raise LoadError(f"it has a member with the unexpected name {brief(name, 80)}")
            if name in self._members:
                raise LoadError(f"it has two members called {name!r}")
            if member.flag_bits & 0x1 or member.compress_type not in _METHODS:
                raise LoadError(f"its member {name!r} is encrypted or packed in an unusual way")
            if not member.is_dir():
                self._members[name] = member
        #: name -> how many bytes it unpacks to
        self.sizes = {name: member.file_size for name, member in self._members.items()}

    def _check_places(self, data: bytes, members: list[zipfile.ZipInfo]) -> None:
        """The members must fill the file from its first byte to the directory: nothing hides between."""
        end, described = 0, False
        starts = [*sorted(members, key=lambda member: member.header_offset), None]
        for member in starts:
            start = self._zip.start_dir if member is None else member.header_offset
            if start != end and not (described and start - end in _DESCRIPTORS):
                if not end and data.startswith(_LOCAL_SIGNATURE):
                    # Of a torn file, zipfile finds the archive inside one of its members.
                    raise LoadError("the zip archive is cut short: its end is missing")
                where = f"after its byte {end}" if end else "before the archive"
                raise LoadError(
                    f"{abs(start - end)} bytes {where} belong to no member: it is no zip archive alone, "
                    "but hides something else"
                )
            if member is None:
                return
            header = data[start : start + _LOCAL_HEADER_BYTES].ljust(_LOCAL_HEADER_BYTES, b"\0")
            name_bytes, extra_bytes = struct.unpack_from("<2H", header, 26)
            end = start + _LOCAL_HEADER_BYTES + name_bytes
            written, named = data[end - name_bytes : end], member.orig_filename.encode(errors="replace")
            if not header.startswith(_LOCAL_SIGNATURE) or written != named:
                name = brief(member.filename, 60)
                raise LoadError(f"its member {name} does not lie where its directory says")
            end += extra_bytes + member.compress_size
            described = bool(member.flag_bits & 0x8)

    def read(self, name: str) -> bytes:
        """A member's bytes, with their checksum verified."""
        size = self.sizes[name]
        self.budget.memory(size)
        try:
            with self._zip.open(self._members[name]) as member:
                # zipfile stops at the declared size, which was charged above.
                data = member.read(size + 1)
        except Exception as error:
            raise LoadError(f"its member {name!r} is damaged ({error})") from error
        if len(data) != size:
            raise LoadError(f"its member {name!r} is cut short")
        return data
