"""Numbered messages between two processes, through a socket that keeps their boundaries.

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

#: how long a process looks for a message before it sleeps: longer than a policy needs, shorter than an update
SPIN_SECONDS = 4e-4
#: how often a sleeping reader looks up by itself
NAP_MILLISECONDS = 1000

_HEADER = struct.Struct("=QQQ")
#: well below what a socket takes in one piece
_PACKET = 1 << 16


class Channel:
    """One end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._packet = memoryview(bytearray(_HEADER.size + _PACKET))
        self._message = bytearray()
        self._number = 0

    def send(self, number: int, data: bytes, drop_incoming: bool = False) -> None:
        """Send a message; ``OSError`` if the other end is gone.

        :param drop_incoming: where the other end waits to be read before it reads: read, and forget it
        """
        for start in range(0, max(len(data), 1), _PACKET):
            packet = _HEADER.pack(number, start, len(data)) + data[start : start + _PACKET]
            while True:
                try:
                    self.socket.send(packet, socket.MSG_DONTWAIT)
                    break
                except BlockingIOError:
                    self._poll.modify(self.socket, select.POLLIN * drop_incoming | select.POLLOUT)
                    events = self._poll.poll()[0][1]
                    if events & select.POLLIN and not self.socket.recv_into(self._packet):
                        raise BrokenPipeError from None

    def receive(self) -> tuple[int, bytes] | None:
        """The next whole message and its number, or ``None`` after a nap without one.

        :raises EOFError: if the other end is gone
        """
        deadline = time.perf_counter() + SPIN_SECONDS
        while True:
            try:
                size = self.socket.recv_into(self._packet, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.perf_counter() < deadline:
                    os.sched_yield()
                else:
                    self._poll.modify(self.socket, select.POLLIN)
                    if not self._poll.poll(NAP_MILLISECONDS):
                        return None
                continue
            except ConnectionResetError:
                size = 0
            if size == 0:
                raise EOFError
            number, start, total = _HEADER.unpack_from(self._packet)
            if start == 0:
                self._number, self._message = number, bytearray()
            if number == self._number and start == len(self._message):
                self._message += self._packet[_HEADER.size : size]
                if len(self._message) == total:
                    return number, bytes(self._message)
