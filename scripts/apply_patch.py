"""Add sPPO (``use_softmax``, ``clip_mode``) to an installed or checked-out Stable-Baselines3 or sb3-contrib.

    python scripts/apply_patch.py stable-baselines3              # the installed package
    python scripts/apply_patch.py sb3-contrib --target ~/my-fork  # a source checkout
    python scripts/apply_patch.py stable-baselines3 --check      # only say what would happen
    python scripts/apply_patch.py stable-baselines3 --revert     # back to the exact bytes

Needs nothing but Python. Every file is patched in memory and written aside first; nothing is changed unless
version and content fit throughout. If it is killed between two files, running it again finishes the work, and
``--revert`` takes it back.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

PATCHES = Path(__file__).resolve().parent.parent / "patches"

#: distribution -> import name of the package that its patch changes
PACKAGES = {"stable-baselines3": "stable_baselines3", "sb3-contrib": "sb3_contrib"}

#: of one file: lines that must be there, and lines that replace them
Changes = list[tuple[list[bytes], list[bytes]]]


class PatchError(Exception):
    """The patch does not fit; the message says where and why."""


def parse(text: bytes) -> dict[str, Changes]:
    """Read a unified diff: changes by file, whose path is relative to the package's parent directory."""
    files: dict[str, Changes] = {}
    for section in re.split(rb"^--- .*\n\+\+\+ b/", text, flags=re.MULTILINE)[1:]:
        path, hunks = section.split(b"\n", 1)
        changes = files.setdefault(path.decode(), [])
        for hunk in re.split(rb"^@@ .*\n", hunks, flags=re.MULTILINE)[1:]:
            lines = hunk.splitlines(keepends=True)
            before = [line[1:] for line in lines if not line.startswith(b"+")]
            after = [line[1:] for line in lines if not line.startswith(b"-")]
            changes.append((before, after))
    return files


def patched(content: bytes, changes: Changes, revert: bool = False) -> bytes | None:
    """The file's new content; a change may have moved, but its lines must occur exactly once."""
    lines = content.splitlines(keepends=True)
    for pair in changes:
        old, new = reversed(pair) if revert else pair
        starts = range(len(lines) - len(old) + 1)
        places = [start for start in starts if lines[start : start + len(old)] == old]
        if len(places) != 1:
            return None
        lines[places[0] : places[0] + len(old)] = new
    return b"".join(lines)


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
        known = sorted(p.stem.removeprefix(f"{distribution}-") for p in PATCHES.glob(f"{distribution}-*"))
        raise PatchError(
            f"{package} is {distribution} {version}; there is a patch for {', '.join(known)} only. "
            f"Install that version: pip install {distribution}=={known[-1]}"
        )
    return path


def aside(path: Path) -> Path:
    """Where a file's new content is written first: beside the file itself if ``path`` is a link."""
    return path.resolve().with_name(f".{path.name}.patched")


def write_all(contents: dict[Path, bytes]) -> None:
    """Write everything aside, then rename."""
    for path, content in contents.items():
        with aside(path).open("wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        shutil.copymode(path, aside(path))
    for path in contents:
        os.replace(aside(path), path.resolve())


def run(distribution: str, target: Path | None, revert: bool, check: bool) -> str:
    """Apply or revert, or only check; returns what to tell the user."""
    package = package_directory(distribution, target)
    patch = find_patch(distribution, package)
    files = {package.parent / name: changes for name, changes in parse(patch.read_bytes()).items()}
    contents: dict[Path, bytes] = {}
    for path, changes in files.items():
        if not path.is_file():
            raise PatchError(f"{path} is missing")
        old = path.read_bytes()
        new = patched(old, changes, revert)
        if new is not None:
            contents[path] = new
        elif patched(old, changes, not revert) is None:
            raise PatchError(
                f"{path} is neither as released nor as patched where {patch.name} changes it: "
                "was it edited by hand, or patched by an earlier version of the patch?"
            )
    if not contents:
        done = "not applied" if revert else "already applied"
        return f"{patch.name}: {done} in {package}; nothing to do."
    where = f"in {package} ({', '.join(path.name for path in contents)})"
    if check:
        return f"{patch.name}: would {'revert' if revert else 'apply'} cleanly {where}."
    try:
        write_all(contents)
    finally:
        # Also what a killed run may have left.
        for path in files:
            aside(path).unlink(missing_ok=True)
    return f"{patch.name}: {'reverted' if revert else 'applied'} {where}."


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
    except PatchError as error:
        print(f"refused, nothing changed: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"stopped: {error}. Run it again to finish, or with --revert to take it back", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
