"""Add the ``use_softmax`` flag to an installed or checked-out Stable-Baselines3 or sb3-contrib.

    python scripts/apply_patch.py stable-baselines3              # the installed package
    python scripts/apply_patch.py sb3-contrib --target ~/my-fork  # a source checkout
    python scripts/apply_patch.py stable-baselines3 --check      # only say what would happen
    python scripts/apply_patch.py stable-baselines3 --revert     # back to the exact bytes

Needs nothing but Python. Every file is patched in memory first; nothing is written unless version and
content fit throughout, and a write that fails half-way is undone.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PATCHES = Path(__file__).resolve().parent.parent / "patches"

#: distribution -> import name of the package that its patch changes
PACKAGES = {"stable-baselines3": "stable_baselines3", "sb3-contrib": "sb3_contrib"}


class PatchError(Exception):
    """The patch does not fit; the message says where and why."""


@dataclass(frozen=True)
class Hunk:
    """One change: the lines that must be there and the lines that replace them."""

    line: int
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]

    def reversed(self) -> Hunk:
        return Hunk(self.line, self.after, self.before)


@dataclass(frozen=True)
class FilePatch:
    """All changes to one file, whose path is relative to the package's parent directory."""

    path: str
    hunks: tuple[Hunk, ...]

    def reversed(self) -> FilePatch:
        return FilePatch(self.path, tuple(hunk.reversed() for hunk in self.hunks))


def parse(text: bytes) -> list[FilePatch]:
    """Read a unified diff."""
    hunks: dict[str, list[Hunk]] = {}
    path = ""
    lines = iter(text.splitlines(keepends=True))
    for line in lines:
        if line.startswith(b"+++ "):
            path = line[4:].split(b"\t")[0].strip().decode().removeprefix("b/")
        elif header := re.match(rb"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@", line):
            wanted = int(header[2] or 1), int(header[3] or 1)
            before: list[bytes] = []
            after: list[bytes] = []
            while (len(before), len(after)) != wanted:
                change = next(lines)
                if not change.startswith(b"+"):
                    before.append(change[1:])
                if not change.startswith(b"-"):
                    after.append(change[1:])
            hunks.setdefault(path, []).append(Hunk(int(header[1]), tuple(before), tuple(after)))
    return [FilePatch(path, tuple(changes)) for path, changes in hunks.items()]


def patched(content: bytes, patch: FilePatch) -> bytes:
    """The file's new content; a hunk may have moved, but its lines must occur exactly once."""
    lines = content.splitlines(keepends=True)
    for number, hunk in enumerate(patch.hunks, start=1):
        size = len(hunk.before)
        places = [
            start
            for start in range(len(lines) - size + 1)
            if tuple(lines[start : start + size]) == hunk.before
        ]
        if len(places) != 1:
            found = "not found" if not places else f"found {len(places)} times"
            raise PatchError(
                f"{patch.path}: change {number} of {len(patch.hunks)} (near line {hunk.line}) does not fit: "
                f"the lines around it were {found}. Was the file edited by hand?"
            )
        lines[places[0] : places[0] + size] = hunk.after
    return b"".join(lines)


def fits(content: bytes, patch: FilePatch) -> bool:
    try:
        patched(content, patch)
    except PatchError:
        return False
    return True


def package_directory(distribution: str, target: Path | None) -> Path:
    """The package's directory: installed, or in a checkout, or named itself."""
    name = PACKAGES[distribution]
    if target is None:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise PatchError(f"{distribution} is not installed for {sys.executable}: give --target DIR")
        return Path(spec.origin).parent
    for candidate in (target / name, target):
        if candidate.name == name and (candidate / "__init__.py").is_file():
            return candidate.resolve()
    raise PatchError(f"{target} holds no {name}/ package: give the checkout's top directory")


def find_patch(distribution: str, package: Path) -> Path:
    """The patch for exactly this version."""
    version_file = package / "version.txt"
    if not version_file.is_file():
        raise PatchError(f"{version_file} is missing: cannot tell which version this is")
    version = version_file.read_text().strip()
    path = PATCHES / f"{distribution}-{version}.patch"
    if not path.is_file():
        known = sorted(
            p.stem.removeprefix(f"{distribution}-") for p in PATCHES.glob(f"{distribution}-*.patch")
        )
        raise PatchError(
            f"{package} is {distribution} {version}; there is a patch for {', '.join(known)} only. "
            f"Install that version: pip install {distribution}=={known[-1]}"
        )
    return path


def write_all(contents: dict[Path, bytes]) -> None:
    """Replace all files or none: write aside, then rename; undo the renames if one fails."""
    originals = {path: path.read_bytes() for path in contents}
    aside: dict[Path, str] = {}
    try:
        for path, content in contents.items():
            handle, aside[path] = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            shutil.copymode(path, aside[path])
        replaced: list[Path] = []
        try:
            for path, temporary in aside.items():
                os.replace(temporary, path)
                replaced.append(path)
        except OSError:
            for path in replaced:
                path.write_bytes(originals[path])
            raise
    finally:
        for temporary in aside.values():
            if os.path.exists(temporary):
                os.unlink(temporary)


def run(distribution: str, target: Path | None, revert: bool, check: bool) -> str:
    """Apply or revert, or only check; returns what to tell the user."""
    package = package_directory(distribution, target)
    patch_path = find_patch(distribution, package)
    patches = parse(patch_path.read_bytes())
    if revert:
        patches = [patch.reversed() for patch in patches]
    contents: dict[Path, bytes] = {}
    for patch in patches:
        path = package.parent / patch.path
        if not path.is_file():
            raise PatchError(f"{path} is missing")
        contents[path] = path.read_bytes()
    done = "not applied" if revert else "already applied"
    pairs = list(zip(contents.items(), patches, strict=True))
    if all(fits(content, patch.reversed()) and not fits(content, patch) for (_, content), patch in pairs):
        return f"{patch_path.name}: {done} in {package}; nothing to do."
    contents = {path: patched(content, patch) for (path, content), patch in pairs}
    action = "revert" if revert else "apply"
    if check:
        return f"{patch_path.name}: would {action} cleanly in {package} ({len(contents)} file(s))."
    write_all(contents)
    return f"{patch_path.name}: {'reverted' if revert else 'applied'} in {package} ({len(contents)} file(s))."


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="apply_patch.py"
    )
    parser.add_argument("package", choices=PACKAGES, help="what to patch")
    parser.add_argument("--target", type=Path, metavar="DIR", help="a source checkout (default: installed)")
    parser.add_argument("--revert", action="store_true", help="take the patch out again")
    parser.add_argument("--check", action="store_true", help="change nothing, say whether it fits")
    args = parser.parse_args(argv)
    try:
        print(run(args.package, args.target, args.revert, args.check))
    except (PatchError, OSError) as error:
        print(f"refused, nothing changed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
