"""Ctrl-C at any moment leaves a model that trains on, on the fast engine, before and after save and load."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from sppo import SPPO
from tests.engine.engine_models import make_env, moments

ROUNDS = 80


@pytest.fixture
def interrupts() -> Any:
    """``interrupts(seconds)`` raises KeyboardInterrupt in this thread, as Ctrl-C does, after that time."""

    def raised(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raised)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupted_update_has_moved_weights_and_counts_together(interrupts: Any, tmp_path: Path) -> None:
    model = SPPO("MlpPolicy", make_env(), n_steps=16, batch_size=8, n_epochs=40, device="cpu", engine="fast")
    model.learn(48)
    draw = random.Random(0)
    interrupted = 0
    for _ in range(ROUNDS):
        try:
            interrupts(draw.uniform(0.0005, 0.02))
            model.learn(10_000, reset_num_timesteps=False)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            interrupts(0)
        assert len(set(moments(model.policy)["step"].tolist())) == 1
    assert interrupted == ROUNDS
    model.save(tmp_path / "model")
    again = SPPO.load(tmp_path / "model", env=make_env())
    for survivor in (model, again):
        assert survivor.learn(96, reset_num_timesteps=False).engine_in_use == "fast"
