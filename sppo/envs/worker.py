"""A worker process: environments that are stepped on request. Runs as ``python -c`` with a socket.

A fresh process, not a copy of the training's: a copy would share its threads' locks, its files and what
PyTorch keeps about threads that are not there. It ends when the other end of its socket is closed, whether
by ``close()``, by the garbage collector or because the training was killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import traceback
from typing import Any

import cloudpickle
import gymnasium as gym

from sppo.envs.channel import Channel
from sppo.envs.group import EnvGroup

#: answers are pairs of one of these and the result, or the exception and its traceback
RESULT, FAILURE = "result", "failure"


def main(connection: str, shared: str) -> None:
    """Answer requests until nobody can make any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    channel = Channel(socket.socket(fileno=int(connection)), int(shared), 1)
    os.close(int(shared))
    group: EnvGroup | None = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while os.getppid() == parent:
            request = channel.receive()
            if request is None:
                continue
            number, data = request
            try:
                method, args, kwargs = pickle.loads(data)
                if group is None:
                    group = _make(*args)
                    answer = _pickled((RESULT, None))
                else:
                    answer = _pickled((RESULT, getattr(group, method)(*args, **kwargs)))
            except BaseException as error:
                answer = _pickled_failure(error)
            channel.send(number, answer)
    if group is not None:
        group.close()


def _make(path: list[str], pickled: bytes) -> EnvGroup:
    """The environments, in a process that finds the same modules and registered environments."""
    sys.path[:] = path
    specs, env_fns = pickle.loads(pickled)
    gym.registry.update(specs)
    return EnvGroup(env_fns)


def _pickled(answer: Any) -> bytes:
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
