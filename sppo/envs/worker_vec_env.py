"""Environments stepped in several processes at once, this one included.

Like ``SubprocVecEnv`` to look at, but made for environments whose step takes tens of microseconds: a process
steps several of them, a waiting process looks for an answer before it goes to sleep, and the calling process
steps its own share instead of waiting for the others.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from sppo.envs import mailbox
from sppo.envs.cores import available_processes
from sppo.envs.group import EnvFn, EnvGroup, made
from sppo.envs.worker_process import WorkerProcess, end, packed


class WorkerVecEnv(VecEnv):
    """Environments in this process and in others, behind Stable-Baselines3's ``VecEnv`` interface.

    After an exception or an interrupt it goes on: what the workers still answer to the step that was given
    up is passed over. A worker that died is named by every further call.

    :param env_fns: functions that make the environments
    :param n_processes: how many processes step them, this one included
    :param by_value: modules that workers are sent instead of importing them
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        n_processes: int | None = None,
        by_value: Sequence[ModuleType] = (),
    ) -> None:
        n_envs = len(env_fns)
        bounds = np.linspace(0, n_envs, min(n_processes or available_processes(), n_envs) + 1).round()
        own, *others = [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
        contents = [packed(env_fns[part], by_value) for part in others]
        memory = os.memfd_create("sppo-environments")
        self._workers = [WorkerProcess(part, memory, number) for number, part in enumerate(others)]
        self._end = weakref.finalize(self, end, self._workers)
        #: the actions of the step under way, and the numbers of the questions to the workers
        self._step: tuple[np.ndarray, list[int]] | None = None
        try:
            numbers = [
                worker.ask("make", sys.path, content)
                for worker, content in zip(self._workers, contents, strict=True)
            ]
            self._group = EnvGroup(made(env_fns[own]))
            self._answers(numbers)
            first = self._group.envs[0]
            board = n_envs, first.observation_space, first.action_space, memory, len(others) * mailbox.SIZE
            for places, process in zip([own, *others], self.processes, strict=True):
                process.call("join", places, *board)
            super().__init__(n_envs, first.observation_space, first.action_space)
        except BaseException:
            self._end()
            raise
        finally:
            os.close(memory)
        self.metadata = first.metadata

    @property
    def processes(self) -> list[EnvGroup | WorkerProcess]:
        """This process's environments and the workers, in the order of the environments."""
        return [self._group, *self._workers]

    def step_async(self, actions: np.ndarray) -> None:
        self._step = None
        board = self._group.board
        shared = mailbox.USABLE and board.holds(actions) and all(worker.settled for worker in self._workers)
        if shared:
            board.actions[...] = actions
        numbers = [worker.ask_step(*([] if shared else [actions[worker.places]])) for worker in self._workers]
        self._step = actions[self._group.places], numbers

    def step_wait(self) -> Any:
        if self._step is None:
            raise RuntimeError("no step is under way, or it was interrupted: call step_async(actions) first")
        (actions, numbers), self._step = self._step, None
        results = [self._group.step(actions), *self._answers(numbers)]
        infos = []
        for part, new_episodes in results:
            infos += part
            for row, info in new_episodes.items():
                self.reset_infos[row] = info
        return *self._group.board.outcome(), infos

    def reset(self) -> Any:
        self._step = None
        for worker in self._workers:
            seed = self._seeds[worker.places.start]
            if seed is not None:
                worker.call("seed_process", seed)
        asked = [(self._seeds[each.places], self._options[each.places]) for each in self.processes]
        numbers = [worker.ask("reset", *args) for worker, args in zip(self._workers, asked[1:], strict=True)]
        results = [self._group.reset(*asked[0]), *self._answers(numbers)]
        self.reset_infos = list(itertools.chain(*results))
        self._reset_seeds()
        self._reset_options()
        return self._group.board.observed()

    def close(self) -> None:
        if self._end.alive:
            self._end()
            self._group.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return self._call("get_attr", indices, attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        self._call("set_attr", indices, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return self._call("env_method", indices, method_name, *args, **kwargs)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        # By name: a worker may have a copy of the class instead of the class.
        return self._call("env_is_wrapped", indices, wrapper_class.__module__, wrapper_class.__qualname__)

    def get_images(self) -> Sequence[np.ndarray | None]:
        if self.render_mode != "rgb_array":
            warnings.warn(f"The render mode is {self.render_mode}, not rgb_array: no images", stacklevel=2)
            return [None] * self.num_envs
        return self.env_method("render")

    def _answers(self, numbers: Sequence[int]) -> list[Any]:
        return [worker.answer(number) for worker, number in zip(self._workers, numbers, strict=True)]

    def _call(self, method: str, indices: Any, *args: Any, **kwargs: Any) -> list[Any]:
        # An interrupt may lose the answer to a step that is under way.
        step, self._step = self._step, None
        results = []
        try:
            for index in self._get_indices(indices):
                row = range(self.num_envs)[index]
                owner = next(each for each in self.processes if row < each.places.stop)
                results.append(owner.call(method, row - owner.places.start, *args, **kwargs))
        except Exception:
            self._step = step
            raise
        self._step = step
        return results
