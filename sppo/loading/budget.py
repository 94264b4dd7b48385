"""Keeps a file from making the loader build a network far larger than the weights it brings.

A model file says how wide its layers are, and upstream builds the network before it looks at the weights.
A few bytes could so ask for any amount of memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode

from sppo.loading.errors import LoadError

#: Initialising a layer makes a few temporary tensors of its size.
WEIGHTS_FACTOR = 16
FREE_BYTES = 128 * 2**20
FREE_TENSORS = 5_000
MAX_ROLLOUT_BYTES = 8 * 2**30


class AllocationBudget(TorchDispatchMode):
    """Within it, new tensors may take a multiple of a file's weights in memory, and no more.

    :param weights_bytes: the size of the weights
    :param label: what to call the file in the error
    """

    def __init__(self, weights_bytes: int, label: str) -> None:
        super().__init__()
        self._bytes = WEIGHTS_FACTOR * weights_bytes + FREE_BYTES
        self._tensors = FREE_TENSORS + weights_bytes // 64
        self._label = label

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = zip((parameter.name for parameter in func._schema.arguments), args, strict=False)
        size = next((value for name, value in named if name == "size"), None)
        if isinstance(size, (list, tuple)):
            self._spend(size)
        return func(*args, **(kwargs or {}))

    def _spend(self, size: Any) -> None:
        # Eight bytes per element is the most that a layer's type takes; views count as if they were new.
        self._bytes -= 8 * math.prod(int(length) for length in size)
        self._tensors -= 1
        if self._bytes < 0 or self._tensors < 0:
            raise LoadError(
                f"{self._label}: it describes a network far larger than the weights it holds "
                "(if you trust the file, load it with trust=True)"
            )


def check_rollout_size(data: dict[str, Any], n_envs: int, label: str) -> None:
    """Refuse a rollout buffer of absurd size, before it is allocated."""
    hidden = 0
    for name, default in (("lstm_hidden_size", 256), ("n_lstm_layers", 1)):
        value = (data.get("policy_kwargs") or {}).get(name, default)
        hidden = max(hidden, 1) * (value if isinstance(value, int) else default)
    row = _bytes_per_sample(data["observation_space"]) + _bytes_per_sample(data["action_space"]) + 16 * hidden
    total = int(data.get("n_steps", 2048)) * n_envs * row
    if total > MAX_ROLLOUT_BYTES:
        raise LoadError(
            f"{label}: with n_steps={data.get('n_steps')} and {n_envs} environments its rollouts would take "
            f"{total / 2**30:.0f} GiB; if that is right, load it with trust=True"
        )


def _bytes_per_sample(space: spaces.Space) -> int:
    if isinstance(space, spaces.Dict):
        return sum(_bytes_per_sample(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return sum(_bytes_per_sample(part) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        # Action masks and one-hot observations have an element per choice.
        return 8 + 4 * min(int(space.n), 2**40)
    if isinstance(space, spaces.MultiDiscrete):
        return 8 * space.nvec.size + 4 * int(min(space.nvec.sum(dtype=float), 2.0**40))
    return math.prod(space.shape or (1,)) * np.dtype(space.dtype or np.float32).itemsize
