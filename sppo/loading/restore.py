"""Makes models and ``VecNormalize`` of checked files, with upstream's own code.

Upstream's ``load`` takes a file and ``custom_objects``, which it uses in place of the file's entries. So it
is given a file written anew, with the names of the entries and the checked weights, and every value as a
custom object: it builds the model as always and finds nothing to unpickle.
"""

from __future__ import annotations

import copy
import functools
import io
import json
import pathlib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import open_path
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sppo.loading.archive import Archive
from sppo.loading.budget import Budget, NetworkBudget, charge_model
from sppo.loading.errors import NotRestorable, refused
from sppo.loading.model_file import (
    NORMALIZATION_MEMBER,
    ModelFile,
    check_plain,
    read_model_file,
    read_normalization,
    require_essentials,
    settable,
)
from sppo.loading.normalization import Normalization
from sppo.loading.pickletree import parse
from sppo.loading.rebuild import Rebuilder

Path = str | pathlib.Path | io.BufferedIOBase


def read_bytes(path: Path, suffix: str) -> tuple[bytes, str]:
    """A file's contents and its name for errors; found as Stable-Baselines3 finds it."""
    file = open_path(path, "r", suffix=suffix)
    try:
        file.seek(0)
        return file.read(), str(getattr(file, "name", None) or f"<{type(path).__name__}>")
    finally:
        if isinstance(path, (str, pathlib.Path)):
            file.close()


@contextmanager
def checked(
    cls: type[BaseAlgorithm],
    path: Path,
    env: object,
    custom_objects: Mapping[str, object] | None,
    changes: Mapping[str, object],
) -> Iterator[tuple[ModelFile, io.BytesIO, str]]:
    """A model's file, the same written anew, and its name; upstream's ``load`` is to be called inside."""
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
        stream = _written_anew(found)
        n_envs = found.data.get("n_envs") if env is None else getattr(env, "num_envs", 1)
        charge_model({**found.data, **changes}, int(n_envs or 1), found.budget)
        with NetworkBudget(found.weights_bytes, found.budget):
            yield found, stream, label


def _written_anew(found: ModelFile) -> io.BytesIO:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("data", json.dumps(dict.fromkeys(found.data)))
        for name, values in found.weights.items():
            with archive.open(f"{name}.pth", "w", force_zip64=True) as member:
                th.save(values, member)
        if found.system_info:
            archive.writestr("system_info.txt", found.system_info)
    stream.seek(0)
    return stream


@contextmanager
def fitting_weights(path: Path, model: BaseAlgorithm) -> Iterator[dict[str, Any]]:
    """The weights of a file; upstream's ``set_parameters`` is to be called inside, which may be undone."""
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
    parameters = dict(enumerate(part for group in optimizer.param_groups for part in group["params"]))
    for group, mine in zip(values["param_groups"], optimizer.state_dict()["param_groups"], strict=True):
        check_plain(group, th.Tensor)
        numbers = [group.get(key, number) for key, number in mine.items() if isinstance(number, (int, float))]
        numeric = all(isinstance(number, (int, float, th.Tensor)) for number in numbers)
        if group["params"] != mine["params"] or not numeric:
            raise NotRestorable("it has other parameters than this model's optimizer")
    for index, state in values["state"].items():
        check_plain(state, th.Tensor)
        largest = max(parameters[index].numel(), 1)
        if any(th.is_tensor(part) and part.numel() > largest for part in state.values()):
            raise NotRestorable("its state is larger than the weights it is for")


def carried_normalization(raw: bytes, label: str, space: spaces.Space) -> Normalization | None:
    """The statistics of ``VecNormalize`` in a model's file, whatever else that holds."""
    if NORMALIZATION_MEMBER.encode() not in raw:
        return None
    with refused(label):
        return read_normalization(Archive(raw, Budget(len(raw))), space)


def load_vec_normalize(
    path: str | pathlib.Path | io.BufferedIOBase, venv: VecEnv, trust: bool = False
) -> VecNormalize:
    """Load what ``VecNormalize.save`` wrote and wrap ``venv`` in it, without running the file's code.

    :param path: the file; or that of a model, if it carries the statistics that it was trained with
    :param venv: the environments to wrap
    :param trust: unpickle the file as ``VecNormalize.load`` does, which runs whatever it says
    :raises LoadError: if the file is damaged or holds no such statistics; it names the file
    """
    if trust:
        return VecNormalize.load(str(path), venv)
    raw, label = read_bytes(path, "pkl")
    if raw.startswith(b"PK"):
        carried = carried_normalization(raw, label, venv.observation_space)
        with refused(label):
            if carried is None:
                raise NotRestorable("it is a model that carries no statistics of VecNormalize")
            return carried.wrap(venv, training=True)
    loaded = read_vec_normalize(raw, label)
    with refused(label, " (its statistics are of other observations than these environments give)"):
        return loaded.around(venv, loaded.training, loaded.norm_reward)


def read_vec_normalize(raw: bytes, label: str) -> Normalization:
    """What ``VecNormalize.save`` wrote into a file with these contents; ``label`` is its name for errors."""
    with refused(label, ". If you trust the file, load it with trust=True"):
        loaded = Rebuilder(parse(raw, Budget(len(raw)))).root()
        if not isinstance(loaded, Normalization):
            raise NotRestorable("it holds no VecNormalize")
    return loaded
