"""Where a report comes from: the command, the versions behind the runs, the seeds."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sppo.records.runs import Run


@dataclass(frozen=True)
class Provenance:
    """What every figure and table carries.

    ``versions`` are those the runs recorded; a package that changed between runs is listed with all of
    its versions.
    """

    command: str
    versions: str

    def footer(self, seeds: Iterable[int]) -> str:
        return f"Made by: {self.command} | Runs with: {self.versions} | Seeds: {seeds_text(seeds) or 'none'}"


def collect(command: str, runs: Iterable[Run]) -> Provenance:
    found: dict[str, set[str]] = defaultdict(set)
    revisions: set[str] = set()
    for run in runs:
        for package, version in run.versions.items():
            found[package].add(str(version))
        if run.git_revision:
            revisions.add(run.git_revision[:12])
    parts = [f"{package} {'/'.join(sorted(versions))}" for package, versions in sorted(found.items())]
    if revisions:
        shown = sorted(revisions)
        more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        parts.append(f"git {'/'.join(shown[:3])}{more}")
    return Provenance(command, ", ".join(parts) or "no versions recorded")


def installed(*packages: str) -> str:
    """``name version`` of installed packages, for the programs that made a file."""
    parts = []
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(parts)


def shown_path(path: Path) -> str:
    """A path as a reader elsewhere can use it: relative to the working directory, else its name."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.name


def seeds_text(seeds: Iterable[int]) -> str:
    """Sorted seeds with runs of three or more contracted: ``0-4, 7``."""
    groups: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if groups and seed == groups[-1][-1] + 1:
            groups[-1].append(seed)
        else:
            groups.append([seed])
    return ", ".join(
        f"{group[0]}-{group[-1]}" if len(group) > 2 else ", ".join(map(str, group)) for group in groups
    )
