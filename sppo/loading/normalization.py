"""What ``VecNormalize`` did in a training, as plain data that a model's file carries beside the weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, unwrap_vec_normalize

#: Larger observations would make the text that they are stored as larger than the weights.
_MAX_NUMBERS = 100_000
#: Statistics of one training drift; from here on, in standard deviations, they are taken for others.
_FAR = 0.2


@dataclass(frozen=True)
class Normalization:
    """Settings and statistics of a ``VecNormalize``.

    :param observations: by the key of a dictionary, or under ``""`` for what is none; only what is normalised
    :param returns: of the discounted returns, which rewards are scaled by
    """

    observations: dict[str, RunningMeanStd]
    returns: RunningMeanStd
    norm_reward: bool
    clip_obs: float
    clip_reward: float
    gamma: float
    epsilon: float

    @classmethod
    def of(cls, env: VecNormalize | None, space: spaces.Space) -> Normalization | None:
        """What ``env`` does now; ``None`` if it is of the user's own class, or :meth:`check` refuses it."""
        if type(env) is not VecNormalize:
            return None
        observations = {key: _copied(part) for key, part in statistics_of(env).items()}
        numbers = [float(value) for value in (env.clip_obs, env.clip_reward, env.gamma, env.epsilon)]
        made = cls(observations, _copied(env.ret_rms), bool(env.norm_reward), *numbers)
        try:
            made.check(space)
        except ValueError:
            return None
        return made

    @classmethod
    def from_json(cls, data: Mapping[str, Any], space: spaces.Space) -> Normalization:
        """What :meth:`as_json` wrote; whatever this raises means that it is damaged or hostile."""
        parts = {key: _statistics(**part) for key, part in data["observations"].items()}
        made = cls(**{**data, "observations": parts, "returns": _statistics(**data["returns"])})
        made.check(space)
        return made

    def as_json(self) -> str:
        def lists(part: RunningMeanStd) -> dict[str, object]:
            return {"mean": part.mean.tolist(), "var": part.var.tolist(), "count": part.count}

        parts = {key: lists(part) for key, part in self.observations.items()}
        return json.dumps({**vars(self), "observations": parts, "returns": lists(self.returns)})

    def check(self, space: spaces.Space) -> None:
        """Refuse what no training leaves behind, and what does not fit a model's observations."""
        numbers = (self.clip_obs, self.clip_reward, self.gamma, self.epsilon)
        if type(self.norm_reward) is not bool or not all(type(number) in (int, float) for number in numbers):
            raise ValueError("a setting is of another kind")
        clip_obs, clip_reward, gamma, epsilon = map(float, numbers)
        if not (clip_obs > 0 and clip_reward > 0 and 0 <= gamma <= 1 and 0 <= epsilon < math.inf):
            raise ValueError("a setting is out of its range")
        for key, part in self.observations.items():
            whole = parts_of(space).get(key)
            if not isinstance(whole, spaces.Box) or not _stacks(part.mean.shape, whole.shape):
                raise ValueError("the statistics do not fit the observation space")
        every = (self.returns, *self.observations.values())
        if self.returns.mean.shape != () or sum(part.mean.size for part in every) > _MAX_NUMBERS:
            raise ValueError(f"the statistics are of more than {_MAX_NUMBERS} numbers, or of several returns")
        for part in every:
            if part.mean.shape != part.var.shape or not np.isfinite([part.mean, part.var]).all():
                raise ValueError("the statistics are not finite")
            positive = (part.var >= 0).all() and (part.var + epsilon > 0).all()
            if not positive or not 0 < part.count < math.inf:
                raise ValueError("the statistics have impossible variances or counts")

    def wrap(self, env: GymEnv, training: bool) -> VecNormalize:
        """``env`` with observations normalised as here; for training, rewards too, and new data count."""
        venv = env if isinstance(env, VecEnv) else DummyVecEnv([lambda: Monitor(env)])
        if unwrap_vec_normalize(venv) is not None:
            raise ValueError("the environment is in a VecNormalize already: give what that wraps")
        for key, part in self.observations.items():
            space = parts_of(venv.observation_space).get(key)
            if space is None or space.shape != part.mean.shape:
                raise ValueError(
                    f"the model's observations {key} had the shape {part.mean.shape} below its VecNormalize, "
                    f"and here they are {space}: wrap the environment as then, before any VecFrameStack"
                )
        keys = [key for key in self.observations if key] or None
        numbers = (self.clip_obs, self.clip_reward, self.gamma, self.epsilon)
        rewards = training and self.norm_reward
        made = VecNormalize(venv, training, bool(self.observations), rewards, *numbers, norm_obs_keys=keys)
        copies = {key: _copied(part) for key, part in self.observations.items()}
        if copies:
            made.obs_rms = copies if keys else copies[""]  # type: ignore[assignment]
        made.ret_rms = _copied(self.returns)
        return made

    def difference(self, env: VecNormalize | None, rewards: bool = False) -> str | None:
        """What ``env`` does otherwise to observations, or to rewards, in words; ``None`` if much the same."""
        if rewards:
            normalised = env is not None and env.norm_reward
            return "does not normalise rewards" if self.norm_reward and not normalised else None
        theirs = {} if env is None else statistics_of(env)
        if _shapes(theirs) != _shapes(self.observations):
            return "normalises other observations" if theirs else "does not normalise observations"
        for key, part in self.observations.items():
            with np.errstate(all="ignore"):
                scale, its = (np.sqrt(each.var + self.epsilon) for each in (part, theirs[key]))
                apart = np.maximum(np.abs(theirs[key].mean - part.mean) / scale, np.abs(its / scale - 1))
            if np.any(apart > _FAR):
                return "normalises observations with other statistics"
        return None


def _statistics(mean: ArrayLike, var: ArrayLike, count: float) -> RunningMeanStd:
    made = RunningMeanStd()
    made.mean, made.var, made.count = np.array(mean, np.float64), np.array(var, np.float64), float(count)
    return made


def _copied(part: RunningMeanStd) -> RunningMeanStd:
    return _statistics(part.mean, part.var, part.count)


def statistics_of(env: VecNormalize) -> dict[str, RunningMeanStd]:
    """The statistics of what ``env`` normalises now, as in :class:`Normalization`."""
    if not env.norm_obs:
        return {}
    if isinstance(env.obs_rms, dict):
        return {key: env.obs_rms[key] for key in env.norm_obs_keys or ()}
    return {"": env.obs_rms}


def _shapes(statistics: Mapping[str, RunningMeanStd]) -> dict[str, tuple[int, ...]]:
    return {key: np.shape(part.mean) for key, part in statistics.items()}


def parts_of(space: spaces.Space) -> Mapping[str, spaces.Space]:
    """The spaces of a dictionary by their keys; of what is none, itself under ``""``."""
    return space.spaces if isinstance(space, spaces.Dict) else {"": space}


def _stacks(frame: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether ``shape`` is that of such frames, or of several of them (``VecFrameStack``)."""
    return len(frame) == len(shape) and all(m and n % m == 0 for m, n in zip(frame, shape, strict=True))
