"""Environments stepped in several processes at once, this one included.

Like ``SubprocVecEnv`` to look at, but made for environments whose step takes tens of microseconds: a process
steps several of them, a waiting process looks for an answer before it goes to sleep, and the calling process
steps its own share instead of waiting for the others.
"""

from __future__ import annotations

import itertools
import sys
import warnings
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from sppo.envs.cores import available_processes
from sppo.envs.group import EnvFn, EnvGroup, concatenate, packed_array, step_each, unpacked
from sppo.envs.state import UncapturableError
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
        parts = [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
        contents = [packed(env_fns[part], by_value) for part in parts[1:]]
        self._own = parts[0]
        self._workers = [WorkerProcess(part) for part in parts[1:]]
        self._end = weakref.finalize(self, end, self._workers)
        #: the actions of the step under way, and the numbers of the questions to the workers
        self._step: tuple[np.ndarray, list[int]] | None = None
        try:
            numbers = self._ask("make", [(sys.path, content) for content in contents])
            self._group = EnvGroup(env_fns[self._own])
            self._answers(numbers)
            first = self._group.envs[0]
            super().__init__(n_envs, first.observation_space, first.action_space)
        except BaseException:
            self._end()
            raise
        self.metadata = first.metadata

    def step_async(self, actions: np.ndarray) -> None:
        self._step = None
        numbers = self._ask("step", [(packed_array(actions[worker.envs]),) for worker in self._workers])
        self._step = actions[self._own], numbers

    def step_wait(self) -> Any:
        if self._step is None:
            raise RuntimeError("no step is under way, or it was interrupted: call step_async(actions) first")
        (actions, numbers), self._step = self._step, None
        results = [step_each(self._group.envs, actions), *map(unpacked, self._answers(numbers))]
        observations, rewards, dones, infos, reset_infos = zip(*results, strict=True)
        for part, new_episodes in zip(self._parts(), reset_infos, strict=True):
            for index, info in new_episodes.items():
                self.reset_infos[part.start + index] = info
        return (
            concatenate(observations),
            np.concatenate(rewards),
            np.concatenate(dones),
            list(itertools.chain(*infos)),
        )

    def reset(self) -> Any:
        self._step = None
        for worker in self._workers:
            seed = self._seeds[worker.envs.start]
            if seed is not None:
                worker.call("seed_process", seed)
        asked = [(self._seeds[part], self._options[part]) for part in self._parts()]
        numbers = self._ask("reset", asked[1:])
        results = [self._group.reset(*asked[0]), *self._answers(numbers)]
        observations, infos = zip(*results, strict=True)
        self.reset_infos = list(itertools.chain(*infos))
        self._reset_seeds()
        self._reset_options()
        return concatenate(observations)

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

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        # By name: a worker may have a copy of the class instead of the class.
        return self._call("env_is_wrapped", indices, wrapper_class.__module__, wrapper_class.__qualname__)

    def get_images(self) -> Sequence[np.ndarray | None]:
        if self.render_mode != "rgb_array":
            warnings.warn(f"The render mode is {self.render_mode}, not rgb_array: no images", stacklevel=2)
            return [None] * self.num_envs
        return self.env_method("render")

    def capture(self) -> dict[str, Any]:
        """The states of all environments, and of the workers' process-wide generators where used.

        :raises UncapturableError: if some environment's state cannot be captured
        """
        own, _ = self._group.capture()
        others = [worker.call("capture") for worker in self._workers]
        return {
            "environments": [*own, *itertools.chain(*(states for states, _ in others))],
            "generators": [generators for _, generators in others],
        }

    def restore(self, environments: Sequence[bytes], generators: Sequence[dict[str, Any] | None]) -> None:
        """Put back what :meth:`capture` found, in environments that were made in the same way."""
        if any(generators) and len(generators) != len(self._workers):
            raise UncapturableError(
                f"the environments draw from random generators of their {len(generators) + 1} processes, "
                f"and there are {len(self._workers) + 1} now: resume with as many (OMP_NUM_THREADS)"
            )
        self._group.restore(environments[self._own], None)
        for place, worker in enumerate(self._workers):
            worker.call("restore", environments[worker.envs], generators[place] if any(generators) else None)

    def recipes(self) -> list[Any]:
        """See :func:`sppo.envs.group.recipe_of`."""
        return [
            *self._group.recipes(),
            *itertools.chain(*(worker.call("recipes") for worker in self._workers)),
        ]

    def _parts(self) -> list[slice]:
        return [self._own, *(worker.envs for worker in self._workers)]

    def _ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[int]:
        return [worker.ask(method, *args) for worker, args in zip(self._workers, arguments, strict=True)]

    def _answers(self, numbers: Sequence[int]) -> list[Any]:
        return [worker.answer(number) for worker, number in zip(self._workers, numbers, strict=True)]

    def _call(self, method: str, indices: Any, *args: Any, **kwargs: Any) -> list[Any]:
        results = []
        for index in self._get_indices(indices):
            index = range(self.num_envs)[index]
            if index < self._own.stop:
                results.append(getattr(self._group, method)(index, *args, **kwargs))
            else:
                worker = next(worker for worker in self._workers if index < worker.envs.stop)
                results.append(worker.call(method, index - worker.envs.start, *args, **kwargs))
        return results
