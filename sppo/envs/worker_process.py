"""The training's side of a worker process: starting it, asking it, and ending it."""

from __future__ import annotations

import copy
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator

from sppo.envs.channel import Channel, Message
from sppo.envs.group import EnvFn
from sppo.envs.mailbox import WAKE, Mailbox
from sppo.envs.worker import FAILURE

#: how long a worker may take to close its environments before it is killed
PATIENCE_SECONDS = 5.0

#: how long this process sleeps before it looks into the mailbox again
NAP_MILLISECONDS = 1

_START = "import sys; sys.path[:] = sys.argv[4:]; from sppo.envs import worker; worker.main(*sys.argv[1:4])"


class WorkerError(RuntimeError):
    """A worker process that cannot go on; the message says which one, and why."""


class WorkerProcess:
    """A process with some of a vectorised environment's environments.

    :param places: which ones
    :param memory: a file that it shares, where its mailbox is number ``mailbox``
    """

    def __init__(self, places: slice, memory: int, mailbox: int) -> None:
        self.places = places
        self._name = f"the process of environments {places.start} to {places.stop - 1}"
        #: numbers of the last question, the last one that was answered, and the last step
        self._number = self._answered = self._step = 0
        self._step_answer: Message | None = None
        self._mailbox = Mailbox(memory, mailbox)
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            # A session of its own: Ctrl-C is for the training, which closes the socket if it ends.
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _START,
                    f"{there.fileno()}",
                    f"{memory}",
                    f"{mailbox}",
                    *_search_path(),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(there.fileno(), memory),
                start_new_session=True,
            )
        self._channel = Channel(here)

    @property
    def settled(self) -> bool:
        """Whether it has answered everything."""
        return self._answered == self._number

    def ask(self, method: str, *args: Any, **kwargs: Any) -> int:
        """Ask for a call of a method of its ``EnvGroup``; returns the number of the question."""
        # Plain pickle would name what this program's script defines, and the worker does not have.
        return self._send(self._next(), cloudpickle.dumps((method, args, kwargs)))

    def ask_step(self, *actions: np.ndarray) -> int:
        """Ask for a step; without actions, once it is :attr:`settled`, by the shared ones."""
        if actions:
            self._step = self.ask("step", *actions)
        else:
            self._step = self._next()
            if self._mailbox.ask(self._step):
                self._send(WAKE, b"")
        return self._step

    def _next(self) -> int:
        if self._channel.socket.fileno() < 0:
            raise self._gone()
        self._number += 1
        return self._number

    def _send(self, number: int, data: bytes) -> int:
        try:
            self._channel.send(number, data, read_meanwhile=True)
        except (EOFError, OSError) as error:
            raise self._gone() from error
        return number

    def answer(self, number: int) -> Any:
        """The answer to a question; those to earlier ones are passed over, but for the last step's."""
        message, self._step_answer = self._step_answer, None
        while message is None or message[0] != number:
            if message is not None and message[0] == self._step:
                self._step_answer = message
            message = self._mailbox.read() if self._mailbox.answered() == number else self._received(number)
        self._answered = number
        kind, content = pickle.loads(message[1])
        if kind == FAILURE:
            failure, text = content
            failure.add_note(f"In {self._name}:\n{text}")
            raise failure
        return content

    def _received(self, number: int) -> Message | None:
        try:
            return self._channel.receive(
                lambda: self._mailbox.answered() == number, lambda readable: readable.poll(NAP_MILLISECONDS)
            )
        except (EOFError, OSError) as error:
            raise self._gone() from error

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Ask and wait."""
        return self.answer(self.ask(method, *args, **kwargs))

    def _gone(self) -> WorkerError:
        if self._channel.socket.fileno() < 0:
            return WorkerError("these environments were closed: make new ones")
        try:
            code: int | str = self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            code = "none yet"
        return WorkerError(f"{self._name} has died (exit code {code}): make the vectorised environment anew")


def end(workers: Iterable[WorkerProcess]) -> None:
    """Tell workers to close their environments, and see to it that they end."""
    for worker in workers:
        worker._channel.socket.close()
    for worker in workers:
        try:
            worker._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            worker._process.kill()
            worker._process.wait()


def packed(env_fns: Sequence[EnvFn], by_value: Sequence[ModuleType]) -> bytes:
    """Functions that make environments, and the environments registered here, for a worker.

    :param by_value: modules whose contents are sent along instead of being imported there
    """
    for module in by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps((_registered(), list(env_fns)))
    except Exception as error:  # pickling runs arbitrary code
        raise ValueError(
            f'the environments cannot be sent to another process ({error}): write backend="gymnasium"'
        ) from error
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _registered() -> dict[str, EnvSpec]:
    """What Gymnasium does not register by itself, where it can be sent."""
    specs = {}
    for name, spec in gym.registry.items():
        if isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium."):
            continue
        spec = copy.copy(spec)
        try:
            if isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):
                spec.entry_point = load_env_creator(spec.entry_point)  # type: ignore[assignment]
            cloudpickle.dumps(spec)
        except Exception:  # one that is not used need not be sendable
            continue
        specs[name] = spec
    return specs


def _search_path() -> list[str]:
    # An empty entry means the directory that the program was started in.
    return [path or os.getcwd() for path in sys.path]
