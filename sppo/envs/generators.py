"""The process-wide random generators: Python's, NumPy's, torch's; and those of spaces."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

#: the states of process-wide generators, by their names
Generators = dict[str, Any]


def capture_generators() -> Generators:
    """The state of every process-wide generator that a training, or an environment, draws from."""
    state: Generators = {
        "python": random.getstate(),
        # Stable-Baselines3 shuffles minibatches with the legacy global generator.
        "numpy": np.random.get_state(),  # noqa: NPY002
    }
    # A process that has not imported it has not drawn from it.
    th = sys.modules.get("torch")
    if th is not None:
        state["torch"] = th.get_rng_state()
        if th.cuda.is_available() and th.cuda.is_initialized():
            state["cuda"] = th.cuda.get_rng_state_all()
    return state


def restore_generators(state: Generators) -> None:
    """Put the generators back as :func:`capture_generators` found them."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    if "torch" in state:
        import torch as th

        th.set_rng_state(state["torch"])
        if "cuda" in state and th.cuda.is_available():
            th.cuda.set_rng_state_all(state["cuda"])


def space_generators(space: spaces.Space) -> list[np.random.Generator | None]:
    """The generators of a space and of the spaces inside it, ``None`` where not made yet."""
    return [part._np_random for part in _parts(space)]


def restore_space_generators(space: spaces.Space, generators: list[np.random.Generator | None]) -> None:
    """Give a space (in place: others refer to it) the generators of :func:`space_generators`."""
    for part, generator in zip(_parts(space), generators, strict=True):
        part._np_random = generator  # type: ignore[assignment]


def _parts(space: spaces.Space) -> list[spaces.Space]:
    parts = [space]
    for value in vars(space).values():
        inner = value.values() if isinstance(value, dict) else value
        for candidate in inner if isinstance(inner, Iterable) else [inner]:
            if isinstance(candidate, spaces.Space):
                parts += _parts(candidate)
    return parts
