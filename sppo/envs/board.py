"""Arrays with one row for each environment, which all the processes that step them can see."""

from __future__ import annotations

import copy
import mmap
import os
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

#: what environments observe, stacked: arrays, or dictionaries or tuples of them
Observations: TypeAlias = "np.ndarray | dict[str, Observations] | tuple[Observations, ...]"


class Board:
    """The actions, observations, rewards and dones of a step of all environments.

    :param file: a file in memory for those that other processes see too
    :param start: from which byte on
    """

    def __init__(
        self,
        n_envs: int,
        observed: spaces.Space,
        acted: spaces.Space,
        file: int | None = None,
        start: int = 0,
    ) -> None:
        self._file, self._end = file, start
        self.observations: Observations = create_empty_array(observed, n_envs, self._array)  # type: ignore[assignment]
        self.actions = self._array((n_envs, *(acted.shape or ())), acted.dtype)
        self.rewards = self._array((n_envs,), np.float32)
        self.dones = self._array((n_envs,), np.bool_)

    def _array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        if self._file is None:
            return np.zeros(shape, dtype)
        start = self._end
        pages = -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // mmap.PAGESIZE)
        size = max(pages, 1) * mmap.PAGESIZE
        self._end += size
        # Unlike truncating, this does not shorten a file that another process has made longer.
        os.posix_fallocate(self._file, start, size)
        return np.ndarray(shape, dtype, mmap.mmap(self._file, size, offset=start))

    def holds(self, actions: object) -> bool:
        """Whether these actions would come out of :attr:`actions` as they are."""
        wanted = self.actions.dtype, self.actions.shape
        return isinstance(actions, np.ndarray) and (actions.dtype, actions.shape) == wanted

    def observe(self, row: int, observation: Any) -> None:
        """Write one environment's observation."""
        _write(self.observations, row, observation)

    def observed(self) -> Any:
        """The observations of this moment, which later steps do not change."""
        if isinstance(self.observations, np.ndarray):
            return self.observations.copy()
        return copy.deepcopy(self.observations)

    def outcome(self) -> tuple[Any, np.ndarray, np.ndarray]:
        """The observations, rewards and dones of this moment."""
        return self.observed(), self.rewards.copy(), self.dones.copy()


def _write(arrays: Observations, row: int, observation: Any) -> None:
    if isinstance(arrays, np.ndarray):
        arrays[row] = observation
        return
    for key in arrays if isinstance(arrays, dict) else range(len(arrays)):
        _write(arrays[key], row, observation[key])  # type: ignore[index]
