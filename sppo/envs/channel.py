"""Numbered messages between two processes, through shared memory and a socket that keeps their boundaries.

An interrupt (Ctrl-C) may come at any moment and lose a message or the rest of one, never garble the next:
every packet says which message it belongs to and where it lies in it, so that an incomplete message is
dropped when the next one begins. A reader waits for the number of its question and passes over older ones.

A short message lies in memory that both processes see, one place for each direction: looking for it there
costs less than asking the system. The socket carries long ones and those that follow one that is still to be
read, wakes a reader that sleeps, and tells it that the other end is gone.
"""

from __future__ import annotations

import mmap
import os
import platform
import select
import socket
import struct
import time
from collections import deque

#: how long a process looks for a message before it sleeps: longer than a policy needs, shorter than an update
SPIN_SECONDS = 4e-4
#: how often a sleeping reader looks up by itself
NAP_MILLISECONDS = 50

_HEADER = struct.Struct("=QQQ")
#: well below what a socket takes in one piece
_PACKET = 1 << 16
#: the longest message in memory, after a line with its number and length, the number of the last message that
#: the reader has taken, and whether the reader sleeps
_PLACE, _LINE = 1 << 18, 64
_NUMBER, _LENGTH, _TAKEN, _ASLEEP = range(4)
#: what two channels share
SHARED_BYTES = 2 * (_LINE + _PLACE)
# Other processors may show the number before the message.
_ORDERED = platform.machine().lower() in ("x86_64", "amd64")


class Channel:
    """One end of the connection.

    :param shared: a file of :data:`SHARED_BYTES`
    :param end: 0 for the one, 1 for the other
    """

    def __init__(self, connection: socket.socket, shared: int, end: int) -> None:
        self.socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._packet = memoryview(bytearray(_HEADER.size + _PACKET))
        self._message = bytearray()
        self._number = self._seen = self._sent = 0
        self._early: deque[tuple[int, bytes]] = deque()
        whole = memoryview(mmap.mmap(shared, SHARED_BYTES))
        places = [whole[start : start + _LINE + _PLACE] for start in (0, _LINE + _PLACE)]
        self._out, self._in = (place[_LINE:] for place in (places[end], places[1 - end]))
        self._out_line, self._in_line = (place[:_LINE].cast("q") for place in (places[end], places[1 - end]))

    def send(self, number: int, data: bytes, read_meanwhile: bool = False) -> None:
        """Send a message; ``OSError`` if the other end is gone.

        :param read_meanwhile: where the other end may be waiting to be read before it reads
        """
        line, free = self._out_line, self._out_line[_TAKEN] == self._sent
        self._sent = number
        if _ORDERED and free and len(data) <= _PLACE:
            line[_NUMBER] = 0
            self._out[: len(data)] = data
            line[_LENGTH] = len(data)
            line[_NUMBER] = number
            if line[_ASLEEP]:
                self._send_packet(_HEADER.pack(0, 0, 0), read_meanwhile)
            return
        for start in range(0, max(len(data), 1), _PACKET):
            packet = _HEADER.pack(number, start, len(data)) + data[start : start + _PACKET]
            self._send_packet(packet, read_meanwhile)

    def _send_packet(self, packet: bytes, read_meanwhile: bool) -> None:
        while True:
            try:
                self.socket.send(packet, socket.MSG_DONTWAIT)
                return
            except BlockingIOError:
                self._poll.modify(self.socket, select.POLLIN * read_meanwhile | select.POLLOUT)
                if self._poll.poll()[0][1] & select.POLLIN:
                    message = self._receive_packet()
                    if message is not None:
                        self._early.append(message)

    def receive(self) -> tuple[int, bytes] | None:
        """The next whole message and its number, or ``None`` after a nap without one.

        :raises EOFError: if the other end is gone
        """
        message = self._next()
        if message is not None:
            self._in_line[_TAKEN] = max(message[0], self._in_line[_TAKEN])
        return message

    def _next(self) -> tuple[int, bytes] | None:
        line, deadline = self._in_line, time.perf_counter() + SPIN_SECONDS
        while True:
            number = line[_NUMBER]
            if number not in (0, self._seen):
                data = bytes(self._in[: line[_LENGTH]])
                # Unless it was replaced while it was read: nobody waits for an answer to the old one.
                if line[_NUMBER] == number:
                    self._seen = number
                    return number, data
            elif self._early:
                return self._early.popleft()
            elif time.perf_counter() < deadline:
                os.sched_yield()
            else:
                line[_ASLEEP] = 1
                self._poll.modify(self.socket, select.POLLIN)
                ready = line[_NUMBER] in (0, self._seen) and self._poll.poll(NAP_MILLISECONDS)
                line[_ASLEEP] = 0
                message = self._receive_packet() if ready else None
                if message is not None or not ready:
                    return message

    def _receive_packet(self) -> tuple[int, bytes] | None:
        try:
            size = self.socket.recv_into(self._packet, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            size = 0
        if size == 0:
            raise EOFError
        number, start, total = _HEADER.unpack_from(self._packet)
        if start == 0:
            self._number, self._message = number, bytearray()
        if number and number == self._number and start == len(self._message):
            self._message += self._packet[_HEADER.size : size]
            if len(self._message) == total:
                return number, bytes(self._message)
        return None
