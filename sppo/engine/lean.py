"""Leave out of a training's start what only ``torch.compile`` needs.

Making an optimizer imports ``torch._dynamo`` (a second, 70 MB), only to tell it to leave
``add_param_group`` alone. The engine steps no PyTorch optimizer, so that it can do without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch as th

#: where PyTorch remembers the version of a function that its compiler leaves alone
_MEMORY = "__dynamo_disable"


@contextmanager
def optimizers_without_compiler() -> Iterator[None]:
    """Make optimizers inside this block without the import; nothing is changed after it.

    Without effect where PyTorch has the compiler loaded already, or does this differently.
    """
    function = getattr(th.optim.Optimizer.add_param_group, "__wrapped__", None)
    if function is None or "torch._dynamo" in sys.modules or hasattr(function, _MEMORY):
        yield
        return
    setattr(function, _MEMORY, function)
    try:
        yield
    finally:
        delattr(function, _MEMORY)
