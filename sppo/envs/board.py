"""Arrays with one row for each environment, which all the processes that step them can see."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike

#: what environments observe, stacked
Observations = np.ndarray | dict[str, np.ndarray] | tuple[np.ndarray, ...]


class Board:
    """The actions, observations, rewards and dones of a step of all environments.

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
