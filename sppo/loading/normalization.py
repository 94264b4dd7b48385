"""What ``VecNormalize`` did in a training, as plain data: from its pickles, and beside a model's weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, unwrap_vec_normalize

from sppo.loading.pickletree import Call
from sppo.loading.rebuild import Rebuilder, builds

#: Larger observations would make the text that they are stored as larger than the weights.
_MAX_NUMBERS = 100_000
#: Statistics of one training drift; from here on, in standard deviations, they are taken for others.
_FAR = 0.2


@dataclass(frozen=True)
class Normalization:
    """Settings and statistics of a ``VecNormalize``.

    :param observations: by the key of a dictionary, or under ``""`` for what is none; only what is normalised
    :param returns: of the discounted returns, which rewards are scaled by
    :param training: whether new data change the statistics; in a model's file they do
    """

    observations: dict[str, RunningMeanStd]
    returns: RunningMeanStd
    norm_reward: bool
    clip_obs: float
    clip_reward: float
    gamma: float
    epsilon: float
    training: bool = True

    @classmethod
    def of(cls, env: VecNormalize | SimpleNamespace) -> Normalization:
        """What ``env``, or an object with its attributes, does now."""
        observations = {key: _copied(part) for key, part in statistics_of(env).items()}
        numbers = (float(env.clip_obs), float(env.clip_reward), float(env.gamma), float(env.epsilon))
        return cls(observations, _copied(env.ret_rms), bool(env.norm_reward), *numbers, bool(env.training))

    @classmethod
    def to_save(cls, env: VecNormalize | None, space: spaces.Space) -> Normalization | None:
        """What a model's file carries; ``None`` if ``env`` is a class of the user's, broken or large."""
        if type(env) is not VecNormalize:
            return None
        made = cls.of(env)
        try:
            made.check(space, _MAX_NUMBERS)
        except ValueError:
            return None
        return made

    @classmethod
    def from_json(cls, data: Mapping[str, Any], space: spaces.Space) -> Normalization:
        """What :meth:`as_json` wrote; whatever this raises means that it is damaged or hostile."""
        parts = {key: _statistics(**part) for key, part in data["observations"].items()}
        made = cls(**{**data, "observations": parts, "returns": _statistics(**data["returns"])})
        made.check(space, _MAX_NUMBERS)
        return made

    def as_json(self) -> str:
        def lists(part: RunningMeanStd) -> dict[str, object]:
            return {"mean": part.mean.tolist(), "var": part.var.tolist(), "count": part.count}

        parts = {key: lists(part) for key, part in self.observations.items()}
        data = {**vars(self), "observations": parts, "returns": lists(self.returns)}
        del data["training"]
        return json.dumps(data)

    def check(self, space: spaces.Space, max_numbers: float = math.inf) -> None:
        """Refuse what no training leaves behind, and what does not fit a model's observations."""
        numbers = (self.clip_obs, self.clip_reward, self.gamma, self.epsilon)
        flags = (self.norm_reward, self.training)
        if {type(flag) for flag in flags} != {bool} or not {type(n) for n in numbers} <= {int, float}:
            raise ValueError("a setting is of another kind")
        clip_obs, clip_reward, gamma, epsilon = map(float, numbers)
        if not (clip_obs > 0 and clip_reward > 0 and 0 <= gamma <= 1 and 0 <= epsilon < math.inf):
            raise ValueError("a setting is out of its range")
        for key, part in self.observations.items():
            whole = parts_of(space).get(key)
            if not isinstance(whole, spaces.Box) or not _stacks(part.mean.shape, whole.shape):
                raise ValueError("the statistics do not fit the observation space")
        every = (self.returns, *self.observations.values())
        if self.returns.mean.shape != () or sum(part.mean.size for part in every) > max_numbers:
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
        return self.around(venv, training, training and self.norm_reward)

    def around(self, venv: VecEnv, training: bool, norm_reward: bool) -> VecNormalize:
        """A ``VecNormalize`` with copies of the statistics."""
        for key, part in self.observations.items():
            space = parts_of(venv.observation_space).get(key)
            if space is None or space.shape != part.mean.shape:
                raise ValueError(
                    f"the observations {key} had the shape {part.mean.shape} below the VecNormalize of the "
                    f"training, and here they are {space}: wrap the environment as then, before any "
                    "VecFrameStack"
                )
        keys = [key for key in self.observations if key] or None
        numbers = (self.clip_obs, self.clip_reward, self.gamma, self.epsilon)
        made = VecNormalize(
            venv, training, bool(self.observations), norm_reward, *numbers, norm_obs_keys=keys
        )
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


@builds("stable_baselines3.common.running_mean_std.RunningMeanStd")
def _running_mean_std(rebuilder: Rebuilder, call: Call) -> RunningMeanStd:
    made = _statistics(**rebuilder.attributes(call))
    # It is copied once more.
    rebuilder.budget.memory(made.mean.nbytes + made.var.nbytes)
    return made


@builds("stable_baselines3.common.vec_env.vec_normalize.VecNormalize")
def _vec_normalize(rebuilder: Rebuilder, call: Call) -> Normalization:
    """What it is of use for; the rest, and whatever else the file has for it, is set up anew."""
    state = SimpleNamespace(**rebuilder.attributes(call))
    made = Normalization.of(state)
    made.check(state.observation_space)
    return made


def _statistics(mean: ArrayLike, var: ArrayLike, count: float) -> RunningMeanStd:
    made = RunningMeanStd()
    made.mean, made.var, made.count = np.asarray(mean, np.float64), np.asarray(var, np.float64), float(count)
    return made


def _copied(part: RunningMeanStd) -> RunningMeanStd:
    return _statistics(np.array(part.mean), np.array(part.var), part.count)


def statistics_of(env: VecNormalize | SimpleNamespace) -> dict[str, RunningMeanStd]:
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
