"""Whether the weights in a file fit a model: looked at before any of the model's own is changed."""

from __future__ import annotations

from typing import Any

import torch as th

from sppo.loading.errors import LoadError, NotRestorable, brief, refused
from sppo.loading.model_file import ModelFile, check_plain


def check_weights(found: ModelFile, model: Any, exact_match: bool) -> None:
    """Refuse weights that do not fit a model, before any of them is changed.

    :param exact_match: whether all of the model's weights must be there, and no others
    :raises LoadError: naming the first that does not fit
    """
    expected = set(model._get_torch_save_params()[0])
    if set(found.weights) - expected or (exact_match and set(found.weights) != expected):
        raise LoadError(
            f"Names of parameters do not match agents' parameters: expected {', '.join(sorted(expected))}, "
            f"got {brief(sorted(found.weights), 300)}"
        )
    for name, values in found.weights.items():
        target = model
        for part in name.split("."):
            target = getattr(target, part)
        with refused(name):
            if isinstance(target, th.optim.Optimizer):
                _check_optimizer(target, values)
            else:
                _check_module(target.state_dict(), values, exact_match)


def _check_module(current: dict[str, Any], values: dict[str, Any], exact_match: bool) -> None:
    different = set(current) ^ set(values)
    if exact_match and different:
        raise NotRestorable(
            f"it has other weights than this model: {brief(sorted(map(str, different)), 200)}"
        )
    for key in set(current) & set(values):
        mine, new = current[key], values[key]
        if not isinstance(new, th.Tensor) or new.shape != mine.shape or new.is_complex() != mine.is_complex():
            shape = tuple(new.shape) if isinstance(new, th.Tensor) else type(new).__name__
            raise NotRestorable(f"{key} is {shape} there and {tuple(mine.shape)} in this model")


def _check_optimizer(optimizer: th.optim.Optimizer, values: dict[str, Any]) -> None:
    """The same groups of as many parameters, settings of the same kinds, and no state larger than those."""
    if set(values) != {"state", "param_groups"}:
        raise NotRestorable("it is no state of an optimizer")
    sizes = [parameter.numel() for group in optimizer.param_groups for parameter in group["params"]]
    groups = values["param_groups"]
    if [len(group["params"]) for group in groups] != [len(g["params"]) for g in optimizer.param_groups]:
        raise NotRestorable("it has other parameters than this model's optimizer")
    if [index for group in groups for index in group["params"]] != list(range(len(sizes))):
        raise NotRestorable("its parameters are not numbered")
    for group, mine in zip(groups, optimizer.param_groups, strict=True):
        for key, value in group.items():
            check_plain(value, th.Tensor)
            if isinstance(mine.get(key), (int, float)) and not isinstance(value, (int, float, th.Tensor)):
                raise NotRestorable(f"its {brief(key, 40)} is no number")
    for index, state in values["state"].items():
        if index not in range(len(sizes)):
            raise NotRestorable("it has the state of parameters that are not there")
        for key, value in state.items():
            check_plain(value, th.Tensor)
            if isinstance(value, th.Tensor) and value.numel() > max(sizes[index], 1):
                raise NotRestorable(f"its {brief(key, 40)} is larger than the weights it is for")
