"""Models trained under ``VecNormalize``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sppo import SPPO
from tests.algorithms.environments import SpaceEnv

MEMBER = "sppo_normalization.json"
SMALL: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "device": "cpu", "seed": 1}
OPTIONS: dict[str, Any] = {"clip_obs": 1.5, "clip_reward": 2.0, "gamma": 0.9, "epsilon": 1e-6}


def raw_env(observation: str = "vector", action: str = "discrete", n_envs: int = 2) -> VecEnv:
    return DummyVecEnv([lambda: SpaceEnv(observation, action)] * n_envs)


def trained(
    path: Path, kind: Any = SPPO, policy: str = "MlpPolicy", **options: Any
) -> tuple[Any, VecNormalize]:
    env = VecNormalize(raw_env(), **{**OPTIONS, **options})
    model = kind(policy, env, **SMALL).learn(64)
    model.save(path / "model.zip")
    return model, env
