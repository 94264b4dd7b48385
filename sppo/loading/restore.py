"""Hands a checked model file to upstream's ``load``: the hooks that the algorithms call.

Upstream's ``load`` takes a file and ``custom_objects``, which it uses in place of the file's entries. So it
is given a file written anew, with the names of the entries and the checked weights, and every value as a
custom object: it builds the model as always and finds nothing to unpickle.
"""

from __future__ import annotations

import io
import json
import pathlib
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from sppo.loading.budget import NetworkBudget, charge_model
from sppo.loading.errors import LoadError, NotRestorable, brief, printable, refused
from sppo.loading.model_file import (
    RUN_STATE,
    TRAINING_KWARGS,
    ModelFile,
    check_plain,
    read_bytes,
    read_model_file,
    require_essentials,
    settable,
)
from sppo.loading.schedules import LeftOut

Path = str | pathlib.Path | io.BufferedIOBase


class Checked:
    """A model's file as upstream may see it.

    :param found: the file's contents
    :param given: the caller's replacements
    :param label: the file's name
    """

    def __init__(self, found: ModelFile, given: dict[str, Any], label: str) -> None:
        self._label = label
        values = dict(found.data)
        # A model that was loaded with parts missing, and saved again, still misses them.
        earlier = values.pop("_left_out", None) or {}
        texts = {printable(key, 80): printable(reason, 300) for key, reason in earlier.items()}
        self.left_out = found.left_out | {key: texts[key] for key in texts if key not in given}
        self.needed = {
            key: reason
            for key, reason in self.left_out.items()
            if key.partition(".")[0] in found.names.keys() - RUN_STATE
        }
        values |= {key: LeftOut(key, self.needed[key]) for key in self.needed if key in found.schedules}
        #: every value, under the name of its entry
        self.custom_objects = {key: given.get(key, value) for key, value in values.items()}
        self.stream = _written_anew(found, list(values))

    def finish(self, model: BaseAlgorithm) -> None:
        """Tell the user once what is missing, and the model, so that training can ask for it."""
        if self.needed:
            model._left_out = self.needed  # type: ignore[attr-defined]
        if self.left_out:
            parts = "; ".join(f"{key}: {reason}" for key, reason in self.left_out.items())
            warnings.warn(
                f"{self._label}: left out, because it cannot be restored without running the file's code: "
                f"{parts}. Prediction works without. Give what training needs with custom_objects, or load a "
                "file that you trust with trust=True; `python -m sppo inspect` shows the file's contents",
                stacklevel=3,
            )


def _written_anew(found: ModelFile, names: list[str]) -> io.BytesIO:
    members = dict(found.weights)
    optimizer = members.get("policy.optimizer")
    if optimizer and any(f"policy_kwargs.{key}" in found.left_out for key in TRAINING_KWARGS):
        # Another optimizer stands in for the file's, and could not read its state.
        members["policy.optimizer"] = {**optimizer, "state": {}}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("data", json.dumps(dict.fromkeys(names)))
        for name, values in members.items():
            with archive.open(f"{name}.pth", "w", force_zip64=True) as member:
                th.save(values, member)
        archive.writestr("_stable_baselines3_version", found.version)
        if found.system_info:
            archive.writestr("system_info.txt", found.system_info)
    stream.seek(0)
    return stream


@contextmanager
def checked(
    cls: type[BaseAlgorithm],
    path: Path,
    env: Any,
    custom_objects: dict[str, Any] | None,
    changes: dict[str, Any],
) -> Iterator[Checked]:
    """Read a file safely; upstream's ``load`` is to be called inside.

    :param cls: the class of the model to be
    :param path: the file
    :param env: the environment that the caller gives, or ``None``
    :param custom_objects: the caller's replacements of the file's entries
    :param changes: the parameters that the caller changes after loading
    :raises LoadError: if the file is damaged or hostile, or does not fit; it names the file
    """
    if custom_objects is not None and not isinstance(custom_objects, dict):
        raise ValueError("custom_objects argument must be a dict or None")
    # Upstream compares the policy's arguments that it is given with those of the file.
    given = {key: value for key, value in changes.items() if key != "policy_kwargs"} | (custom_objects or {})
    raw, label = read_bytes(path, "zip")
    # Senseless values that passed the checks meet upstream's code inside.
    with refused(label):
        found = read_model_file(raw, settable(cls), given)
        require_essentials(found)
        ready = Checked(found, given, label)
        n_envs = found.data.get("n_envs") if env is None else getattr(env, "num_envs", 1)
        charge_model(ready.custom_objects | changes, int(n_envs or 1), found.budget)
        with NetworkBudget(found.weights_bytes, found.budget):
            yield ready


def fitting_weights(path: Path, model: BaseAlgorithm, exact_match: bool) -> dict[str, Any]:
    """The weights and optimizer state of a file, for ``set_parameters`` of ``model``; all of them fit."""
    raw, label = read_bytes(path, "zip")
    with refused(label):
        found = read_model_file(raw, {}, with_data=False)
        _check_weights(found, model, exact_match)
    return found.weights


def _check_weights(found: ModelFile, model: Any, exact_match: bool) -> None:
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
