"""A worker process: environments that are stepped on request; and the training's side of it.

A fresh process, not a copy of the training's: a copy would share its threads' locks, its files and what
PyTorch keeps about threads that are not there. It ends when the other end of its socket is closed, whether
by ``close()``, by the garbage collector or because the training was killed.
"""

from __future__ import annotations

import contextlib
import copyreg
import mmap
import os
import pickle
import platform
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from typing import Any

import cloudpickle
import numpy as np

from sppo.envs.group import Board, EnvGroup, made

#: NumPy's scalars, which infos are full of, pickle three times faster as plain numbers
_SCALARS: dict[type, type] = {np.float64: float, np.float32: float, np.bool_: bool, np.int64: int}
#: how long a worker may take to close its environments before it is killed
PATIENCE_SECONDS = 5.0
#: how long a process looks for a message before it sleeps: longer than a policy needs, shorter than an update
SPIN_SECONDS = 2e-3
#: other processors than these may show the number of a message before the message
ORDERED = platform.machine().lower() in ("x86_64", "amd64")
_ASKED, _ANSWERED, _LENGTH, _ASLEEP = range(4)

_START = "import sys; sys.path[:] = sys.argv[4:]; from sppo.envs import worker; worker.main(*sys.argv[1:4])"


def main(connection: str, file: str, memory: str) -> None:
    """Answer questions until nobody can ask any: the first one has the environments, then calls of methods.

    :param connection: file descriptors of the socket and the memory of its :class:`Mailbox`
    :param memory: and of the memory of the :class:`Board`
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for scalar, plain in _SCALARS.items():
        copyreg.pickle(scalar, lambda value, scalar=scalar, plain=plain: (scalar, (plain(value),)))  # type: ignore[misc]
    parent = os.getppid()
    mailbox = Mailbox(socket.socket(fileno=int(connection)), int(file))
    group, result = None, None
    with contextlib.suppress(EOFError, ConnectionResetError):
        while os.getppid() == parent:
            # Woken by a question, or after a while to see whether the parent is still there.
            if not mailbox.wait(answered=False, nap=100):
                continue
            try:
                question = mailbox.read()
                if group is None:
                    env_fns, places, described = pickle.loads(question)
                    group = EnvGroup(made(pickle.loads(env_fns)), places, Board(*described, file=int(memory)))
                elif question:
                    method, args, kwargs = pickle.loads(question)
                    result = group.call(method, *args, **kwargs)
                else:
                    result = group.step()
                mailbox.answer(_pickled((result, None)))
            except BaseException as error:
                mailbox.answer(_pickled_failure(error))
    if group is not None:
        group.close()


def _pickled(answer: object) -> bytes:
    try:
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except Exception:
        # Objects of classes that came from the training's script, which is not a module here.
        return cloudpickle.dumps(answer)


def _pickled_failure(error: BaseException) -> bytes:
    text = traceback.format_exc()
    try:
        data = _pickled((error, text))
        pickle.loads(data)
    except Exception:
        # An exception that cannot be taken apart and put together again.
        return _pickled((RuntimeError(f"{type(error).__name__}: {error}"), text))
    return data


class WorkerError(RuntimeError):
    """A worker process that cannot go on; the message says which one, and why."""


class WorkerProcess:
    """The training's side: a process with some of a vectorised environment's environments.

    :param places: which ones
    :param memory: the file of the :class:`Board`
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

    def ask(self, question: bytes) -> None:
        """Ask for the call of a method (pickled name and arguments), or for a step by the shared actions."""
        self.settle()
        try:
            self._mailbox.ask(question)
        except OSError as error:
            raise self._died() from error

    def settle(self) -> None:
        """Wait until the last question is answered, even if nobody wants to know any more."""
        if self._mailbox.closed:
            raise WorkerError("these environments were closed: make new ones")
        try:
            while not self._mailbox.wait(answered=True, nap=1):
                pass
        except (EOFError, OSError) as error:
            raise self._died() from error

    def answer(self) -> Any:
        """What the call that was asked for last returned, or raised."""
        self.settle()
        result, text = pickle.loads(self._mailbox.read())
        if text is not None:
            result.add_note(f"In {self._name}:\n{text}")
            raise result
        return result

    def call(self, method: str, *args: object, **kwargs: object) -> Any:
        """Ask for the call of a method of :class:`EnvGroup`, and wait."""
        # Plain pickle would name what this program's script defines, and the worker does not have.
        self.ask(cloudpickle.dumps((method, args, kwargs)))
        return self.answer()

    def _died(self) -> WorkerError:
        try:
            code: int | str = self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            code = "none yet"
        return WorkerError(f"{self._name} has died (exit code {code}): make the vectorised environment anew")


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


class Mailbox:
    """Questions and answers between two processes through memory that both see; one end of the two.

    A number says which question was asked last and another which was answered last; each is written by one
    process, after its message. So an interrupt (Ctrl-C) at any moment leaves a question that was asked or was
    not. Looking at the numbers costs a tenth of asking the system, and a step of fast environments waits for
    it twice; the socket wakes a sleeping worker and tells that the other process has ended.

    :param connection: its end of a pair of sockets
    :param file: a file in memory
    """

    def __init__(self, connection: socket.socket, file: int) -> None:
        self._socket, self.file = connection, file
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        os.posix_fallocate(file, 0, mmap.PAGESIZE)
        self._numbers = memoryview(mmap.mmap(file, mmap.PAGESIZE)).cast("q")
        self._data = mmap.mmap(-1, 1)
        self._grow(1 << 16)

    @property
    def closed(self) -> bool:
        """Whether this end was closed."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Let go of the memory, and let the other process know."""
        if not self.closed:
            self._socket.close()
            os.close(self.file)

    def ask(self, data: bytes) -> None:
        """Ask a question, once the one before is answered; ``OSError`` if nobody is there to answer."""
        self._write(data)
        self._numbers[_ASKED] += 1
        if self._numbers[_ASLEEP]:
            self._socket.send(b"!")

    def answer(self, data: bytes) -> None:
        """Answer the last question."""
        self._write(data)
        self._numbers[_ANSWERED] = self._numbers[_ASKED]

    def wait(self, answered: bool, nap: int) -> bool:
        """Wait for a while until the last question is answered, or for the next one.

        :param nap: milliseconds to sleep after looking for a message; one that is asked in the moment of
            falling asleep comes so much later
        :raises EOFError: if the other process has ended
        """
        numbers, deadline = self._numbers, time.perf_counter() + SPIN_SECONDS
        while (numbers[_ASKED] == numbers[_ANSWERED]) is not answered:
            if time.perf_counter() < deadline:
                os.sched_yield()
                continue
            # Each end has a number of its own for this, of which only the worker's is read.
            numbers[_ASLEEP + answered] = True
            late = (numbers[_ASKED] == numbers[_ANSWERED]) is answered
            if not late and self._readable.poll(nap) and not self._socket.recv(64):
                raise EOFError
            numbers[_ASLEEP + answered] = False
            return late
        return True

    def read(self) -> bytes:
        """The message that has arrived."""
        _keep_order()
        length = self._numbers[_LENGTH]
        self._grow(length)
        return self._data[:length]

    def _write(self, data: bytes) -> None:
        self._grow(len(data))
        self._data[: len(data)] = data
        self._numbers[_LENGTH] = len(data)
        _keep_order()

    def _grow(self, size: int) -> None:
        if size > len(self._data):
            # Unlike truncating, this does not shorten a file that the other process has made longer.
            os.posix_fallocate(self.file, mmap.PAGESIZE, size)
            self._data = mmap.mmap(self.file, size, offset=mmap.PAGESIZE)


def _keep_order() -> None:
    """Have what was written so far seen before what is written next."""
    if not ORDERED:
        # The scheduler passes a full memory barrier.
        os.sched_yield()
