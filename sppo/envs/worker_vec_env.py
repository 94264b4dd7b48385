"""Environments stepped in several processes at once, this one included.

Like ``SubprocVecEnv`` to look at, but made for environments whose step takes tens of microseconds: a process
steps several of them, a waiting process looks for an answer before it goes to sleep, and the calling process
steps its own share instead of waiting for the others.
"""

from __future__ import annotations

import itertools
import os
import warnings
import weakref
from collections.abc import Sequence
from types import ModuleType

import cloudpickle
import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sppo.envs.cores import available_processes
from sppo.envs.group import Board, EnvFn, EnvGroup, made
from sppo.envs.worker import WorkerProcess, end


class WorkerVecEnv(VecEnv):
    """Environments in this process and in others, behind Stable-Baselines3's ``VecEnv`` interface.

    After an exception or an interrupt it goes on: what the workers still answer to the step that was given
    up is passed over. A worker that died is named by every further call.

    :param env_fns: functions that make the environments
    :param n_processes: how many processes step them, this one included
    :param by_value: modules that workers are sent instead of importing them
    """

    def __init__(
        self, env_fns: Sequence[EnvFn], n_processes: int | None = None, by_value: Sequence[ModuleType] = ()
    ) -> None:
        n_envs = len(env_fns)
        bounds = np.linspace(0, n_envs, min(n_processes or available_processes(), n_envs) + 1).round()
        own, *others = [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
        contents = [_packed(env_fns[part], by_value) for part in others]
        memory = os.memfd_create("sppo-environments")
        self._workers = [WorkerProcess(part, memory) for part in others]
        self._end = weakref.finalize(self, end, self._workers)
        #: this process's actions of the step under way
        self._actions: np.ndarray | None = None
        try:
            # The workers are starting meanwhile.
            envs = made(env_fns[own])
            described = n_envs, envs[0].observation_space, envs[0].action_space
            for worker, content in zip(self._workers, contents, strict=True):
                worker.ask(cloudpickle.dumps((content, worker.places, described)))
            self._group = EnvGroup(envs, own, Board(*described, file=memory))
            for worker in self._workers:
                worker.answer()
            super().__init__(*described)
        except BaseException:
            self._end()
            raise
        finally:
            os.close(memory)
        self.metadata = envs[0].metadata

    @property
    def processes(self) -> list[EnvGroup | WorkerProcess]:
        """This process's environments and the workers, in the order of the environments."""
        return [self._group, *self._workers]

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = None
        for worker in self._workers:
            worker.settle()
        shared, given = self._group.board.actions, np.asarray(actions)
        unchanged = (given.dtype, given.shape) == (shared.dtype, shared.shape)
        if unchanged:
            shared[...] = given
        for worker in self._workers:
            worker.ask(b"" if unchanged else cloudpickle.dumps(("step", [actions[worker.places]], {})))
        self._actions = actions[self._group.places]

    def step_wait(self) -> VecEnvStepReturn:
        if self._actions is None:
            raise RuntimeError("no step is under way, or it was interrupted: call step_async(actions) first")
        actions, self._actions = self._actions, None
        infos = []
        for part, new_episodes in [self._group.step(actions), *(worker.answer() for worker in self._workers)]:
            infos += part
            for row, info in new_episodes.items():
                self.reset_infos[row] = info
        return *self._group.board.outcome(), infos

    def reset(self) -> VecEnvObs:
        self._actions = None
        asked = [(self._seeds[each.places], self._options[each.places]) for each in self.processes]
        for worker, (seeds, options) in zip(self._workers, asked[1:], strict=True):
            worker.ask(cloudpickle.dumps(("reset", (seeds, options, True), {})))
        self.reset_infos = self._group.reset(*asked[0])
        for worker in self._workers:
            self.reset_infos += worker.answer()
        self._reset_seeds()
        self._reset_options()
        return self._group.board.observed()

    def close(self) -> None:
        if self._end.alive:
            self._end()
            self._group.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list:
        return self.env_method("get_wrapper_attr", attr_name, indices=indices)

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        self.env_method("__setattr__", attr_name, value, indices=indices)

    def env_method(
        self, method_name: str, *args: object, indices: VecEnvIndices = None, **kwargs: object
    ) -> list:
        return self._call("env_method", indices, method_name, *args, **kwargs)

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        # By name: a worker may have a copy of the class instead of the class.
        return self._call("env_is_wrapped", indices, wrapper_class.__module__, wrapper_class.__qualname__)

    def get_images(self) -> Sequence[np.ndarray | None]:
        if self.render_mode != "rgb_array":
            warnings.warn(f"The render mode is {self.render_mode}, not rgb_array: no images", stacklevel=2)
            return [None] * self.num_envs
        return self.env_method("render")

    def _call(self, method: str, indices: VecEnvIndices, *args: object, **kwargs: object) -> list:
        # A question takes the place of the answer before: a step that was under way is given up.
        self._actions = None
        results = []
        for index in self._get_indices(indices):
            row = range(self.num_envs)[index]
            owner = next(each for each in self.processes if row < each.places.stop)
            results.append(owner.call(method, row - owner.places.start, *args, **kwargs))
        return results


def _packed(env_fns: Sequence[EnvFn], by_value: Sequence[ModuleType]) -> bytes:
    """Functions that make environments, for a worker; see :class:`WorkerVecEnv`."""
    for module in by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(list(env_fns))
    except Exception as error:  # pickling runs arbitrary code
        raise ValueError(
            f'the environments cannot be sent to another process ({error}): write backend="gymnasium"'
        ) from error
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)
