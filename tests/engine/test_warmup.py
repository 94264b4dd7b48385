"""A cold start compiles the kernel once, in another process, and trains to the same result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from tests.engine.engine_models import flat, make_model
from sppo.engine import kernels, warmup
if sys.argv[1] == "spawn":
    warmup.can_fork = lambda: False
model = make_model(engine="fast", n_epochs=2)
started = warmup.WARMUP._process is not None
model.learn(288)
assert len(kernels.run_epoch.signatures) == 1
hits = sum(kernels.run_epoch.stats.cache_hits.values())
print(started, hits, float(abs(flat(model.policy)).sum()))
"""


def run(cache: Path, start: str) -> list[str]:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, start],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_cold_and_warm_start(tmp_path: Path, start: str) -> None:
    """Both read the kernel from disk, the cold start after another process has put it there."""
    cold, warm = run(tmp_path, start), run(tmp_path, start)
    assert cold[:2] == ["True", "1"]
    assert warm[:2] == ["False", "1"]
    assert cold[2] == warm[2]
