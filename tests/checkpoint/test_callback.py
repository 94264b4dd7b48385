"""Checkpoints during ``learn``: when they are written, where, and whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sppo import SPPO
from sppo.algorithms.finite import NonFiniteError
from sppo.checkpoint import (
    CheckpointError,
    ExactCheckpointCallback,
    checkpoints,
    restore,
)
from tests.checkpoint.trainings import SETTINGS, assert_same_weights, points


def test_checkpoints_fall_on_logged_iterations(tmp_path: Path) -> None:
    """With a log interval, a resumed training would otherwise log at other steps."""
    model = SPPO("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path / "tb"), **SETTINGS)
    model.learn(32 * 12, ExactCheckpointCallback(tmp_path / "c", every=2, keep=9), log_interval=3)
    assert [path.name for path in checkpoints(tmp_path / "c")] == ["192_steps.checkpoint"]
    (directory,) = (tmp_path / "tb").iterdir()
    before = points(directory)
    resumed = SPPO.resume(tmp_path / "c")
    resumed.learn(resumed.remaining_timesteps, log_interval=3, reset_num_timesteps=False)
    assert points(directory) == before


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_directory_belongs_to_one_training(tmp_path: Path) -> None:
    """A new training there is refused before it has done anything, and nothing is lost."""
    first = SPPO("MlpPolicy", "CartPole-v1", **SETTINGS)
    first.learn(160, ExactCheckpointCallback(tmp_path, every=1))
    before = contents(tmp_path)
    second = SPPO("MlpPolicy", "CartPole-v1", **SETTINGS)
    with pytest.raises(CheckpointError, match=r"of another training .*another directory"):
        second.learn(160, ExactCheckpointCallback(tmp_path, every=1))
    assert second.num_timesteps == 0
    with pytest.raises(CheckpointError, match=r"later checkpoints of this training.*128_steps"):
        first.learn(160, ExactCheckpointCallback(tmp_path, every=1))
    assert contents(tmp_path) == before
    resumed = SPPO.resume(tmp_path)
    resumed.learn(96, ExactCheckpointCallback(tmp_path, every=1), reset_num_timesteps=False)
    assert [path.name for path in checkpoints(tmp_path)] == ["192_steps.checkpoint", "160_steps.checkpoint"]


def test_going_back_in_a_directory_is_refused_but_a_damaged_checkpoint_is_overwritten(tmp_path: Path) -> None:
    model = SPPO("MlpPolicy", "CartPole-v1", **SETTINGS)
    model.learn(160, ExactCheckpointCallback(tmp_path, every=1, keep=9))
    with pytest.raises(CheckpointError, match="later checkpoints"):
        SPPO.resume(tmp_path / "64_steps.checkpoint").learn(
            96, ExactCheckpointCallback(tmp_path, every=1, keep=9), reset_num_timesteps=False
        )
    damaged = tmp_path / "128_steps.checkpoint"
    data = damaged.read_bytes()
    damaged.write_bytes(data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :])
    with pytest.warns(UserWarning, match=r"damaged.*96_steps\.checkpoint instead"):
        resumed = SPPO.resume(tmp_path)
    resumed.learn(64, ExactCheckpointCallback(tmp_path, every=1), reset_num_timesteps=False)
    assert_same_weights(model, resumed)


def test_two_trainings_that_began_in_one_directory(tmp_path: Path) -> None:
    """Both found it empty: the second to write is refused, and resume does not guess."""
    first, second = (SPPO("MlpPolicy", "CartPole-v1", **SETTINGS) for _ in range(2))

    class Meanwhile(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 1:
                second.learn(64, ExactCheckpointCallback(tmp_path, every=1))
            return True

    with pytest.raises(CheckpointError, match="another training"):
        first.learn(96, [Meanwhile(), ExactCheckpointCallback(tmp_path, every=1)])
    assert SPPO.resume(tmp_path).num_timesteps == 32
    first.save_checkpoint(tmp_path / "640_steps.checkpoint")
    with pytest.raises(CheckpointError, match="several trainings"):
        SPPO.resume(tmp_path)
    assert SPPO.resume(tmp_path / "32_steps.checkpoint").num_timesteps == 32


def test_a_checkpoint_knows_whose_it_is(tmp_path: Path) -> None:
    model = SPPO("MlpPolicy", "CartPole-v1", **SETTINGS)
    model.learn(96, ExactCheckpointCallback(tmp_path, every=1, identity="abc"))
    assert SPPO.resume(tmp_path).num_timesteps == 64
    assert SPPO.resume(tmp_path, identity="abc").num_timesteps == 64
    with pytest.raises(CheckpointError, match=r"another run \(abc, not def\).*another directory"):
        SPPO.resume(tmp_path, identity="def")
    model.save_checkpoint(tmp_path / "c", identity="ghi")
    with pytest.raises(CheckpointError, match="ghi, not abc"):
        restore(SPPO, tmp_path / "c", identity="abc")


class Breaking(gym.Wrapper):
    """Observes, after some steps, what is not a number."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.steps_left = 150

    def step(self, action: Any) -> Any:
        self.steps_left -= 1
        observation, *rest = super().step(action)
        return (observation if self.steps_left else observation * np.nan), *rest


def test_numbers_that_are_not_finite_leave_the_last_good_state(tmp_path: Path) -> None:
    weights: list[dict[str, th.Tensor]] = []

    class Weights(BaseCallback):
        def _on_rollout_start(self) -> None:
            weights.append({k: v.clone() for k, v in self.model.policy.state_dict().items()})

        def _on_step(self) -> bool:
            return True

    model = SPPO("MlpPolicy", VecNormalize(make_vec_env(Breaking, 1, seed=1)), **SETTINGS)
    with pytest.raises(NonFiniteError) as caught:
        model.learn(640, [Weights(), ExactCheckpointCallback(tmp_path, every=3, keep=9)])
    assert model.num_timesteps == 149
    notes = "\n".join(caught.value.__notes__)
    assert "96_steps.checkpoint" in notes
    assert "128_steps.last_good" in notes
    # The newest exact checkpoint is what resume finds; the last good weights are further.
    make = lambda: VecNormalize(make_vec_env(Breaking, 1, seed=1))  # noqa: E731
    assert SPPO.resume(tmp_path, env=make()).num_timesteps == 96
    with pytest.warns(UserWarning, match="started again.*broken off"):
        good = SPPO.resume(tmp_path / "128_steps.last_good", env=make())
    assert good.num_timesteps == 128
    assert np.isfinite(good.env.obs_rms.mean).all()
    assert all(th.equal(value, weights[-1][key]) for key, value in good.policy.state_dict().items())
    assert good.learn(64, reset_num_timesteps=False).num_timesteps == 192
