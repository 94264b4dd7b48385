"""Arrays with one row for each environment, which all the processes that step them can see."""

from __future__ import annotations

import mmap
import os
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

#: what environments observe, stacked: arrays, or dictionaries or tuples of them
Observations: TypeAlias = "np.ndarray | dict[str, Observations] | tuple[Observations, ...]"


class Board:
    """The actions, observations, rewards and dones of a step of all environments.

    :param file: a file in memory for those that other processes see too
    """

    def __init__(
        self,
        n_envs: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        file: int | None = None,
    ) -> None:
        parts = [("observations", _type(observation_space)), ("actions", _type(action_space))]
        record = np.dtype([*parts, ("rewards", np.float32), ("dones", np.bool_)], align=True)
        if file is None:
            rows = np.zeros(n_envs, record)
        else:
            size = n_envs * record.itemsize
            os.truncate(file, size)
            rows = np.ndarray(n_envs, record, mmap.mmap(file, size))
        self.observations = _arrays(rows["observations"], observation_space)
        self.actions, self.rewards, self.dones = rows["actions"], rows["rewards"], rows["dones"]

    def observe(self, row: int, observation: Any) -> None:
        """Write one environment's observation."""
        _write(self.observations, row, observation)

    def holds(self, actions: Any) -> bool:
        """Whether these actions would come out of :attr:`actions` as they are."""
        wanted = self.actions.dtype, self.actions.shape
        return isinstance(actions, np.ndarray) and (actions.dtype, actions.shape) == wanted


def copied(observations: Observations) -> Observations:
    """The observations of a moment, which later steps do not change."""
    if isinstance(observations, dict):
        return {key: copied(part) for key, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(copied(part) for part in observations)
    return observations.copy()


def _type(space: spaces.Space) -> np.dtype:
    """The type of a row."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return np.dtype([(str(place), _type(part)) for place, part in enumerate(_parts(space))], align=True)
    return np.dtype((space.dtype, space.shape or ()))


def _parts(space: spaces.Dict | spaces.Tuple) -> list[spaces.Space]:
    return list(space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces)


def _arrays(rows: np.ndarray, space: spaces.Space) -> Observations:
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return rows
    arrays = [_arrays(rows[str(place)], part) for place, part in enumerate(_parts(space))]
    return dict(zip(space.spaces, arrays, strict=True)) if isinstance(space, spaces.Dict) else tuple(arrays)


def _write(arrays: Observations, row: int, observation: Any) -> None:
    if isinstance(arrays, dict):
        for key, part in arrays.items():
            _write(part, row, observation[key])
    elif isinstance(arrays, tuple):
        for part, one in zip(arrays, observation, strict=True):
            _write(part, row, one)
    else:
        arrays[row] = observation
