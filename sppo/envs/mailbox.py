"""Questions and answers between two processes through memory that both see, one question at a time.

A number says which question was asked last and another which was answered last; each is written by one
process, after its message. So an interrupt (Ctrl-C) at any moment leaves a question that was asked or was
not, and an answer can be read again until the next question. Looking at the numbers costs a tenth of
asking the system, and a step of fast environments waits for it twice; the socket wakes a sleeping worker
and tells that the other process has ended.
"""

from __future__ import annotations

import mmap
import os
import platform
import select
import socket
import time

#: how long a process looks for a message before it sleeps: longer than a policy needs, shorter than an update
SPIN_SECONDS = 2e-3
#: other processors than these may show the number of a message before the message
ORDERED = platform.machine().lower() in ("x86_64", "amd64")

_ASKED, _ANSWERED, _LENGTH, _ASLEEP = range(4)


class Mailbox:
    """One of the two ends: of the training, which asks, or of the worker.

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
