"""Forks share memory for as long as they live, and nothing made after the first one is kept alive."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import gc, weakref
from sppo import SPPO, make_vec_env

frozen = []
models = []
for seed in range(3):
    env = make_vec_env("Pendulum-v1", 4, seed=seed, backend="subproc")
    frozen.append(gc.get_freeze_count())
    model = SPPO("MlpPolicy", env, n_steps=16, batch_size=32, n_epochs=1, seed=seed, engine="fast").learn(64)
    models.append(weakref.ref(model))
env.close()
del env, model
gc.collect()
print(frozen[0] > 10_000, frozen[1] <= frozen[0], frozen[2] <= frozen[0], [ref() is None for ref in models])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux only")
def test_frozen_once_and_models_are_still_collected() -> None:
    """Models sit in reference cycles: one that had been frozen would never be freed."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "True True True [True, True, True]"
