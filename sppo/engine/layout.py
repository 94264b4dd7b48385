"""How the fast engine sees a policy: a table of layers, and one flat vector for all parameters.

The policy's parameters and the optimizer's state stay the objects Stable-Baselines3 made; only the
memory behind them moves: each becomes a view of one flat vector that the compiled kernels read and
write. So nothing is copied per update, and whoever reads or changes a parameter through PyTorch
(callbacks, ``save``, ``set_parameters``) sees and changes what the kernels use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable import distributions as maskable
from stable_baselines3.common import distributions as upstream
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from torch import nn

from sppo.engine import networks
from sppo.engine.coverage import Unsupported, check_policy
from sppo.engine.distributions import BERNOULLI, CATEGORICAL, GAUSSIAN
from sppo.engine.kernels import Weights
from sppo.engine.networks import Layout

_KINDS: dict[type[upstream.Distribution], int] = {
    upstream.DiagGaussianDistribution: GAUSSIAN,
    upstream.BernoulliDistribution: BERNOULLI,
    upstream.CategoricalDistribution: CATEGORICAL,
    upstream.MultiCategoricalDistribution: CATEGORICAL,
    maskable.MaskableCategoricalDistribution: CATEGORICAL,
    maskable.MaskableMultiCategoricalDistribution: CATEGORICAL,
    maskable.MaskableBernoulliDistribution: CATEGORICAL,
}
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.Tanh: networks.TANH, nn.ReLU: networks.RELU}


def describe(policy: ActorCriticPolicy) -> Layout:
    """Read ``policy``; raise :class:`Unsupported` if it is more than the engine covers."""
    check_policy(policy)
    table = _Table(policy, policy.features_dim)
    policy_head = table.add_stack([*policy.mlp_extractor.policy_net, policy.action_net])
    value_head = table.add_stack([*policy.mlp_extractor.value_net, policy.value_net])
    kind, sizes = _distribution(policy)
    heads = [policy_head, value_head, 0, 0]
    if kind == GAUSSIAN:
        log_std = table.claim(policy.log_std)
        heads[2:] = log_std, log_std + policy.log_std.numel()
    return Layout(table.finish(), np.array(heads, np.int64), kind, sizes)


def features_of(
    observations: np.ndarray | dict[str, np.ndarray],
    space: spaces.Space,
    normalize_images: bool,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Observations (one row per sample) as the float32 rows the first layers read."""
    if isinstance(observations, dict):
        assert isinstance(space, spaces.Dict)
        # In the order of the space, in which ``CombinedExtractor`` puts them side by side.
        parts = [features_of(observations[key], part, normalize_images) for key, part in space.spaces.items()]
        return np.concatenate(parts, axis=1, out=out)
    rows = len(observations)
    if isinstance(space, spaces.Box) and not (normalize_images and is_image_space(space)):
        flat = observations.reshape(rows, -1)
    else:
        tensor = th.as_tensor(observations)
        if isinstance(space, spaces.Discrete):
            tensor = tensor.reshape(rows)
        prepared = preprocess_obs(tensor, space, normalize_images)
        assert isinstance(prepared, th.Tensor)
        flat = prepared.reshape(rows, -1).numpy()
    if out is None:
        return np.ascontiguousarray(flat, np.float32)
    out[...] = flat
    return out


class _Table:
    """Collects rows for the table of layers while keeping track of whose parameters are whose."""

    def __init__(self, policy: nn.Module, features: int) -> None:
        self._places: dict[th.Tensor, int] = {}
        place = 0
        for parameter in policy.parameters():
            self._places[parameter] = place
            place += parameter.numel()
        self._rows: list[list[int]] = []
        #: where the next layer's outputs go
        self._column = features

    def claim(self, parameter: th.Tensor) -> int:
        """Where the parameter starts in the flat vector; each may be claimed once."""
        if parameter not in self._places:
            raise Unsupported("layers that share parameters")
        return self._places.pop(parameter)

    def add_stack(self, modules: list[nn.Module]) -> int:
        """Add linear layers and their activations, from the features on; returns the last one's number."""
        source, fresh = 0, False
        for module in modules:
            activation = _ACTIVATIONS.get(type(module))
            if activation is not None and fresh:
                self._rows[-1][networks.ACTIVATION] = activation
                fresh = False
            elif type(module) is nn.Linear and module.bias is not None:
                widths = module.in_features, module.out_features
                places = self.claim(module.weight), self.claim(module.bias)
                self._rows.append([*widths, *places, networks.IDENTITY, self._column, source])
                source, fresh = self._column, True
                self._column += module.out_features
            else:
                raise Unsupported(f"a {type(module).__name__} layer in the networks")
        return len(self._rows) - 1

    def finish(self) -> np.ndarray:
        if self._places:
            raise Unsupported("parameters outside the policy's own networks")
        return np.array(self._rows, np.int64)


def _distribution(policy: ActorCriticPolicy) -> tuple[int, np.ndarray]:
    distribution: Any = policy.action_dist
    kind, sizes = _KINDS.get(type(distribution)), []
    if kind is None:
        raise Unsupported(f"the action distribution {type(distribution).__name__}")
    if kind == CATEGORICAL:
        several = hasattr(distribution, "action_dims")
        sizes = list(distribution.action_dims) if several else [distribution.action_dim]
    return kind, np.array(sizes, np.int64)


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
