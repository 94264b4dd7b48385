"""What the fast engine may stand in for: classes that it knows, by type, with none of their methods replaced.

Whatever is overridden in a subclass, patched on an instance or on a class, or hooked into PyTorch's
modules means the reference loop, which runs what the user wrote.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from types import FunctionType

import torch as th
from gymnasium import spaces
from numba import config
from sb3_contrib.common.maskable import policies as maskable
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy, MultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, MlpExtractor
from torch.nn.modules import module as torch_module

from sppo.surrogates import Surrogate

#: flags of Adam that change what it computes, and the value the kernels implement
_PLAIN_ADAM = {"amsgrad": False, "maximize": False, "differentiable": False, "decoupled_weight_decay": False}
_POLICIES = (
    *(ActorCriticPolicy, MultiInputActorCriticPolicy),
    *(maskable.MaskableActorCriticPolicy, maskable.MaskableMultiInputActorCriticPolicy),
)
_BUFFERS = (RolloutBuffer, DictRolloutBuffer, MaskableRolloutBuffer, MaskableDictRolloutBuffer)
_UPSTREAM = ("stable_baselines3.", "sb3_contrib.")


class Unsupported(Exception):
    """The fast engine does not cover this case; the message says which part of it.

    :param changeable: whether it is something that the user wrote and may not know to cost the speed
    """

    def __init__(self, reason: str, changeable: bool = False) -> None:
        super().__init__(reason)
        self.changeable = changeable


def check_methods(model: object) -> None:
    """The algorithm's own methods that the engine stands in for, see ``replaced_by_engine``."""
    cls = type(model)
    replaced = {
        name
        for base in cls.__mro__
        for name, member in vars(base).items()
        if hasattr(member, "replaced_by_engine")
    }
    for name in replaced:
        if name in vars(model) or not hasattr(inspect.getattr_static(cls, name), "replaced_by_engine"):
            raise Unsupported(f"the method {name} of {cls.__name__}", changeable=True)


def check_surrogate(surrogate: Surrogate) -> None:
    """A surrogate is compiled if its own class says so, and gives the numbers for it."""
    if "compiled" not in vars(type(surrogate)) or surrogate.compiled() is None:
        raise Unsupported(f"the surrogate {type(surrogate).__name__}")


def check_policy(policy: ActorCriticPolicy) -> None:
    """Only the plain multi-layer policies, on the processor, as Stable-Baselines3 makes them."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise Unsupported("a Numba that may not compile (NUMBA_DISABLE_JIT=1)")
    if type(policy) not in _POLICIES:
        raise Unsupported(f"the policy class {type(policy).__name__}")
    if getattr(policy, "use_sde", False):
        raise Unsupported("generalized state-dependent exploration (use_sde=True)")
    for extractor in (policy.pi_features_extractor, policy.vf_features_extractor):
        _check_extractor(extractor, policy.observation_space)
    if type(policy.mlp_extractor) is not MlpExtractor:
        raise Unsupported(f"the network class {type(policy.mlp_extractor).__name__}", changeable=True)
    for parameter in policy.parameters():
        if parameter.device.type != "cpu":
            raise Unsupported(f"the device {parameter.device}")
        if parameter.dtype != th.float32:
            raise Unsupported(f"parameters of type {parameter.dtype}", changeable=True)
        if not parameter.requires_grad:
            raise Unsupported("frozen parameters (requires_grad=False)", changeable=True)
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise Unsupported("hooks on parameters", changeable=True)
    if any(hooks for name, hooks in vars(torch_module).items() if name.endswith("_hooks")):
        raise Unsupported("hooks on all modules", changeable=True)
    for part in (*policy.modules(), policy.action_dist):
        check_pristine(part)


def _check_extractor(extractor: th.nn.Module, space: spaces.Space) -> None:
    """Only what flattens: an array, or each part of a dictionary, one after the other."""
    if type(extractor) is not (CombinedExtractor if isinstance(space, spaces.Dict) else FlattenExtractor):
        raise Unsupported(f"the features extractor {type(extractor).__name__}", changeable=True)
    for key, part in extractor.extractors.items() if isinstance(extractor, CombinedExtractor) else ():
        if type(part) is not th.nn.Flatten:
            raise Unsupported(f"the {type(part).__name__} that reads the observations' part {key!r}")


def check_buffer(buffer: object) -> None:
    """Only upstream's own rollout buffers: another one's samples may not be what they look like."""
    if type(buffer) not in _BUFFERS:
        raise Unsupported(f"the rollout buffer {type(buffer).__name__}")
    check_pristine(buffer)


def check_optimizer(
    optimizer: th.optim.Optimizer, policy: th.nn.Module, halves: Iterable[list[th.nn.Parameter]]
) -> None:
    """Only plain Adam over the policy's parameters; those of a half have taken the same number of steps."""
    if type(optimizer) is not th.optim.Adam:
        raise Unsupported(f"the optimizer {type(optimizer).__name__}", changeable=True)
    if len(optimizer.param_groups) != 1:
        raise Unsupported("an optimizer with several parameter groups", changeable=True)
    group = optimizer.param_groups[0]
    for name, value in _PLAIN_ADAM.items():
        if group.get(name, value) != value:
            raise Unsupported(f"Adam with {name}={group[name]}", changeable=True)
    if isinstance(group["lr"], th.Tensor) or any(isinstance(beta, th.Tensor) for beta in group["betas"]):
        raise Unsupported("Adam with tensors as learning rate or betas", changeable=True)
    own = list(policy.parameters())
    if len(own) != len(group["params"]) or any(a is not b for a, b in zip(own, group["params"], strict=True)):
        raise Unsupported("an optimizer over other parameters than the policy's", changeable=True)
    check_pristine(optimizer)
    for half in halves:
        steps = {float(optimizer.state[one]["step"]) if optimizer.state.get(one) else 0.0 for one in half}
        if len(steps) > 1:
            # A layer that was frozen for a while, or an update that was interrupted in the middle of a step.
            raise Unsupported("parameters that have taken different numbers of optimizer steps")


def check_pristine(instance: object) -> None:
    """Every method is its class's own, replaced neither on the instance nor on upstream's classes."""
    cls = type(instance)
    for name, value in vars(instance).items():
        if callable(getattr(cls, name, None)):
            raise Unsupported(f"the method {name} of this {cls.__name__}", changeable=True)
        if name.endswith("_hooks") and value:
            raise Unsupported(f"hooks on a {cls.__name__}", changeable=True)
    if replaced := _patched(cls):
        raise Unsupported(f"the method {replaced}, which was replaced", changeable=True)


def _patched(cls: type) -> str | None:
    """A method of an upstream class that was defined in another file than the class, if there is one."""
    for base in cls.__mro__:
        if not base.__module__.startswith(_UPSTREAM):
            continue
        files = {sys.modules[base.__module__].__file__, _NO_GRAD}
        for name, member in vars(base).items():
            if isinstance(member, FunctionType) and member.__code__.co_filename not in files:
                return f"{base.__name__}.{name}"
    return None


#: where the wrapper of methods decorated with ``torch.no_grad()`` is defined
_NO_GRAD = th.no_grad()(lambda: None).__code__.co_filename
