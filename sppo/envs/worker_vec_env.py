"""Environments stepped in several processes at once, this one included, meeting in shared memory.

Like ``SubprocVecEnv`` to look at, but made for environments whose step takes tens of microseconds:
observations, rewards, actions and the usual numeric infos travel through shared memory, a waiting
process looks for work before it goes to sleep, and the calling process steps its own share of the
environments instead of waiting for the others.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from sppo.engine.forking import start_context
from sppo.envs.infos import InfoCodec
from sppo.envs.workers import (
    MESSAGE,
    STEP,
    Board,
    Crew,
    EnvFn,
    available_processes,
    give_way,
    start_worker,
)


class WorkerVecEnv(VecEnv):
    """Environments in this process and in others, behind Stable-Baselines3's ``VecEnv`` interface.

    :param env_fns: functions that make the environments
    :param n_processes: how many processes step them, this one included
    """

    def __init__(self, env_fns: Sequence[EnvFn], n_processes: int | None = None) -> None:
        n_envs = len(env_fns)
        n_processes = min(n_processes or available_processes(), n_envs)
        bounds = np.linspace(0, n_envs, n_processes + 1).round().astype(int)
        self._slices = [slice(a, b) for a, b in itertools.pairwise(bounds)]
        self._crew = Crew(env_fns[self._slices[0]], 0, None)
        env = self._crew.envs[0]
        space = Board.layout(n_envs, n_processes - 1, env.observation_space, env.action_space)
        context = start_context()
        raw = context.RawArray("b", Board.size(space))
        self._board = self._crew.board = Board(raw, space)
        self._codecs = [InfoCodec() for _ in self._slices[1:]]
        self._workers = [
            start_worker(context, env_fns[part], part.start, worker, raw, space)
            for worker, part in enumerate(self._slices[1:])
        ]
        self._closed = False
        for worker in range(len(self._workers)):
            self._receive(worker)
        super().__init__(n_envs, env.observation_space, env.action_space)
        self.metadata = env.metadata

    def step_async(self, actions: np.ndarray) -> None:
        self._board.actions[...] = actions
        for worker in range(len(self._workers)):
            self._request(worker, STEP)

    def step_wait(self) -> Any:
        infos = [self._finish_info(i, info) for i, info in enumerate(self._crew.step())]
        board = self._board
        for worker, part in enumerate(self._slices[1:]):
            self._await(worker)
            codec = self._codecs[worker]
            pickled = {}
            if board.mail[worker, 0]:
                for index, form, info in self._receive(worker):
                    if form is not None:
                        codec.learn(form)
                    if info is not None:
                        pickled[index] = info
            for index in range(part.start, part.stop):
                info = pickled.get(index)
                if info is None:
                    info = codec.decode(board.info_kinds[index], board.infos[index])
                infos.append(self._finish_info(index, info))
        return board.observations.copy(), board.rewards.copy(), board.dones.copy(), infos

    def _finish_info(self, index: int, info: dict[str, Any]) -> dict[str, Any]:
        if "_reset_info" in info:
            self.reset_infos[index] = info.pop("_reset_info")
        return info

    def reset(self) -> Any:
        parts = [(self._seeds[part], self._options[part]) for part in self._slices]
        for worker, part in enumerate(parts[1:]):
            self._message(worker, "reset", *part)
        infos = list(self._crew.reset(*parts[0]))
        for worker in range(len(self._workers)):
            infos.extend(self._result(worker))
        self.reset_infos = infos
        self._reset_seeds()
        self._reset_options()
        return self._board.observations.copy()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for env in self._crew.envs:
            env.close()
        for worker, (process, pipe, _) in enumerate(self._workers):
            try:
                self._message(worker, "close")
                self._result(worker)
            except (OSError, EOFError, RuntimeError):
                pass
            process.terminate()
            process.join()
            pipe.close()

    def _call(self, what: str, name: Any, indices: Any, *args: Any, **kwargs: Any) -> list[Any]:
        results = []
        for index in self._get_indices(indices):
            index = range(self.num_envs)[index]
            owner = next(i for i, part in enumerate(self._slices) if index < part.stop)
            local = index - self._slices[owner].start
            if owner == 0:
                results.append(self._crew.call(what, name, local, *args, **kwargs))
            else:
                self._message(owner - 1, "call", what, name, local, *args, **kwargs)
                results.append(self._result(owner - 1))
        return results

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return self._call("get", attr_name, indices)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        self._call("set", attr_name, indices, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return self._call("method", method_name, indices, *args, **kwargs)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return self._call("wrapped", wrapper_class, indices)

    def get_images(self) -> Sequence[np.ndarray | None]:
        if self.render_mode != "rgb_array":
            warnings.warn(f"The render mode is {self.render_mode}, not rgb_array: no images", stacklevel=2)
            return [None] * self.num_envs
        return self.env_method("render")

    def _request(self, worker: int, kind: int) -> None:
        board = self._board
        board.kinds[worker, 0] = kind
        board.requests[worker, 0] += 1
        if board.asleep[worker, 0]:
            self._workers[worker][2].release()

    def _message(self, worker: int, what: str, *args: Any, **kwargs: Any) -> None:
        self._request(worker, MESSAGE)
        self._workers[worker][1].send((what, args, kwargs))

    def _await(self, worker: int) -> None:
        """Wait for the worker's answer to the last request."""
        answers, wanted = self._board.answers[worker], self._board.requests[worker, 0]
        process = self._workers[worker][0]
        rounds = 0
        while answers[0] != wanted:
            give_way()
            rounds += 1
            if rounds % 65536 == 0 and not process.is_alive():
                part = self._slices[worker + 1]
                raise RuntimeError(f"the process of environments {part.start} to {part.stop - 1} has died")

    def _receive(self, worker: int) -> Any:
        kind, content = self._workers[worker][1].recv()
        if kind == "error":
            raise RuntimeError(f"an environment failed in its process:\n{content}")
        return content

    def _result(self, worker: int) -> Any:
        content = self._receive(worker)
        self._await(worker)
        return content
