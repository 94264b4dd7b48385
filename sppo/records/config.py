"""A run's frozen configuration: its identity, on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class RunConfig:
    """Everything that the result of one training depends on, apart from the versions of the software.

    :param env: id of a registered environment
    :param algorithm: the label that the report groups by (``"ppo"``, ``"sppo"``, ...)
    :param cls: which class trains: ``"sppo"`` (with ``use_softmax=False`` also PPO) or ``"trpo"``
    :param evaluations: how many evaluations are spread evenly over the training, the last at its end
    :param eval_episodes: episodes per evaluation
    :param normalize: see :data:`sppo.study.parameters.NORMALIZE`
    :param parameters: the algorithm's parameters by Stable-Baselines3's names
    """

    env: str
    algorithm: str
    seed: int
    total_timesteps: int
    n_envs: int
    evaluations: int
    eval_episodes: int
    normalize: Mapping[str, Any]
    parameters: Mapping[str, Any]
    cls: str = "sppo"
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The configuration as ``config.json`` holds it."""
        return {
            "env": self.env,
            "env_kwargs": dict(self.env_kwargs),
            "algorithm": self.algorithm,
            "class": self.cls,
            "seed": self.seed,
            "total_timesteps": self.total_timesteps,
            "n_envs": self.n_envs,
            "evaluations": self.evaluations,
            "eval_episodes": self.eval_episodes,
            "normalize": dict(self.normalize),
            "parameters": dict(self.parameters),
        }

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> RunConfig:
        """The inverse of :meth:`as_dict`."""
        fields = dict(config)
        return cls(cls=fields.pop("class", "sppo"), **fields)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal digits."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def is_same_run(self, config: Mapping[str, Any]) -> bool:
        """Whether a configuration, as ``config.json`` holds it, is this one."""
        return config == self.as_dict()

    @property
    def directory_name(self) -> str:
        """The run's directory within its study."""
        return self.hash[:16]

    @property
    def batch(self) -> int:
        """Transitions per iteration."""
        return int(self.parameters["n_steps"]) * self.n_envs

    def describe(self, varied: tuple[str, ...] = ()) -> str:
        """One line for people: environment, algorithm, the parameters that vary in the study, seed."""
        settings = [f"{name}={self.parameters[name]}" for name in varied if name in self.parameters]
        return " ".join([self.env, self.algorithm, *settings, f"seed={self.seed}"])


def differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Where two configurations differ: ``"parameters.clip_range: 0.2 and 0.3"``."""
    found = []
    for key in sorted({*first, *second}):
        a, b = first.get(key), second.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}: {a!r} and {b!r}")
    return found
