"""What one file may cost, in memory and in work: charged before anything is allocated or done.

There is one :class:`Budget` for a whole file, with all archives and pickles inside it. What a file shares
between many places is charged as often as it is copied.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from sppo.loading.errors import LoadError

#: A file may take this multiple of its size in memory, plus :data:`FREE_BYTES`;
#: honest ones take 10 to 16 times.
SIZE_FACTOR = 32
FREE_BYTES = 512 * 2**20
#: Instructions of pickles, values in JSON texts, and nodes when every shared part counts each time it is
#: visited. Honest models have some thousands, and 70 per tensor.
MAX_STEPS = 600_000
#: Initialising a layer makes a few temporary tensors of its size.
NETWORK_FACTOR = 16
NETWORK_FREE_BYTES = 64 * 2**20
#: What a layer's Python objects take.
TENSOR_BYTES = 4096
#: What feature extractors take of memory per number of an observation when they try one out.
TRIAL_BYTES = 128
#: What an instruction of a pickle, or a value made of it, takes of memory.
BYTES_PER_STEP = 256
MAX_ROLLOUT_BYTES = 8 * 2**30


class Budget:
    """What is left of a file's allowance."""

    def __init__(self, file_bytes: int) -> None:
        self.bytes = (SIZE_FACTOR - 1) * file_bytes + FREE_BYTES
        self.steps = MAX_STEPS

    def memory(self, size: int) -> None:
        """Account for ``size`` bytes that are about to be allocated."""
        self.bytes -= size
        if self.bytes < 0:
            raise LoadError(
                f"it would take more memory than {SIZE_FACTOR} times its size and {FREE_BYTES >> 20} MiB "
                "(if you trust the file, load it with trust=True)"
            )

    def work(self, steps: int) -> None:
        """Account for ``steps`` that are about to be done."""
        self.steps -= steps
        if self.steps < 0:
            raise LoadError(
                f"reading it would take more than {MAX_STEPS} steps, so it has too many instructions or "
                "values (if you trust it, load it with trust=True)"
            )

    def step(self, size: int = 0) -> None:
        """Account for one step that makes a small object, with ``size`` bytes besides."""
        self.work(1)
        self.memory(BYTES_PER_STEP + size)


class NetworkBudget(TorchDispatchMode):
    """Within it, new tensors may take a multiple of a file's weights in memory, and no more.

    A file says how wide its layers are, and upstream builds the network before it looks at the weights.
    """

    def __init__(self, weights_bytes: int, budget: Budget) -> None:
        super().__init__()
        self._bytes = NETWORK_FACTOR * weights_bytes + NETWORK_FREE_BYTES
        self._budget = budget

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Sequence[object] = (), kwargs: dict | None = None
    ) -> object:
        named = zip((parameter.name for parameter in func._schema.arguments), args, strict=False)
        size = next((value for name, value in named if name == "size"), None)
        if isinstance(size, (list, tuple)):
            # Eight bytes per element is the most that a layer's type takes; views count as if they were new.
            needed = 8 * math.prod(int(length) for length in size) + TENSOR_BYTES
            self._bytes -= needed
            if self._bytes < 0:
                raise LoadError(
                    "it describes a network far larger than the weights it holds "
                    "(if you trust the file, load it with trust=True)"
                )
            self._budget.memory(needed)
        return func(*args, **(kwargs or {}))


def charge_model(data: Mapping[str, Any], n_envs: int, budget: Budget) -> None:
    """Account for trying out observations and for rollouts, before upstream allocates them.

    Arrays of zeros take memory only when training fills them: they have a limit of their own.
    """
    observation, action, kwargs = data["observation_space"], data["action_space"], data["policy_kwargs"]
    named = data["policy_class"]
    policy: type[BasePolicy] = named if isinstance(named, type) else BasePolicy
    samples = int(data.get("n_steps", 2048)) * n_envs
    row = _bytes_per_sample(observation) + _bytes_per_sample(action)
    if issubclass(policy, RecurrentActorCriticPolicy):
        sizes = [kwargs.get("lstm_hidden_size", 256), kwargs.get("n_lstm_layers", 1)]
        row += 16 * math.prod(size if isinstance(size, int) else 1 for size in sizes)
    if samples * row > MAX_ROLLOUT_BYTES:
        raise LoadError(
            f"with n_steps={data.get('n_steps')} and {n_envs} environments its rollouts would take "
            f"{samples * row / 2**30:.0f} GiB; if that is right, load it with trust=True"
        )
    budget.memory(TRIAL_BYTES * (spaces.flatdim(observation) + spaces.flatdim(action)))
    if "action_masks" in inspect.signature(policy.predict).parameters:
        # Masks are not zeros but ones.
        budget.memory(4 * samples * spaces.flatdim(action))


def _bytes_per_sample(space: spaces.Space) -> int:
    if isinstance(space, spaces.Dict):
        return sum(_bytes_per_sample(part) for part in space.spaces.values())
    # Of a choice among n, a mask has n numbers.
    size = space.dtype.itemsize if isinstance(space, spaces.Box) else np.dtype(np.int64).itemsize
    return int(size * spaces.flatdim(space))
