"""BLAS threads: one for small products, PyTorch's number for large ones, and as before afterwards."""

from __future__ import annotations

import pytest
import torch as th

from sppo.engine import blas
from sppo.engine.layout import describe
from sppo.envs.cores import available_processes, idle_cores
from tests.engine.engine_models import make_model


def test_threads_follow_the_size_of_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    controls = blas._controls()
    if controls is None:
        pytest.skip("SciPy's BLAS has no control of its threads here")
    read, write = controls
    monkeypatch.setattr(th, "get_num_threads", lambda: 2)
    small = describe(make_model().policy)
    large = describe(make_model(policy_kwargs={"net_arch": [256, 256]}).policy)
    before = read()
    write(2)
    for layout, rows, expected in ((small, 64, 1), (large, 64, 1), (large, 512, 2)):
        with blas.blas_threads(layout.multiply_adds(rows)):
            assert read() == expected
        assert read() == 2
    write(before)


def test_processes_obey_the_usual_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert available_processes() == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    cores = available_processes()
    assert cores >= 1
    assert 0 <= idle_cores(samples=3) <= cores
