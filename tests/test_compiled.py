"""Machine code on disk: never older than the sources that it was compiled from, and never needed."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

import sppo
from sppo import engine, exact
from sppo.compiled import sources

PACKAGE = Path(sppo.__file__).parent
#: Two kernels in a file each, quick to compile.
OUTER = """
from sppo.compiled import njit
from sppo.inner import twice

@njit()
def four_times(x):
    return twice(twice(x))
"""
INNER = """
from sppo.compiled import njit

@njit()
def twice(x):
    return 2.0 * x
"""
CALL = "from sppo.outer import four_times; print(four_times(1.0))"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that may be edited."""
    copy = shutil.copytree(PACKAGE, tmp_path / "sppo", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "outer.py").write_text(OUTER)
    (copy / "inner.py").write_text(INNER)
    return copy


def run(package: Path, code: str = CALL, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code with the copy, in a process of its own whose home is beside it."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package.parent), **variables}
    environment.setdefault("HOME", str(package.parent / "home"))
    return subprocess.run(
        [sys.executable, "-B", "-c", code],
        env=environment,
        cwd=package.parent,
        capture_output=True,
        text=True,
        check=True,
    )


def kept(folder: Path) -> dict[Path, float]:
    """The files with machine code and when they were written."""
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*.nb[ci]")}


def test_an_edit_of_an_imported_kernel_is_compiled(package: Path) -> None:
    assert float(run(package).stdout) == 4.0
    files = kept(package)
    assert float(run(package).stdout) == 4.0
    assert files
    assert kept(package) == files, "an unchanged package was compiled again"
    (package / "inner.py").write_text(INNER.replace("2.0 * x", "3.0 * x"))
    assert float(run(package).stdout) == 9.0
    (package / "inner.py").write_text(INNER)
    assert float(run(package).stdout) == 4.0


def test_kernels_use_nothing_from_other_files_than_those() -> None:
    found = set()
    for room in (engine, exact):
        for name in (f"{room.__name__}.{each.name}" for each in pkgutil.iter_modules(room.__path__)):
            for kernel in vars(importlib.import_module(name)).values():
                if not isinstance(kernel, Dispatcher):
                    continue
                found.add(kernel.__name__)
                known = sources(Path(inspect.getfile(kernel.py_func)))
                for used in inspect.getclosurevars(kernel.py_func).globals.values():
                    home = inspect.getmodule(getattr(used, "py_func", used))
                    if home is not None and home.__name__.startswith("sppo."):
                        assert Path(str(home.__file__)).resolve() in known, (kernel, used)
    assert {"run_epoch", "sample_actions", "forward"} <= found


def test_numba_is_used_through_the_cache_that_knows_the_sources() -> None:
    for file in PACKAGE.rglob("*.py"):
        if file.name != "compiled.py":
            text = file.read_text()
            assert "import njit" not in text.replace("from sppo.compiled import njit", ""), file
            assert "numba.njit" not in text, file


def test_a_directory_for_the_cache_can_be_named(package: Path, tmp_path: Path) -> None:
    run(package, NUMBA_CACHE_DIR=str(tmp_path / "named"))
    assert kept(tmp_path / "named")
    assert not kept(package)


def test_nothing_can_be_written(package: Path) -> None:
    # A file where a directory is needed stops the superuser too.
    (package / "__pycache__").touch()
    process = run(package, HOME=os.devnull, XDG_CACHE_HOME=os.devnull)
    assert float(process.stdout) == 4.0
    assert process.stderr.count("NUMBA_CACHE_DIR") == 1
    assert not kept(package)


def test_an_incomplete_file_costs_a_compilation(package: Path) -> None:
    run(package)
    files = kept(package)
    for file in files:
        file.write_bytes(file.read_bytes()[:10])
    assert float(run(package).stdout) == 4.0
    whole = kept(package)
    assert whole != files
    assert float(run(package).stdout) == 4.0
    assert kept(package) == whole


def test_processes_at_once(package: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        assert [float(process.stdout) for process in threads.map(run, [package] * 4)] == [4.0] * 4
