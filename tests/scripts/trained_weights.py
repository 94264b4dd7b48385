"""What a class trains, with nothing imported that a patch is not about."""

from __future__ import annotations

import hashlib
from typing import Any

from stable_baselines3.common.env_util import make_vec_env

from tests.algorithms.environments import SpaceEnv


def digests(algorithm: Any, **options: Any) -> list[str]:
    """Of the weights, trained with the clip that is the default and with the formula as printed."""
    recurrent, masked = (word in algorithm.__name__ for word in ("Recurrent", "Maskable"))
    kwargs = {"net_arch": [16]} | ({"lstm_hidden_size": 8} if recurrent else {})
    found = []
    for chosen in ({}, {"clip_mode": "two-sided"}):
        env = make_vec_env(SpaceEnv, n_envs=2, seed=5, env_kwargs={"action": "discrete" if masked else "box"})
        model = algorithm(
            "MlpLstmPolicy" if recurrent else "MlpPolicy", env, n_steps=32, batch_size=16, n_epochs=3, seed=3,
            learning_rate=1e-2, policy_kwargs=kwargs, use_softmax=True, device="cpu", **options, **chosen,
        )  # fmt: skip
        model.learn(192)
        weights = b"".join(tensor.numpy().tobytes() for tensor in model.policy.state_dict().values())
        found.append(hashlib.sha256(weights).hexdigest())
    return found
