"""A worker process: environments that are stepped on request. Runs as ``python -c`` with a socket.

A fresh process, not a copy of the training's: a copy would share its threads' locks, its files and what
PyTorch keeps about threads that are not there. It ends when the other end of its socket is closed, whether
by ``close()``, by the garbage collector or because the training was killed.
"""

from __future__ import annotations

import contextlib
import copyreg
import os
import pickle
import signal
import socket
import sys
import traceback

import cloudpickle
import gymnasium as gym
import numpy as np

from sppo.envs.channel import Channel
from sppo.envs.group import EnvGroup, made
from sppo.envs.mailbox import WAKE, Mailbox

#: NumPy's scalars, which infos are full of, pickle three times faster as plain numbers
_SCALARS: dict[type, type] = {np.float64: float, np.float32: float, np.bool_: bool, np.int64: int}
#: answers are pairs of one of these and the result, or the exception and its traceback
RESULT, FAILURE = "result", "failure"


def main(connection: str, memory: str, place: str) -> None:
    """Answer requests until nobody can make any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for scalar, plain in _SCALARS.items():
        copyreg.pickle(scalar, lambda value, scalar=scalar, plain=plain: (scalar, (plain(value),)))  # type: ignore[misc]
    parent = os.getppid()
    channel = Channel(socket.socket(fileno=int(connection)))
    mailbox = Mailbox(int(memory), int(place))
    groups: list[EnvGroup] = []
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while os.getppid() == parent:
            request = channel.receive(mailbox.asked, mailbox.sleep)
            # First, because a step is not asked for there before everything else has been answered.
            if mailbox.asked():
                number, answer = mailbox.take(), _answer(groups, b"")
                if not mailbox.answer(number, answer):
                    channel.send(number, answer)
            if request is not None and request[0] != WAKE:
                channel.send(request[0], _answer(groups, request[1]))
    for group in groups:
        group.close()


def _answer(groups: list[EnvGroup], data: bytes) -> bytes:
    """The answer to a request, of which the first one is to make the environments."""
    try:
        method, args, kwargs = pickle.loads(data) if data else ("step", (), {})
        if method == "make":
            groups.append(_make(*args))
            return _pickled((RESULT, None))
        return _pickled((RESULT, groups[0].call(method, *args, **kwargs)))
    except BaseException as error:
        return _pickled_failure(error)


def _make(path: list[str], pickled: bytes) -> EnvGroup:
    """The environments, in a process that finds the same modules and registered environments."""
    sys.path[:] = path
    specs, env_fns = pickle.loads(pickled)
    gym.registry.update(specs)
    return EnvGroup(made(env_fns))


def _pickled(answer: object) -> bytes:
    try:
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except Exception:
        # Objects of classes that came from the training's script, which is not a module here.
        return cloudpickle.dumps(answer)


def _pickled_failure(error: BaseException) -> bytes:
    text = traceback.format_exc()
    try:
        data = _pickled((FAILURE, (error, text)))
        pickle.loads(data)
    except Exception:
        # An exception that cannot be taken apart and put together again.
        return _pickled((FAILURE, (RuntimeError(f"{type(error).__name__}: {error}"), text)))
    return data
