"""What a run's numbers depend on besides its configuration."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

#: Packages whose versions a training's numbers may depend on.
_PACKAGES = ("sppo", "torch", "stable_baselines3", "sb3_contrib", "gymnasium", "mujoco", "numpy")


@cache
def versions() -> dict[str, str]:
    """The versions of what the numbers depend on."""
    found = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def git_revision() -> str | None:
    """The revision of the source tree that this code runs from, with ``-dirty`` if it was changed."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()

    try:
        # Installed into some other project's tree, that project's revision would say nothing.
        git("ls-files", "--error-unmatch", str(Path(__file__).resolve()))
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.SubprocessError):
        return None
