"""A study in a process that has used Numba's threads before."""

from __future__ import annotations

from pathlib import Path

from sppo.study.execution import Options
from sppo.study.local import LocalPool


def test_numbas_threads_stay_usable(tmp_path: Path) -> None:
    """Numba refuses to compile anything more if the number of its threads has changed since they began."""
    import numba

    @numba.njit
    def compiled(x: float) -> float:
        return x + 1.0

    numba.set_num_threads(numba.get_num_threads())
    LocalPool(tmp_path, Options(1), 1)
    assert compiled(1.0) == 2.0
