"""A worker process: environments that are stepped on request. Runs as ``python -c``.

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
import traceback

import cloudpickle
import numpy as np
from gymnasium import spaces

from sppo.envs.board import Board
from sppo.envs.group import EnvGroup, made
from sppo.envs.mailbox import Mailbox

#: NumPy's scalars, which infos are full of, pickle three times faster as plain numbers
_SCALARS: dict[type, type] = {np.float64: float, np.float32: float, np.bool_: bool, np.int64: int}
#: how long it sleeps before it looks whether its parent is still there
_NAP_MILLISECONDS = 100


def main(connection: str, file: str, memory: str) -> None:
    """Answer requests until nobody can make any.

    :param connection: file descriptors of the socket and the memory of its :class:`Mailbox`
    :param memory: and of the memory of the :class:`Board`
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for scalar, plain in _SCALARS.items():
        copyreg.pickle(scalar, lambda value, scalar=scalar, plain=plain: (scalar, (plain(value),)))  # type: ignore[misc]
    parent = os.getppid()
    mailbox = Mailbox(socket.socket(fileno=int(connection)), int(file))
    group: EnvGroup | None = None
    with contextlib.suppress(EOFError, ConnectionResetError):
        while os.getppid() == parent:
            if not mailbox.wait(False, _NAP_MILLISECONDS):
                continue
            try:
                if group is None:
                    group, answer = _made(int(memory), *pickle.loads(mailbox.read())), None
                elif data := mailbox.read():
                    method, args, kwargs = pickle.loads(data)
                    answer = group.call(method, *args, **kwargs)
                else:
                    answer = group.step()
                mailbox.answer(_pickled((answer, None)))
            except BaseException as error:
                mailbox.answer(_pickled_failure(error))
    if group is not None:
        group.close()


def _made(
    memory: int, pickled: bytes, places: slice, n_envs: int, observed: spaces.Space, acted: spaces.Space
) -> EnvGroup:
    return EnvGroup(made(pickle.loads(pickled)), places, Board(n_envs, observed, acted, memory))


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
