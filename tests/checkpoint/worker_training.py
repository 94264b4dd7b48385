"""A training with worker processes and checkpoints, for tests that kill it."""

from __future__ import annotations

import os
from pathlib import Path

from stable_baselines3.common.vec_env import VecNormalize

from sppo import SPPO, ExactCheckpointCallback, make_vec_env

TOTAL = 128 * 40


def train(directory: Path) -> SPPO:
    """From the newest checkpoint, or from the beginning, to the end."""
    checkpoints = directory / "checkpoints"
    if any(checkpoints.glob("*.checkpoint")):
        model = SPPO.resume(checkpoints)
    else:
        env = VecNormalize(make_vec_env("Pendulum-v1", 4, seed=5, backend="subproc"))
        settings = {"n_steps": 32, "batch_size": 64, "n_epochs": 2, "seed": 5, "device": "cpu"}
        model = SPPO("MlpPolicy", env, **settings)
    model.learn(
        TOTAL - model.num_timesteps,
        ExactCheckpointCallback(checkpoints, every=1),
        reset_num_timesteps=model.num_timesteps == 0,
    )
    return model


def train_and_save(directory: Path) -> None:
    """Target of a process."""
    os.environ["OMP_NUM_THREADS"] = "2"
    model = train(directory)
    model.save(directory / "model.zip")
    model.get_env().close()
