"""Ctrl-C at any moment leaves a model that trains on, on the fast engine, before and after save and load."""

from __future__ import annotations

import multiprocessing
import random
import signal
from pathlib import Path
from typing import Any

from sppo import SPPO
from tests.engine.engine_models import make_env, moments

ROUNDS = 80


def interrupted_training(directory: Path) -> None:
    """Raise KeyboardInterrupt at random moments of an update, and look at the model each time."""

    def raised(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, raised)
    model = SPPO("MlpPolicy", make_env(), n_steps=16, batch_size=8, n_epochs=40, device="cpu", engine="fast")
    model.learn(48)
    draw = random.Random(0)
    interrupted = 0
    for _ in range(ROUNDS):
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.0005, 0.02))
            model.learn(5_000, reset_num_timesteps=False)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        # Environments that were interrupted in the middle of a step begin anew, as upstream's do.
        model.set_env(make_env())
        assert len(set(moments(model.policy)["step"].tolist())) == 1
    # One that comes in the middle of a destructor is lost.
    assert interrupted > ROUNDS // 2
    model.save(directory / "model")
    again = SPPO.load(directory / "model", env=make_env())
    for survivor in (model, again):
        assert survivor.learn(96, reset_num_timesteps=False).engine_in_use == "fast"


def test_an_interrupted_update_has_moved_weights_and_counts_together(tmp_path: Path) -> None:
    """In a process of its own: an interrupt may leave anything in the interpreter half done."""
    process = multiprocessing.get_context("spawn").Process(target=interrupted_training, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
