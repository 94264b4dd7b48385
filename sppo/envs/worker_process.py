"""The training's side of a worker process: starting it, asking it, and ending it."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import cloudpickle

from sppo.envs.group import EnvFn
from sppo.envs.mailbox import Mailbox

#: how long a worker may take to close its environments before it is killed
PATIENCE_SECONDS = 5.0
#: how long this process sleeps before it looks for an answer again
_NAP_MILLISECONDS = 1

_START = "import sys; sys.path[:] = sys.argv[4:]; from sppo.envs import worker; worker.main(*sys.argv[1:4])"


class WorkerError(RuntimeError):
    """A worker process that cannot go on; the message says which one, and why."""


class WorkerProcess:
    """A process with some of a vectorised environment's environments.

    :param places: which ones
    :param memory: the file of the :class:`sppo.envs.board.Board`
    """

    def __init__(self, places: slice, memory: int) -> None:
        self.places = places
        self._name = f"the process of environments {places.start} to {places.stop - 1}"
        here, there = socket.socketpair()
        self._mailbox = Mailbox(here, os.memfd_create("sppo-mailbox"))
        files = there.fileno(), self._mailbox.file, memory
        # An empty entry of the search path means the directory that the program was started in.
        path = [entry or os.getcwd() for entry in sys.path]
        with there:
            # A session of its own: Ctrl-C is for the training, which closes the socket if it ends.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *map(str, files), *path],
                stdin=subprocess.DEVNULL,
                pass_fds=files,
                start_new_session=True,
            )

    def ask(self, data: bytes) -> None:
        """Ask for a step by the shared actions, if there are no data, or as :func:`request` says.

        The answer to an earlier question that nobody waits for any more is passed over.
        """
        self.settle()
        try:
            self._mailbox.ask(data)
        except OSError as error:
            raise self._died() from error

    def received(self) -> bytes:
        """The answer to the last question, as it came; it can be had again until the next question."""
        self.settle()
        return self._mailbox.read()

    def settle(self) -> None:
        """Wait until the last question is answered."""
        if self._mailbox.closed:
            raise WorkerError("these environments were closed: make new ones")
        try:
            while not self._mailbox.wait(True, _NAP_MILLISECONDS):
                pass
        except (EOFError, OSError) as error:
            raise self._died() from error

    def opened(self, answer: bytes) -> Any:
        """What a call returned, or raised."""
        result, text = pickle.loads(answer)
        if text is not None:
            result.add_note(f"In {self._name}:\n{text}")
            raise result
        return result

    def call(self, method: str, *args: object, **kwargs: object) -> Any:
        """Ask for a call of a method of its ``EnvGroup``, and wait."""
        self.ask(request(method, *args, **kwargs))
        return self.opened(self.received())

    def _died(self) -> WorkerError:
        try:
            code: int | str = self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            code = "none yet"
        return WorkerError(f"{self._name} has died (exit code {code}): make the vectorised environment anew")


def request(method: str, *args: object, **kwargs: object) -> bytes:
    """A question: the call of a method of ``EnvGroup``."""
    # Plain pickle would name what this program's script defines, and the worker does not have.
    return cloudpickle.dumps((method, args, kwargs))


def end(workers: Iterable[WorkerProcess]) -> None:
    """Tell workers to close their environments, and see to it that they end."""
    for worker in workers:
        worker._mailbox.close()
    for worker in workers:
        try:
            worker._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            worker._process.kill()
            worker._process.wait()


def packed(env_fns: Sequence[EnvFn], by_value: Sequence[ModuleType]) -> bytes:
    """Functions that make environments, for a worker.

    :param by_value: modules whose contents are sent along instead of being imported there
    """
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
