"""Numba's ``njit`` with a cache on disk that knows every file a kernel is compiled from.

Numba looks for a change in the function's own file alone, but what the function calls or reads from other
files is part of the machine code too. Here machine code is kept under the contents of all files that the
kernels of a folder are made of: after an edit, or an upgrade in place, it is compiled anew. It is kept where
Numba keeps it: in ``NUMBA_CACHE_DIR`` if that is set, else in ``__pycache__``, else in the user's cache
directory. Where none of these can be written, nothing is kept.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

Function = TypeVar("Function", bound=Callable[..., object])

_PACKAGE = Path(__file__).resolve().parent


def njit(*, cache: bool = True, **options: object) -> Callable[[Function], Function]:
    """``numba.njit(**options)``; with ``cache`` the machine code is kept on disk, as described above."""

    def compiled(function: Function) -> Function:
        kernel = numba.njit(**options)(function)  # type: ignore[call-overload]
        if cache and not numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            try:
                kernel._cache = _SourcesCache(function)
            except (RuntimeError, OSError):
                _warn()
        return kernel

    return compiled


def sources(path: Path) -> list[Path]:
    """What a kernel in this file is compiled from: files of its folder, of the surrogates, and this one."""
    folders = path.resolve().parent, _PACKAGE / "surrogates"
    return sorted({Path(__file__).resolve(), *(file for folder in folders for file in folder.glob("*.py"))})


class _SourcesCache(FunctionCache):
    """Index and machine code under names that contain the hash of all sources.

    So processes that run different versions of the package never read or overwrite each other's files. A
    file that cannot be written, or was left incomplete, costs a compilation and not the run.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        stamp = _stamp(Path(inspect.getfile(function)))
        name = f"{self._impl.filename_base}-{stamp[:16]}"
        self._cache_file = IndexDataCacheFile(self.cache_path, name, stamp)

    def load_overload(self, sig: object, target_context: object) -> object:
        try:
            return super().load_overload(sig, target_context)
        except (OSError, EOFError, pickle.UnpicklingError):
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: object, data: object) -> None:
        try:
            super().save_overload(sig, data)
        except OSError:
            _warn()


@functools.cache
def _stamp(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sources(path):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


@functools.cache
def _warn() -> None:
    """Say it once per process."""
    warnings.warn(
        "compiled code cannot be written to disk, so that every process compiles anew; set the environment "
        "variable NUMBA_CACHE_DIR to a directory that can be written",
        RuntimeWarning,
        stacklevel=2,
    )
