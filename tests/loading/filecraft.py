"""Tools of the loading tests: files taken apart and put together again, and a witness for what ran."""

from __future__ import annotations

import base64
import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"

#: What no file may cause: see the audit events of CPython and of its pickle module.
FORBIDDEN = (
    "exec",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "socket.connect",
)
FORBIDDEN += ("ctypes.dlopen", "shutil.rmtree", "os.remove", "os.rename", "marshal.loads", "code.__new__")

_watching: list[list[str]] = []


def _witness(event: str, args: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event in FORBIDDEN or event.startswith(("os.exec", "subprocess.")):
        _watching[-1].append(f"{event} {str(args)[:80]}")
    elif event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        _watching[-1].append(f"open {args[0]} for writing")
    elif event == "pickle.find_class" and not str(args[0]).startswith(("torch", "collections", "numpy")):
        # Upstream's own reader unpickles the weights that were written anew, and nothing else.
        _watching[-1].append(f"{event} {args}")
    elif event == "import" and str(args[0]).split(".")[0] in ("this", "antigravity", "evil_module", "turtle"):
        _watching[-1].append(f"{event} {args[0]}")


sys.addaudithook(_witness)


@contextmanager
def witnessed() -> Iterator[list[str]]:
    """Collects what should not have happened inside."""
    seen: list[str] = []
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching.pop()


def members(path: Path) -> dict[str, bytes]:
    """The members of a zip file."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file with these members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return stream.getvalue()


def with_entry(path: Path, key: str, pickle: bytes | None = None, value: Any = None) -> bytes:
    """A model's file in which one entry of ``data`` is a pickle or a plain value of one's choice."""
    parts = members(path)
    data = json.loads(parts["data"])
    if pickle is not None:
        value = {":type:": "harmless", ":serialized:": base64.b64encode(pickle).decode()}
    data[key] = value
    parts["data"] = json.dumps(data).encode()
    return packed(parts)


def with_weights_pickle(path: Path, member: str, change: Callable[[bytes], bytes]) -> bytes:
    """A model's file with the pickle inside one of its torch files changed."""
    parts = members(path)
    stream = io.BytesIO(parts[member])
    with zipfile.ZipFile(stream) as archive:
        inner = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in inner if name.endswith("data.pkl"))
    inner[name] = change(inner[name])
    parts[member] = packed(inner)
    return packed(parts)
