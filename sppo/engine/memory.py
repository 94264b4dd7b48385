"""One flat vector for all parameters, and others for Adam's state, shared with the PyTorch objects.

The policy's parameters and the optimizer's state stay the objects Stable-Baselines3 made; only the
memory behind them moves: each becomes a view of one flat vector that the compiled kernels read and
write. So nothing is copied per update, and whoever reads or changes a parameter through PyTorch
(callbacks, ``save``, ``set_parameters``) sees and changes what the kernels use.
"""

from __future__ import annotations

import torch as th

from sppo.engine.kernels import Weights


class FlatMemory:
    """Flat views of a policy's parameters and, once an update asks for them, Adam's moments."""

    def __init__(self, policy: th.nn.Module) -> None:
        self._parameters = list(policy.parameters())
        size = sum(parameter.numel() for parameter in self._parameters)
        flat, self._first, self._second = th.empty(size), th.zeros(size), th.zeros(size)
        self._steps = th.zeros(len(self._parameters))
        tensors = flat, th.zeros(size), self._first, self._second, self._steps
        #: what the update kernel works on
        self.weights = Weights(*(tensor.numpy() for tensor in tensors))
        with th.no_grad():
            for parameter, view in zip(self._parameters, self._views(flat), strict=True):
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

    def bind_optimizer(self, optimizer: th.optim.Optimizer) -> None:
        """Make the optimizer's moments and counts views of the flat ones.

        The counts too, so that compiled code moves them together with the weights: an interrupt comes
        before or after both.
        """
        views = zip(*(self._views(flat) for flat in (self._first, self._second)), self._steps, strict=True)
        for parameter, (first, second, step) in zip(self._parameters, views, strict=True):
            state = optimizer.state[parameter]
            own = {"exp_avg": first, "exp_avg_sq": second, "step": step}
            for name, view in own.items():
                if not state:
                    view.zero_()
                elif state[name].data_ptr() != view.data_ptr():
                    view.copy_(state[name])
            state.update(own)
