"""Numbered messages between two processes, through a socket that keeps the boundaries of packets.

An interrupt (Ctrl-C) may come at any moment and lose a message or the rest of one, never garble the next:
every packet says which message it belongs to and where it lies in it, so that an incomplete message is
dropped when the next one begins. A reader waits for the number of its question and passes over older ones.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable

#: how long a process looks for a message before it sleeps: longer than a policy needs, shorter than an update
SPIN_SECONDS = 2e-3

_HEADER = struct.Struct("=QQQ")
#: well below what a socket takes in one piece
_PACKET = 1 << 16


Message = tuple[int, bytes]


class Channel:
    """One end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        self._packet = memoryview(bytearray(_HEADER.size + _PACKET))
        #: the message whose packets are arriving, and those that have arrived
        self._number, self._message = 0, bytearray()
        self._arrived: deque[Message] = deque()

    def send(self, number: int, data: bytes, read_meanwhile: bool = False) -> None:
        """Send a message; ``OSError`` if the other end is gone.

        :param read_meanwhile: where the other end may be waiting to be read before it reads
        """
        for start in range(0, max(len(data), 1), _PACKET):
            packet = _HEADER.pack(number, start, len(data)) + data[start : start + _PACKET]
            while True:
                try:
                    self.socket.send(packet, socket.MSG_DONTWAIT)
                    break
                except BlockingIOError:
                    waiting = [self.socket] if read_meanwhile else []
                    if select.select(waiting, [self.socket], [])[0]:
                        self._take_packet()

    def receive(self, news: Callable[[], bool], sleep: Callable[[select.poll], object]) -> Message | None:
        """The next whole message and its number; ``None`` if there is news elsewhere, or after a sleep.

        :param sleep: waits for a while until the socket can be read
        :raises EOFError: if the other end is gone
        """
        deadline = time.perf_counter() + SPIN_SECONDS
        while not self._arrived:
            if news():
                return None
            if self._readable.poll(0):
                self._take_packet()
            elif time.perf_counter() < deadline:
                os.sched_yield()
            else:
                sleep(self._readable)
                return None
        return self._arrived.popleft()

    def _take_packet(self) -> None:
        size = self.socket.recv_into(self._packet)
        if size == 0:
            raise EOFError
        number, start, total = _HEADER.unpack_from(self._packet)
        if start == 0:
            self._number, self._message = number, bytearray()
        if number == self._number and start == len(self._message):
            self._message += self._packet[_HEADER.size : size]
            if len(self._message) == total:
                self._arrived.append((number, bytes(self._message)))
