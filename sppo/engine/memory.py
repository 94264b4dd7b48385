"""One flat vector for all parameters, and two for Adam's moments, shared with the PyTorch objects.

The policy's parameters and the optimizer's state stay the objects Stable-Baselines3 made; only the
memory behind them moves: each becomes a view of one flat vector that the compiled kernels read and
write. So nothing is copied per update, and whoever reads or changes a parameter through PyTorch
(callbacks, ``save``, ``set_parameters``) sees and changes what the kernels use.
"""

from __future__ import annotations

import numpy as np
import torch as th

from sppo.engine.layout import Unsupported

#: flags of Adam that change what it computes, and the value the kernels implement
_PLAIN = {
    "amsgrad": False,
    "maximize": False,
    "differentiable": False,
    "decoupled_weight_decay": False,
}


class FlatMemory:
    """Flat views of a policy's parameters and, once an update asks for them, Adam's moments."""

    def __init__(self, policy: th.nn.Module) -> None:
        self._parameters = list(policy.parameters())
        size = sum(parameter.numel() for parameter in self._parameters)
        self._tensor = th.empty(size)
        self._first = th.zeros(size)
        self._second = th.zeros(size)
        self.parameters: np.ndarray = self._tensor.numpy()
        self.gradient = np.zeros(size, np.float32)
        self.first: np.ndarray = self._first.numpy()
        self.second: np.ndarray = self._second.numpy()
        with th.no_grad():
            for parameter, view in zip(self._parameters, self._views(self._tensor), strict=True):
                view.copy_(parameter)
                parameter.data = view
        self._policy = policy
        self._children = [
            (module._modules, name, child)
            for module in policy.modules()
            for name, child in module._modules.items()
        ]
        self._leaves = [
            (module._parameters, name, leaf, leaf.data_ptr())
            for module in policy.modules()
            for name, leaf in module._parameters.items()
            if leaf is not None
        ]

    def is_current(self, policy: th.nn.Module) -> bool:
        """Whether the policy's parameters still are the ones whose memory this is.

        Asked at every step of a rollout, hence by looking up the remembered places instead of walking
        through the policy.
        """
        if policy is not self._policy:
            return False
        for modules, name, child in self._children:
            if modules.get(name) is not child:
                return False
        for parameters, name, leaf, pointer in self._leaves:
            if parameters.get(name) is not leaf or leaf.data_ptr() != pointer:
                return False
        return True

    def _views(self, flat: th.Tensor) -> list[th.Tensor]:
        sizes = [parameter.numel() for parameter in self._parameters]
        pieces = flat.split(sizes)
        return [
            piece.view(parameter.shape) for piece, parameter in zip(pieces, self._parameters, strict=True)
        ]

    @property
    def state(self) -> tuple[np.ndarray, ...]:
        """What the update kernel works on: parameters, gradient, first and second moments."""
        return self.parameters, self.gradient, self.first, self.second

    def bind_optimizer(self, optimizer: th.optim.Adam) -> int:
        """Make the optimizer's moments views of the flat ones; returns the steps taken so far."""
        steps = set()
        firsts, seconds = self._views(self._first), self._views(self._second)
        for parameter, first, second in zip(self._parameters, firsts, seconds, strict=True):
            state = optimizer.state[parameter]
            if not state:
                state["step"] = th.tensor(0.0)
                state["exp_avg"] = th.zeros_like(parameter)
                state["exp_avg_sq"] = th.zeros_like(parameter)
            for name, view in (("exp_avg", first), ("exp_avg_sq", second)):
                if state[name].data_ptr() != view.data_ptr():
                    view.copy_(state[name])
                    state[name] = view
            steps.add(int(state["step"]))
        if len(steps) != 1:
            raise Unsupported("parameters that have taken different numbers of optimizer steps")
        return steps.pop()

    def advance_optimizer(self, optimizer: th.optim.Adam, steps: int) -> None:
        """Add to every parameter's count of steps, as ``optimizer.step()`` would have."""
        for parameter in self._parameters:
            optimizer.state[parameter]["step"] += steps


def check_optimizer(optimizer: th.optim.Optimizer, policy: th.nn.Module) -> None:
    """Raise :class:`Unsupported` unless it is plain Adam over the policy's parameters."""
    if type(optimizer) is not th.optim.Adam:
        raise Unsupported(f"the optimizer {type(optimizer).__name__}")
    if len(optimizer.param_groups) != 1:
        raise Unsupported("an optimizer with several parameter groups")
    group = optimizer.param_groups[0]
    for name, value in _PLAIN.items():
        if group.get(name, value) != value:
            raise Unsupported(f"Adam with {name}={group[name]}")
    if isinstance(group["lr"], th.Tensor) or any(isinstance(beta, th.Tensor) for beta in group["betas"]):
        raise Unsupported("Adam with tensors as learning rate or betas")
    own = list(policy.parameters())
    if len(own) != len(group["params"]) or any(a is not b for a, b in zip(own, group["params"], strict=True)):
        raise Unsupported("an optimizer over other parameters than the policy's")
