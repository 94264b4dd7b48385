"""A place in shared memory where a process is asked for steps, and leaves its answers.

Looking there costs a tenth of asking the system, and a step of fast environments waits for it four times.
Whatever is not asked here, or is too long, goes through the :class:`sppo.envs.channel.Channel`.
"""

from __future__ import annotations

import mmap
import os
import platform
import select

#: other processors than these may show the number of a message before the message
USABLE = platform.machine().lower() in ("x86_64", "amd64")
#: the number of a message that only wakes its reader
WAKE = 0

#: how long a process sleeps that waits for steps, before it looks whether its parent is still there
NAP_MILLISECONDS = 100

SIZE = 1 << 16
_LINE = 64
_ASKED, _ANSWERED, _LENGTH, _ASLEEP = range(4)


class Mailbox:
    """One of several in a file in memory."""

    def __init__(self, file: int, place: int) -> None:
        os.posix_fallocate(file, place * SIZE, SIZE)
        memory = memoryview(mmap.mmap(file, SIZE, offset=place * SIZE))
        self._line, self._data = memory[:_LINE].cast("q"), memory[_LINE:]
        self._taken = 0

    def ask(self, number: int) -> bool:
        """Ask for a step; returns whether the other process has to be woken."""
        self._line[_ASKED] = number
        return bool(self._line[_ASLEEP])

    def asked(self) -> bool:
        """Whether a step has been asked for and not been taken."""
        return self._line[_ASKED] != self._taken

    def take(self) -> int:
        """The number of that step."""
        self._taken = self._line[_ASKED]
        return self._taken

    def answer(self, number: int, data: bytes) -> bool:
        """Answer, or return ``False`` if that is too long."""
        if len(data) > len(self._data):
            return False
        self._data[: len(data)] = data
        self._line[_LENGTH] = len(data)
        self._line[_ANSWERED] = number
        return True

    def answered(self) -> int:
        """The number of the last step that was answered."""
        return self._line[_ANSWERED]

    def read(self) -> tuple[int, bytes]:
        """That step's number and the answer."""
        return self._line[_ANSWERED], bytes(self._data[: self._line[_LENGTH]])

    def sleep(self, readable: select.poll) -> None:
        """Wait for the socket, through which the other process wakes this one."""
        self._line[_ASLEEP] = 1
        # The end of a nap also covers a step that was asked for just before the flag became visible.
        if not self.asked():
            readable.poll(NAP_MILLISECONDS)
        self._line[_ASLEEP] = 0
