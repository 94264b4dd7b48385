"""How the solvers' functions are compiled: kept on disk, without Python's global lock, IEEE division."""

from __future__ import annotations

from typing import Any

from sppo.compiled import njit


def _decorator(**options: Any) -> Any:
    return njit(nogil=True, error_model="numpy", **options)


#: Called from Python as well as from compiled code.
entry = _decorator()
#: Called from compiled code only: no wrapper for Python is compiled, which halves the time it takes.
leaf = _decorator(no_cpython_wrapper=True, no_cfunc_wrapper=True)
#: Pasted into its callers.
inlined = _decorator(inline="always")
