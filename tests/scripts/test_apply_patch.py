"""The patches: our classes' training, exact reversal, and refusal of anything that does not fit."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sppo import SPPO, MaskableSPPO, RecurrentSPPO
from tests.scripts.trained_weights import digests

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "apply_patch.py"
PATCHED_FILES = {
    "stable-baselines3": ["stable_baselines3/ppo/ppo.py"],
    "sb3-contrib": ["sb3_contrib/ppo_mask/ppo_mask.py", "sb3_contrib/ppo_recurrent/ppo_recurrent.py"],
}

#: Trains the patched classes that argv names and prints a digest of every weight, for each clip.
PATCHED_TRAINING = """
import importlib, sys
from tests.scripts.trained_weights import digests

for name in sys.argv[1:]:
    module, name = name.rsplit(".", 1)
    algorithm = getattr(importlib.import_module(module), name)
    print(importlib.import_module(algorithm.__module__).__file__, *digests(algorithm))
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A copy of both installed packages, importable ahead of the installed ones."""
    for name in ("stable_baselines3", "sb3_contrib"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        shutil.copytree(
            Path(spec.origin).parent, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path


def apply_patch(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def checksums(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize(
    ("package", "classes"),
    [
        ("stable-baselines3", {"stable_baselines3.PPO": SPPO}),
        ("sb3-contrib", {"sb3_contrib.MaskablePPO": MaskableSPPO, "sb3_contrib.RecurrentPPO": RecurrentSPPO}),
    ],
    ids=str,
)
def test_patched_upstream_trains_our_weights(packages: Path, package: str, classes: dict[str, type]) -> None:
    """With the clip that is the default of both, and with the formula as printed, which is another one."""
    result = apply_patch(package, "--target", packages)
    assert result.returncode == 0, result.stderr
    environment = {**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PATCHED_TRAINING, *classes]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stderr
    for line, ours in zip(result.stdout.splitlines(), classes.values(), strict=True):
        source, *patched_weights = line.split()
        assert source.startswith(str(packages)), "the unpatched class was trained"
        assert patched_weights == digests(ours, engine="reference")
        assert len(set(patched_weights)) == 2


@pytest.mark.parametrize("package", PATCHED_FILES)
def test_apply_changes_only_its_files_and_revert_restores_every_byte(packages: Path, package: str) -> None:
    before = checksums(packages)
    assert apply_patch(package, "--target", packages).returncode == 0
    after = checksums(packages)
    assert [name for name in before if before[name] != after[name]] == PATCHED_FILES[package]
    assert before.keys() == after.keys()
    assert apply_patch(package, "--target", packages, "--revert").returncode == 0
    assert checksums(packages) == before


@pytest.mark.parametrize("package", PATCHED_FILES)
def test_twice_is_as_good_as_once(packages: Path, package: str) -> None:
    nothing = apply_patch(package, "--target", packages, "--revert")
    assert (nothing.returncode, "nothing to do" in nothing.stdout) == (0, True)
    apply_patch(package, "--target", packages)
    applied = checksums(packages)
    again = apply_patch(package, "--target", packages)
    assert (again.returncode, "already applied" in again.stdout) == (0, True)
    assert checksums(packages) == applied


def test_check_changes_nothing(packages: Path) -> None:
    before = checksums(packages)
    result = apply_patch("sb3-contrib", "--target", packages, "--check")
    assert (result.returncode, "would apply cleanly" in result.stdout) == (0, True)
    assert checksums(packages) == before


def test_other_version_is_refused(packages: Path) -> None:
    (packages / "stable_baselines3" / "version.txt").write_text("2.8.0\n")
    before = checksums(packages)
    result = apply_patch("stable-baselines3", "--target", packages)
    assert result.returncode == 1
    assert "2.8.0" in result.stderr
    assert "2.9.2" in result.stderr
    assert checksums(packages) == before


@pytest.mark.parametrize("revert", [False, True])
def test_edited_file_is_refused_and_nothing_is_half_applied(packages: Path, revert: bool) -> None:
    """The second of two files does not fit: the first must stay as it was."""
    if revert:
        assert apply_patch("sb3-contrib", "--target", packages).returncode == 0
    path = packages / PATCHED_FILES["sb3-contrib"][1]
    path.write_text(path.read_text().replace("self.target_kl = target_kl", "self.target_kl = None"))
    before = checksums(packages)
    result = apply_patch("sb3-contrib", "--target", packages, *(["--revert"] if revert else []))
    assert result.returncode == 1
    assert "ppo_recurrent.py" in result.stderr
    assert checksums(packages) == before


def test_edits_elsewhere_in_a_fork_survive(packages: Path) -> None:
    path = packages / PATCHED_FILES["stable-baselines3"][0]
    path.write_text("# a fork's own header\n" + path.read_text())
    forked = path.read_bytes()
    assert apply_patch("stable-baselines3", "--target", packages).returncode == 0
    assert path.read_bytes().startswith(b"# a fork's own header\n")
    assert b"use_softmax" in path.read_bytes()
    assert apply_patch("stable-baselines3", "--target", packages, "--revert").returncode == 0
    assert path.read_bytes() == forked


KILLED = """
import os, runpy, signal, sys
replace, calls = os.replace, []
def stop(source, target):
    if calls:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(target)
    replace(source, target)
os.replace = stop
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("killed_at", [[], ["--revert"]], ids=["applying", "reverting"])
@pytest.mark.parametrize("then", [[], ["--revert"]], ids=["then apply", "then revert"])
def test_killed_between_two_files(packages: Path, killed_at: list[str], then: list[str]) -> None:
    """Whatever was under way, both directions end as if nothing had happened."""
    arguments = ["sb3-contrib", "--target", str(packages)]
    states = {"--revert": checksums(packages)}
    assert apply_patch(*arguments).returncode == 0
    states["apply"] = checksums(packages)
    if not killed_at:
        assert apply_patch(*arguments, "--revert").returncode == 0
    command = [sys.executable, "-c", KILLED, str(SCRIPT), *arguments, *killed_at]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == -signal.SIGKILL
    assert checksums(packages) not in states.values()
    result = apply_patch(*arguments, *then)
    assert result.returncode == 0, result.stderr
    assert checksums(packages) == states[then[0] if then else "apply"]


def test_links_stay_links(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "ppo.py"
    path = packages / PATCHED_FILES["stable-baselines3"][0]
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    assert apply_patch("stable-baselines3", "--target", packages).returncode == 0
    assert path.is_symlink()
    assert b"use_softmax" in elsewhere.read_bytes()
    assert apply_patch("stable-baselines3", "--target", packages, "--revert").returncode == 0
    assert path.is_symlink()
    assert elsewhere.read_bytes() == before


def test_a_failed_write_changes_nothing(packages: Path) -> None:
    """Something stands where the second file would be written aside."""
    path = packages / PATCHED_FILES["sb3-contrib"][1]
    before = checksums(packages)
    (path.parent / f".{path.name}.patched").mkdir()
    result = apply_patch("sb3-contrib", "--target", packages)
    assert result.returncode == 1
    assert checksums(packages) == before


def test_missing_package_is_named(tmp_path: Path) -> None:
    result = apply_patch("stable-baselines3", "--target", tmp_path)
    assert result.returncode == 1
    assert "stable_baselines3" in result.stderr
