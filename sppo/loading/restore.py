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
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv

from sppo.loading.budget import AllocationBudget, check_rollout_size
from sppo.loading.errors import LoadError, printable
from sppo.loading.model_file import (
    RUN_STATE_KEYS,
    SCHEDULE_KEYS,
    TRAINING_KWARGS,
    ModelFile,
    read_bytes,
    read_model_file,
    require_essentials,
)
from sppo.loading.schedules import LeftOut, missing

Path = str | pathlib.Path | io.BufferedIOBase


class Checked:
    """A model's file as upstream may see it.

    :param found: the file's contents
    :param given: the caller's replacements
    """

    def __init__(self, found: ModelFile, given: dict[str, Any]) -> None:
        self.label = found.label
        self.left_out = dict(found.left_out)
        self.replaced = list(found.replaced)
        values = dict(found.data)
        earlier = values.pop("_left_out", None)
        if isinstance(earlier, dict):
            # A model that was loaded with parts missing, and saved again, still misses them.
            texts = {printable(str(key), 80): printable(str(reason), 300) for key, reason in earlier.items()}
            self.left_out.update({key: texts[key] for key in texts if key not in given})
        self.placeholders = [LeftOut(key, self.left_out[key]) for key in SCHEDULE_KEYS & set(self.left_out)]
        values.update({placeholder.name: placeholder for placeholder in self.placeholders})
        #: every value, under the name of its entry
        self.custom_objects = {key: given.get(key, value) for key, value in values.items()}
        self.stream = _written_anew(found, list(values))

    def finish(self, model: BaseAlgorithm) -> None:
        """Tell the user once what is missing, and the model, so that training can ask for it."""
        for placeholder in self.placeholders:
            placeholder.building = False
        needed = {key: reason for key, reason in self.left_out.items() if key not in RUN_STATE_KEYS}
        if needed:
            model._left_out = needed  # type: ignore[attr-defined]
        parts = [f"{key}: {reason}" for key, reason in self.left_out.items()]
        parts += [f"{part} (a new one is used)" for part in self.replaced]
        if parts:
            warnings.warn(
                f"{self.label}: left out, because it cannot be restored without running the file's code: "
                f"{'; '.join(parts)}. Prediction works without. Give what training needs with "
                "custom_objects, or load a file that you trust with trust=True; "
                "`python -m sppo inspect` shows the file's contents",
                stacklevel=3,
            )


def _written_anew(found: ModelFile, names: list[str]) -> io.BytesIO:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("data", json.dumps(dict.fromkeys(names)))
        members = dict(found.weights)
        optimizer = members.get("policy.optimizer")
        if optimizer and any(f"policy_kwargs.{key}" in found.left_out for key in TRAINING_KWARGS):
            # Another optimizer stands in for the file's, and could not read its state.
            members["policy.optimizer"] = {**optimizer, "state": {}}
        if found.variables:
            members["pytorch_variables"] = found.variables
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
    found = read_model_file(*read_bytes(path, "zip"), cls, frozenset(given))
    require_essentials(found)
    ready = Checked(found, given)
    n_envs = env.num_envs if isinstance(env, VecEnv) else 1 if env is not None else found.data.get("n_envs")
    check_rollout_size(ready.custom_objects | changes, int(n_envs or 1), found.label)
    for placeholder in ready.placeholders:
        placeholder.building = True
    try:
        with AllocationBudget(found.weights_bytes, found.label):
            yield ready
    except LoadError:
        raise
    except Exception as error:
        # Senseless values that passed the checks above meet upstream's code here.
        raise LoadError(f"{found.label}: {error}") from error


def read_weights(path: Path, model: BaseAlgorithm) -> dict[str, Any]:
    """The weights and optimizer state of a file, for ``set_parameters`` of ``model``."""
    found = read_model_file(*read_bytes(path, "zip"), type(model), with_data=False)
    unknown = set(found.weights) - set(model._get_torch_save_params()[0])
    if unknown:
        raise LoadError(f"{found.label}: it holds weights of unknown parts: {', '.join(sorted(unknown))}")
    return found.weights


def require_complete(model: BaseAlgorithm) -> None:
    """Refuse to train a model that was loaded without something that training needs."""
    left_out = vars(model).get("_left_out") or {}
    still = {key: reason for key, reason in left_out.items() if not _given_since(model, key)}
    if still:
        raise ValueError(missing(still))


def _given_since(model: BaseAlgorithm, key: str) -> bool:
    """Whether a schedule that was left out has been set on the model."""
    value = getattr(model, key, None)
    if isinstance(value, FloatSchedule):
        value = value.value_schedule
    return key in SCHEDULE_KEYS and not isinstance(value, LeftOut)
