"""How the fast engine sees a policy: a table of layers, and one flat vector for all parameters.

The policy's parameters and the optimizer's state stay the objects Stable-Baselines3 made; only the
memory behind them moves: each becomes a view of one flat vector that the compiled kernels read and
write. So nothing is copied per update, and whoever reads or changes a parameter through PyTorch
(callbacks, ``save``, ``set_parameters``) sees and changes what the kernels use.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable import distributions as maskable
from stable_baselines3.common import distributions as upstream
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sppo.engine.coverage import Unsupported, check_policy
from sppo.engine.distributions import BERNOULLI, CATEGORICAL, GAUSSIAN
from sppo.engine.kernels import Weights
from sppo.engine.networks import ACTIVATION, IDENTITY, RELU, TANH, Layout

_KINDS: dict[type[upstream.Distribution], int] = {
    upstream.DiagGaussianDistribution: GAUSSIAN,
    upstream.BernoulliDistribution: BERNOULLI,
    upstream.CategoricalDistribution: CATEGORICAL,
    upstream.MultiCategoricalDistribution: CATEGORICAL,
    maskable.MaskableCategoricalDistribution: CATEGORICAL,
    maskable.MaskableMultiCategoricalDistribution: CATEGORICAL,
    maskable.MaskableBernoulliDistribution: CATEGORICAL,
}
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.Tanh: TANH, nn.ReLU: RELU}


def describe(policy: ActorCriticPolicy) -> Layout:
    """Read ``policy``; raise :class:`Unsupported` if it is more than the engine covers."""
    check_policy(policy)
    parameters = list(policy.parameters())
    starts = itertools.accumulate((parameter.numel() for parameter in parameters), initial=0)
    places: dict[th.Tensor, int] = dict(zip(parameters, starts, strict=False))

    def claim(parameter: th.Tensor) -> int:
        """Where the parameter starts in the flat vector; each may be claimed once."""
        if parameter not in places:
            raise Unsupported("layers that share parameters")
        return places.pop(parameter)

    rows: list[list[int]] = []
    networks, heads, column = policy.mlp_extractor, [], policy.features_dim
    for stack in ([*networks.policy_net, policy.action_net], [*networks.value_net, policy.value_net]):
        source, fresh = 0, False
        for module in stack:
            if fresh and type(module) in _ACTIVATIONS:
                rows[-1][ACTIVATION], fresh = _ACTIVATIONS[type(module)], False
            elif type(module) is nn.Linear and module.bias is not None:
                widths, weight, bias = (module.in_features, module.out_features), module.weight, module.bias
                rows.append([*widths, claim(weight), claim(bias), IDENTITY, column, source])
                source, fresh, column = column, True, column + module.out_features
            else:
                raise Unsupported(f"a {type(module).__name__} layer in the networks")
        heads.append(len(rows) - 1)
    kind, sizes = _distribution(policy)
    log_std, width = (claim(policy.log_std), policy.log_std.numel()) if kind == GAUSSIAN else (0, 0)
    if places:
        raise Unsupported("parameters outside the policy's own networks")
    heads += [log_std, log_std + width]
    return Layout(np.array(rows, np.int64), np.array(heads, np.int64), kind, sizes)


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
        self._policy, self._parameters = policy, list(policy.parameters())
        flat = parameters_to_vector(self._parameters).detach()
        vector_to_parameters(flat, self._parameters)
        self._moments, self._steps = th.zeros(2, len(flat)), th.zeros(len(self._parameters))
        tensors = flat, th.zeros_like(flat), *self._moments, self._steps
        #: what the update kernel works on
        self.weights = Weights(*(tensor.numpy() for tensor in tensors))
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

    def bind_optimizer(self, optimizer: th.optim.Optimizer) -> None:
        """Make the optimizer's moments and counts views of the flat ones.

        The counts too, so that compiled code moves them together with the weights: an interrupt comes
        before or after both.
        """
        moments = self._moments.split([parameter.numel() for parameter in self._parameters], dim=1)
        for parameter, both, step in zip(self._parameters, moments, self._steps, strict=True):
            state = optimizer.state[parameter]
            first, second = (moment.view_as(parameter) for moment in both)
            own = {"exp_avg": first, "exp_avg_sq": second, "step": step}
            for name, view in own.items():
                if not state:
                    view.zero_()
                elif state[name].data_ptr() != view.data_ptr():
                    view.copy_(state[name])
            state.update(own)
