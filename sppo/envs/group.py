"""Some environments, stepped one after the other in the process that holds them.

Imported by worker processes, which start in a third of a second because nothing here needs PyTorch.
"""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from sppo.envs.generators import capture_generators, restore_generators
from sppo.envs.state import capture_environment, layers, restore_environment

EnvFn = Callable[[], gym.Env]
Infos = list[dict[str, Any]]
Step = tuple[Any, np.ndarray, np.ndarray, Infos, dict[int, dict[str, Any]]]

#: scalars that infos are full of, by the number that stands for them; 0 is everything else
_SCALARS: tuple[Any, ...] = (None, np.float64, np.float32, np.bool_, np.int64, np.int32)
_NUMBER_OF = {kind: number for number, kind in enumerate(_SCALARS) if number}


class EnvGroup:
    """The environments of one process. What a worker is asked to do are calls of these methods."""

    def __init__(self, env_fns: Sequence[EnvFn]) -> None:
        self.envs = [fn() for fn in env_fns]
        if len({id(env.unwrapped) for env in self.envs}) < len(self.envs):
            raise ValueError(
                "the function that makes environments returned the same one twice: make a new one at every "
                "call, for example make_vec_env(lambda: gym.make(...))"
            )
        self._unused_generators = capture_generators()

    def step(self, actions: Any) -> tuple[Any, ...]:
        """A step for :func:`unpacked`, in a form that pickles five times faster than NumPy's scalars do."""
        observations, rewards, dones, infos, reset_infos = step_each(self.envs, unpacked_array(actions))
        packed = []
        for info in infos:
            kinds = [_NUMBER_OF.get(type(value), 0) for value in info.values()]
            values = [
                value.item() if kind else value for kind, value in zip(kinds, info.values(), strict=True)
            ]
            packed.append((list(info), kinds, values))
        return packed_array(observations), rewards.tolist(), dones.tolist(), packed, reset_infos

    def reset(self, seeds: Sequence[int | None], options: Sequence[dict[str, Any]]) -> tuple[Any, Infos]:
        """Reset every environment; returns the observations and infos."""
        observations, infos = [], []
        for env, seed, option in zip(self.envs, seeds, options, strict=True):
            observation, info = env.reset(seed=seed, **({"options": option} if option else {}))
            observations.append(observation)
            infos.append(info)
        return stack(observations, self.envs[0].observation_space), infos

    def seed_process(self, seed: int) -> None:
        """Seed the process-wide generators, for environments that draw from them."""
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        self._unused_generators = capture_generators()

    def get_attr(self, index: int, name: str) -> Any:
        return self.envs[index].get_wrapper_attr(name)

    def set_attr(self, index: int, name: str, value: Any) -> None:
        setattr(self.envs[index], name, value)

    def env_method(self, index: int, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.envs[index].get_wrapper_attr(name)(*args, **kwargs)

    def env_is_wrapped(self, index: int, module: str, name: str) -> bool:
        classes = itertools.chain(*(type(layer).__mro__ for layer in layers(self.envs[index])[:-1]))
        return any((cls.__module__, cls.__qualname__) == (module, name) for cls in classes)

    def capture(self) -> tuple[list[bytes], dict[str, Any] | None]:
        """The states of the environments, and of this process's generators if they were drawn from."""
        generators = capture_generators()
        used = pickle.dumps(generators) != pickle.dumps(self._unused_generators)
        return [capture_environment(env) for env in self.envs], generators if used else None

    def restore(self, captured: Sequence[bytes], generators: dict[str, Any] | None) -> None:
        """Put back what :meth:`capture` found."""
        for env, state in zip(self.envs, captured, strict=True):
            restore_environment(env, state)
        if generators is not None:
            restore_generators(generators)

    def recipes(self) -> list[tuple[EnvSpec, bool] | None]:
        return [recipe_of(env) for env in self.envs]

    def close(self) -> None:
        for env in self.envs:
            env.close()


def recipe_of(env: gym.Env) -> tuple[EnvSpec, bool] | None:
    """An environment's registered description, and whether it is in a ``Monitor``; ``None`` if unknown."""
    # By name: this process may have a copy of the class instead of the class.
    monitored = (type(env).__module__, type(env).__name__) == ("stable_baselines3.common.monitor", "Monitor")
    spec = env.env.spec if monitored and isinstance(env, gym.Wrapper) else env.spec
    return None if spec is None else (spec, monitored)


def step_each(envs: Sequence[gym.Env], actions: Any) -> Step:
    """Step every environment, and start those again whose episode has ended.

    :return: observations, rewards, dones and infos as from a vectorised environment, and the infos of the
        new episodes by the environments' positions
    """
    observations, infos, reset_infos = [], [], {}
    rewards, dones = np.empty(len(envs), np.float32), np.empty(len(envs), np.bool_)
    for index, (env, action) in enumerate(zip(envs, actions, strict=True)):
        observation, rewards[index], terminated, truncated, info = env.step(action)
        info = {**info, "TimeLimit.truncated": truncated and not terminated}
        dones[index] = done = terminated or truncated
        if done:
            info["terminal_observation"] = observation
            observation, reset_infos[index] = env.reset()
        observations.append(observation)
        infos.append(info)
    return stack(observations, envs[0].observation_space), rewards, dones, infos, reset_infos


def unpacked(step: tuple[Any, ...]) -> Step:
    """What :func:`step_each` returned, from what :meth:`EnvGroup.step` made of it."""
    observations, rewards, dones, packed, reset_infos = step
    infos = [
        {
            key: _SCALARS[kind](value) if kind else value
            for key, kind, value in zip(keys, kinds, values, strict=True)
        }
        for keys, kinds, values in packed
    ]
    rewards, dones = np.array(rewards, np.float32), np.array(dones, np.bool_)
    return unpacked_array(observations), rewards, dones, infos, reset_infos


def packed_array(value: Any) -> Any:
    """An array of numbers as what pickles ten times faster; anything else as it is."""
    plain = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    return (value.tobytes(), value.dtype.str, value.shape) if plain else value


def unpacked_array(packed: Any) -> Any:
    """What :func:`packed_array` was given."""
    if isinstance(packed, tuple) and isinstance(packed[0], bytes):
        return np.frombuffer(packed[0], packed[1]).reshape(packed[2]).copy()
    return packed


def stack(observations: list[Any], space: spaces.Space) -> Any:
    """Observations of single environments as a vectorised environment gives them."""
    if isinstance(space, spaces.Dict):
        return {key: stack([one[key] for one in observations], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stack([one[i] for one in observations], part) for i, part in enumerate(space.spaces))
    stacked = np.empty((len(observations), *(space.shape or ())), space.dtype)
    for row, observation in enumerate(observations):
        stacked[row] = observation
    return stacked


def concatenate(parts: Sequence[Any]) -> Any:
    """The stacked observations of several groups of environments, one after the other."""
    if isinstance(parts[0], dict):
        return {key: concatenate([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(concatenate(column) for column in zip(*parts, strict=True))
    return np.concatenate(parts)
