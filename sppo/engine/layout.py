"""Which policies the fast engine understands, and how it sees them: a table of layers.

:func:`describe` reads a Stable-Baselines3 policy and returns a :class:`~sppo.engine.networks.Layout`, or
raises :class:`~sppo.engine.coverage.Unsupported` with the reason in words a user can act on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from torch import nn

from sppo.engine import distributions, networks
from sppo.engine.coverage import Unsupported, check_policy
from sppo.engine.networks import Layout

_ACTIVATIONS: dict[type[nn.Module], int] = {nn.Tanh: networks.TANH, nn.ReLU: networks.RELU}


def describe(policy: ActorCriticPolicy) -> Layout:
    """Read ``policy``; raise :class:`Unsupported` if it is more than the engine covers."""
    check_policy(policy)
    table = _Table(policy)
    policy_head = table.add_stack([*policy.mlp_extractor.policy_net, policy.action_net])
    value_head = table.add_stack([*policy.mlp_extractor.value_net, policy.value_net])
    kind, sizes = _distribution(policy)
    log_std = table.claim(policy.log_std) if kind == distributions.GAUSSIAN else 0
    return Layout(
        layers=table.finish(),
        heads=np.array([policy_head, value_head, log_std], np.int64),
        kind=kind,
        sizes=sizes,
    )


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

    def __init__(self, policy: nn.Module) -> None:
        self._places: dict[th.Tensor, int] = {}
        place = 0
        for parameter in policy.parameters():
            self._places[parameter] = place
            place += parameter.numel()
        self._rows: list[list[int]] = []
        self._column = 0

    def claim(self, parameter: th.Tensor) -> int:
        """Where the parameter starts in the flat vector; each may be claimed once."""
        if parameter not in self._places:
            raise Unsupported("layers that share parameters")
        return self._places.pop(parameter)

    def add_stack(self, modules: list[nn.Module]) -> int:
        """Add linear layers and their activations, from the features on; returns the last one's number."""
        source, fresh = -1, False
        for module in modules:
            activation = _ACTIVATIONS.get(type(module))
            if activation is not None and fresh:
                self._rows[-1][networks.ACTIVATION] = activation
                fresh = False
            elif type(module) is nn.Linear and module.bias is not None:
                weight, bias = self.claim(module.weight), self.claim(module.bias)
                fan_in, fan_out = module.in_features, module.out_features
                self._rows.append([source, fan_in, fan_out, weight, bias, networks.IDENTITY, self._column])
                self._column += fan_out
                source, fresh = len(self._rows) - 1, True
            else:
                raise Unsupported(f"a {type(module).__name__} layer in the networks")
        return source

    def finish(self) -> np.ndarray:
        if self._places:
            raise Unsupported("parameters outside the policy's own networks")
        return np.array(self._rows, np.int64)


def _distribution(policy: ActorCriticPolicy) -> tuple[int, np.ndarray]:
    from sb3_contrib.common.maskable.distributions import (
        MaskableBernoulliDistribution,
        MaskableCategoricalDistribution,
        MaskableMultiCategoricalDistribution,
    )

    distribution: Any = policy.action_dist
    none = np.zeros(0, np.int64)
    if type(distribution) is DiagGaussianDistribution:
        return distributions.GAUSSIAN, none
    if type(distribution) is BernoulliDistribution:
        return distributions.BERNOULLI, none
    if type(distribution) in (CategoricalDistribution, MaskableCategoricalDistribution):
        return distributions.CATEGORICAL, np.array([distribution.action_dim], np.int64)
    if type(distribution) in (
        MultiCategoricalDistribution,
        MaskableMultiCategoricalDistribution,
        MaskableBernoulliDistribution,
    ):
        return distributions.CATEGORICAL, np.array(list(distribution.action_dims), np.int64)
    raise Unsupported(f"the action distribution {type(distribution).__name__}")
