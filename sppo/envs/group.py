"""Some environments, stepped one after the other in the process that holds them; what all processes see.

Imported by worker processes, which start in a third of a second because nothing here needs PyTorch.
"""

from __future__ import annotations

import copy
import itertools
import mmap
import os
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import DTypeLike

from sppo.envs.generators import Generators, capture_generators, restore_generators
from sppo.envs.state import capture_environment, layers, restore_environment

EnvFn = Callable[[], gym.Env]
Info = dict[str, Any]
#: what environments observe, stacked
Observations = np.ndarray | dict[str, np.ndarray] | tuple[np.ndarray, ...]
#: what an environment cannot change afterwards
_CONSTANT = (int, float, str, bytes, type(None), np.generic)


class Board:
    """The actions, observations, rewards and dones of a step of all environments: arrays with a row for each.

    :param file: a file in memory, for those that other processes see too
    """

    def __init__(
        self, n_envs: int, observed: spaces.Space, acted: spaces.Space, *, file: int | None = None
    ) -> None:
        self._file, self._end, self._tuple = file, 0, isinstance(observed, spaces.Tuple)
        parts: dict[Any, spaces.Space] = {None: observed}
        if isinstance(observed, (spaces.Dict, spaces.Tuple)):
            parts = dict(observed.items() if isinstance(observed, spaces.Dict) else enumerate(observed))
        self._observations = {
            key: self._array((n_envs, *(part.shape or ())), part.dtype) for key, part in parts.items()
        }
        self.actions = self._array((n_envs, *(acted.shape or ())), acted.dtype)
        self.rewards = self._array((n_envs,), np.float32)
        self.dones = self._array((n_envs,), np.bool_)

    def _array(self, shape: tuple[int, ...], dtype: DTypeLike | None) -> np.ndarray:
        if self._file is None:
            return np.zeros(shape, dtype)
        start = self._end
        pages = -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // mmap.PAGESIZE)
        size = max(pages, 1) * mmap.PAGESIZE
        self._end += size
        os.posix_fallocate(self._file, start, size)
        return np.ndarray(shape, dtype, mmap.mmap(self._file, size, offset=start))

    def observe(self, row: int, observation: Any) -> None:
        """Write one environment's observation."""
        for key, array in self._observations.items():
            array[row] = observation if key is None else observation[key]

    def observed(self) -> Observations:
        """The observations of this moment, which later steps do not change."""
        copies = {key: array.copy() for key, array in self._observations.items()}
        if None in copies:
            return copies[None]
        return tuple(copies.values()) if self._tuple else copies

    def outcome(self) -> tuple[Observations, np.ndarray, np.ndarray]:
        """The observations, rewards and dones of this moment."""
        return self.observed(), self.rewards.copy(), self.dones.copy()


class EnvGroup:
    """The environments of one process. What a worker is asked to do are calls of these methods.

    :param places: which ones of a vectorised environment's they are; all if not given
    :param board: where their steps are written
    """

    def __init__(
        self, envs: Sequence[gym.Env], places: slice | None = None, board: Board | None = None
    ) -> None:
        self.envs, self.places = envs, places or slice(0, len(envs))
        if board is not None:
            self.board = board
        self._unused_generators = capture_generators()

    def call(self, method: str, *args: object, **kwargs: object) -> Any:
        """As of a :class:`sppo.envs.worker.WorkerProcess`."""
        return getattr(self, method)(*args, **kwargs)

    def step(self, actions: np.ndarray | None = None) -> tuple[list[Info], dict[int, Info]]:
        """See :func:`step_each`; the actions are the board's if none are given."""
        if actions is None:
            actions = self.board.actions[self.places].copy()
        return step_each(self.envs, actions, self.board, self.places.start)

    def reset(
        self, seeds: Sequence[int | None], options: Sequence[Info], seed_process: bool = False
    ) -> list[Info]:
        """Reset every environment; returns the infos.

        :param seed_process: seed the process-wide generators first, for environments that draw from them
        """
        if seed_process and seeds[0] is not None:
            random.seed(seeds[0])
            np.random.seed(seeds[0] % 2**32)  # noqa: NPY002
            self._unused_generators = capture_generators()
        infos = []
        for row, (env, seed, option) in enumerate(
            zip(self.envs, seeds, options, strict=True), self.places.start
        ):
            observation, info = env.reset(seed=seed, **({"options": option} if option else {}))
            self.board.observe(row, observation)
            infos.append(info)
        return infos

    def env_method(self, index: int, name: str, *args: object, **kwargs: object) -> object:
        return self.envs[index].get_wrapper_attr(name)(*args, **kwargs)

    def env_is_wrapped(self, index: int, module: str, name: str) -> bool:
        classes = itertools.chain(*(type(layer).__mro__ for layer in layers(self.envs[index])[:-1]))
        return any((cls.__module__, cls.__qualname__) == (module, name) for cls in classes)

    def capture(self) -> tuple[list[bytes], Generators | None]:
        """The states of the environments, and of this process's generators if they were drawn from."""
        generators = capture_generators()
        used = pickle.dumps(generators) != pickle.dumps(self._unused_generators)
        return [capture_environment(env) for env in self.envs], generators if used else None

    def restore(self, captured: Sequence[bytes], generators: Generators | None) -> None:
        """Put back what :meth:`capture` found."""
        for env, state in zip(self.envs, captured, strict=True):
            restore_environment(env, state)
        if generators is not None:
            restore_generators(generators)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def made(env_fns: Sequence[EnvFn]) -> list[gym.Env]:
    """The environments that functions make."""
    envs = [fn() for fn in env_fns]
    if len({id(env.unwrapped) for env in envs}) < len(envs):
        raise ValueError(
            "the function that makes environments returned the same one twice: make a new one at every call"
        )
    return envs


def registered(spec: EnvSpec, make: EnvFn) -> gym.Env:
    """What ``make`` makes, in a process that may not know the environment's name yet."""
    gym.registry.setdefault(spec.id, spec)
    return make()


def timed_out(
    dones: np.ndarray, infos: Sequence[Info]
) -> Iterator[tuple[int, np.ndarray | dict[str, np.ndarray]]]:
    """The episodes that a time limit ended: where, and what was observed last."""
    for row in np.flatnonzero(dones).tolist():
        seen = infos[row].get("terminal_observation")
        if seen is not None and infos[row].get("TimeLimit.truncated", False):
            yield row, seen


def step_each(
    envs: Sequence[gym.Env], actions: np.ndarray, board: Board, first: int = 0
) -> tuple[list[Info], dict[int, Info]]:
    """Step every environment, and start those again whose episode has ended.

    :param board: where observations, rewards and dones go, from the row ``first`` on
    :return: the infos as from a vectorised environment, and those of the new episodes by their rows
    """
    infos, reset_infos = [], {}
    for row, (env, action) in enumerate(zip(envs, actions, strict=True), first):
        observation, board.rewards[row], terminated, truncated, info = env.step(action)
        info = {**info, "TimeLimit.truncated": truncated and not terminated}
        board.dones[row] = done = terminated or truncated
        if done:
            info["terminal_observation"] = observation
            observation, reset_infos[row] = env.reset()
        board.observe(row, observation)
        # Deep copies, as upstream hands out, take as long as a step of a small environment.
        constant = all(isinstance(value, _CONSTANT) for value in info.values())
        infos.append(info if constant else copy.deepcopy(info))
    return infos, reset_infos
