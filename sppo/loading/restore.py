"""Hands a checked model file to upstream's ``load``: the hooks that the algorithms call.

Upstream's ``load`` takes a file and ``custom_objects``, which it uses in place of the file's entries. So it
is given a file written anew, with the names of the entries and the checked weights, and every value as a
custom object: it builds the model as always and finds nothing to unpickle.
"""

from __future__ import annotations

import copy
import functools
import io
import itertools
import json
import pathlib
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from sppo.loading.budget import NetworkBudget, charge_model
from sppo.loading.errors import NotRestorable, printable, refused
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
from sppo.loading.normalization import Normalization
from sppo.loading.schedules import LeftOut

Path = str | pathlib.Path | io.BufferedIOBase


@dataclass
class Checked:
    """A model's file as upstream may see it."""

    label: str
    #: the file written anew
    stream: io.BytesIO
    #: every value, under the name of its entry
    custom_objects: dict[str, object]
    #: name -> why it is missing; and those of them that training needs
    left_out: dict[str, str]
    needed: dict[str, str]
    normalization: Normalization | None

    def finish(self, model: BaseAlgorithm) -> None:
        """Tell the user once what is missing, and the model, so that training can ask for it."""
        model._normalization = self.normalization  # type: ignore[attr-defined]
        if self.needed:
            model._left_out = self.needed  # type: ignore[attr-defined]
        if self.left_out:
            parts = "; ".join(f"{key}: {reason}" for key, reason in self.left_out.items())
            warnings.warn(
                f"{self.label}: left out, because it cannot be restored without running the file's code: "
                f"{parts}. Prediction works without. Give what training needs with custom_objects, or load a "
                "file that you trust with trust=True; `python -m sppo inspect` shows the file's contents",
                stacklevel=3,
            )


def _as_checked(found: ModelFile, given: Mapping[str, object], label: str) -> Checked:
    values = dict(found.data)
    # A model that was loaded with parts missing, and saved again, still misses them.
    earlier = values.pop("_left_out", None)
    left_out = dict(found.left_out)
    for key, reason in itertools.islice(earlier.items() if isinstance(earlier, dict) else (), 100):
        if isinstance(key, str) and isinstance(reason, str) and key not in given:
            left_out[printable(key, 80)] = printable(reason, 300)
    trained = found.names.keys() - RUN_STATE
    needed = {key: reason for key, reason in left_out.items() if key.partition(".")[0] in trained}
    values |= {key: LeftOut(key, needed[key]) for key in needed if key in found.schedules}
    custom_objects = {key: given.get(key, value) for key, value in values.items()}
    stream = _written_anew(found, list(values))
    return Checked(label, stream, custom_objects, left_out, needed, found.normalization)


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
    env: object,
    custom_objects: Mapping[str, object] | None,
    changes: Mapping[str, object],
) -> Iterator[Checked]:
    """Read a file safely; upstream's ``load`` is to be called inside.

    :raises LoadError: if the file is damaged or hostile, or does not fit; it names the file
    """
    if custom_objects is not None and not isinstance(custom_objects, dict):
        raise ValueError("custom_objects argument must be a dict or None")
    own = custom_objects or {}
    # Upstream compares the policy's arguments that it is given with those of the file.
    given = {key: value for key, value in {**changes, **own}.items() if key in own or key != "policy_kwargs"}
    raw, label = read_bytes(path, "zip")
    # Senseless values that passed the checks meet upstream's code inside.
    with refused(label):
        found = read_model_file(raw, settable(cls), given)
        require_essentials(found)
        ready = _as_checked(found, given, label)
        n_envs = found.data.get("n_envs") if env is None else getattr(env, "num_envs", 1)
        charge_model({**ready.custom_objects, **changes}, int(n_envs or 1), found.budget)
        with NetworkBudget(found.weights_bytes, found.budget):
            yield ready


@contextmanager
def fitting_weights(path: Path, model: BaseAlgorithm) -> Iterator[dict[str, Any]]:
    """The weights of a file; upstream's ``set_parameters`` is to be called inside.

    :raises LoadError: if the file is damaged or its weights do not fit; the model is then as before
    """
    raw, label = read_bytes(path, "zip")
    before = copy.deepcopy(model.get_parameters())
    with refused(label):
        found = read_model_file(raw, {}, {}, with_data=False)
        for name, values in found.weights.items():
            if name not in before:
                raise NotRestorable(f"this model has no {name}")
            target = functools.reduce(getattr, name.split("."), model)
            if isinstance(target, th.optim.Optimizer):
                _check_optimizer(target, values)
        try:
            yield found.weights
        except Exception:
            model.set_parameters(before)  # type: ignore[arg-type]
            raise


def _check_optimizer(optimizer: th.optim.Optimizer, values: dict[str, Any]) -> None:
    """What upstream's loader takes unseen: settings of other kinds, and state larger than the weights."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sizes = {index: max(parameter.numel(), 1) for index, parameter in enumerate(parameters)}
    for group, mine in zip(values["param_groups"], optimizer.state_dict()["param_groups"], strict=True):
        check_plain(group, th.Tensor)
        numbers = [group.get(key, number) for key, number in mine.items() if isinstance(number, (int, float))]
        numeric = all(isinstance(number, (int, float, th.Tensor)) for number in numbers)
        if group["params"] != mine["params"] or not numeric:
            raise NotRestorable("it has other parameters than this model's optimizer")
    for index, state in values["state"].items():
        check_plain(state, th.Tensor)
        largest = sizes[index]
        if any(th.is_tensor(part) and part.numel() > largest for part in state.values()):
            raise NotRestorable("its state is larger than the weights it is for")
