"""Reads a model's zip file, as Stable-Baselines3 writes it, into checked plain data and weights."""

from __future__ import annotations

import base64
import io
import json
import pathlib
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import open_path
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from sppo.loading.archive import Archive
from sppo.loading.errors import LoadError, NotRestorable, printable
from sppo.loading.pickletree import ATOMS, MAX_OPCODES, Pairs, parse
from sppo.loading.rebuild import Rebuilder
from sppo.loading.schedules import SCHEDULES
from sppo.loading.tensors import read_tensors

MAX_DATA_BYTES = 64 * 2**20
#: Values in the JSON text; each may take a hundred times the bytes that it has there.
MAX_JSON_VALUES = 500_000

SCHEDULE_KEYS = frozenset({"learning_rate", "clip_range", "clip_range_vf", "eta"})
#: Set up anew whenever a model is built: a file has no say in them.
REBUILT_KEYS = frozenset(
    {"policy", "device", "env", "replay_buffer", "rollout_buffer", "_vec_normalize_env", "_logger"}
    | {"_custom_logger", "logger", "lr_schedule", "_last_lstm_states", "_finite_guard"}
)
#: The state of a run in progress: training goes on without it.
RUN_STATE_KEYS = frozenset(
    {"_last_obs", "_last_original_obs", "_last_episode_starts", "ep_info_buffer", "ep_success_buffer"}
    | {"start_time", "action_noise"}
)
REQUIRED_KEYS = ("policy_class", "observation_space", "action_space", "policy_kwargs")
#: Parts of ``policy_kwargs`` that only training needs.
TRAINING_KWARGS = ("optimizer_class", "optimizer_kwargs")

_INTEGERS = frozenset(
    {"n_steps", "n_envs", "batch_size", "n_epochs", "num_timesteps", "_total_timesteps", "verbose"}
    | {"_num_timesteps_at_start", "_episode_num", "_n_updates", "sde_sample_freq", "_stats_window_size"}
)
_NUMBERS = frozenset(
    {"gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm", "_current_progress_remaining"}
)
#: key -> the class that it must be, or derive from
_CLASSES: dict[str, type] = {
    "policy_class": BasePolicy,
    "rollout_buffer_class": BaseBuffer,
    "features_extractor_class": BaseFeaturesExtractor,
    "optimizer_class": th.optim.Optimizer,
    "activation_fn": th.nn.Module,
}
_PLAIN = (*ATOMS, np.ndarray, np.generic, np.dtype, th.device, th.dtype, pathlib.PurePath, spaces.Space)
_ATTRIBUTE = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")
_WEIGHTS_MEMBER = re.compile(r"((?!__)[A-Za-z_][A-Za-z0-9_]*(\.(?!__)[A-Za-z_][A-Za-z0-9_]*)*)\.pth")
_VARIABLES_MEMBERS = ("pytorch_variables", "tensors")


@dataclass
class ModelFile:
    """What a model's file holds, as far as it can be restored without running its code."""

    label: str
    data: dict[str, Any] = field(default_factory=dict)
    #: name -> why it was not restored
    left_out: dict[str, str] = field(default_factory=dict)
    #: parts for which there is a fresh default, in words
    replaced: list[str] = field(default_factory=list)
    #: name -> weights or optimizer state
    weights: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, Any] | None = None
    weights_bytes: int = 0
    version: str = "unknown"
    system_info: str = ""


def read_bytes(path: str | pathlib.Path | io.BufferedIOBase, suffix: str) -> tuple[bytes, str]:
    """A file's contents and its name for errors; found as Stable-Baselines3 finds it."""
    file = open_path(path, "r", suffix=suffix)
    try:
        file.seek(0)
        return file.read(), str(getattr(file, "name", None) or f"<{type(path).__name__}>")
    finally:
        if isinstance(path, (str, pathlib.Path)):
            file.close()


def entries(archive: Archive, label: str) -> dict[str, Any]:
    """The ``data`` member's JSON object."""
    if "data" not in archive.names:
        raise LoadError(f"{label}: it has no member 'data', so it is no model of Stable-Baselines3")
    raw = archive.read("data", MAX_DATA_BYTES)
    if sum(raw.count(separator) for separator in (b",", b"[", b"{")) > MAX_JSON_VALUES:
        raise LoadError(f"{label}: its member 'data' has more than {MAX_JSON_VALUES} values")
    try:
        data = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{label}: its member 'data' is no JSON text ({error})") from error
    if not isinstance(data, dict):
        raise LoadError(f"{label}: its member 'data' is no JSON object")
    return data


def pickled(item: Any) -> bytes | None:
    """The pickle inside an entry of ``data``, or ``None`` if the entry is plain JSON.

    :raises ValueError: if the entry is malformed
    """
    if not isinstance(item, dict) or ":serialized:" not in item:
        return None
    return base64.b64decode(item[":serialized:"], validate=True)


def read_model_file(
    raw: bytes, label: str, cls: type, given: frozenset[str] = frozenset(), with_data: bool = True
) -> ModelFile:
    """Read a model's file.

    :param raw: the file's bytes
    :param label: its name, for errors
    :param cls: the class of the model to be
    :param given: entries that the caller replaces; they are not looked at
    :param with_data: whether to read more than the weights
    :raises LoadError: if the file is damaged
    """
    archive = Archive(raw, label)
    found = ModelFile(label)
    if with_data:
        _read_data(archive, found, cls, given)
    for name in archive.names:
        if name.endswith(".pth"):
            _read_weights(archive, name, found)
    for name, attribute in (("_stable_baselines3_version", "version"), ("system_info.txt", "system_info")):
        if name in archive.names:
            text = archive.read(name, 2**16).decode(errors="replace")
            # Control characters could rewrite what a terminal shows.
            setattr(found, attribute, "".join(c for c in text if c.isprintable() or c == "\n").strip())
    return found


def _read_weights(archive: Archive, name: str, found: ModelFile) -> None:
    named = _WEIGHTS_MEMBER.fullmatch(name)
    if named is None:
        raise LoadError(f"{found.label}: it has a member with the unexpected name {name!r}")
    raw = archive.read(name)
    found.weights_bytes += len(raw)
    values = read_tensors(raw, f"{found.label}, member {name}")
    if named[1] not in _VARIABLES_MEMBERS:
        if not isinstance(values, dict):
            raise LoadError(f"{found.label}: its member {name!r} holds no weights")
        found.weights[named[1]] = values
    elif values:
        valid = isinstance(values, dict) and all(
            _ATTRIBUTE.fullmatch(str(key)) and isinstance(value, (th.Tensor, type(None)))
            for key, value in values.items()
        )
        if not valid:
            raise LoadError(f"{found.label}: its member {name!r} holds no tensors by name")
        found.variables = values


def _read_data(archive: Archive, found: ModelFile, cls: type, given: frozenset[str]) -> None:
    opcodes = MAX_OPCODES
    rebuilt = REBUILT_KEYS | _never_saved(cls)
    for key, item in entries(archive, found.label).items():
        if key in given:
            # Upstream replaces only what the file mentions.
            found.data[key] = None
            continue
        if key in rebuilt:
            continue
        try:
            _check_attribute(cls, key)
            raw = pickled(item)
            if raw is None:
                value = item
            else:
                tree = parse(raw, max_opcodes=opcodes)
                opcodes -= tree.opcodes
                rebuilder = Rebuilder(tree)
                if key == "policy_kwargs" and isinstance(tree.root, Pairs):
                    _drop_training_kwargs(rebuilder, tree.root, found)
                value = rebuilder.root()
                found.replaced += [f"{key}: {part}" for part in rebuilder.replaced]
            check_entry(key, value)
        except (NotRestorable, ValueError, TypeError, RecursionError) as reason:
            found.left_out[printable(key, 80)] = printable(str(reason), 300)
        else:
            found.data[key] = value


def require_essentials(found: ModelFile) -> None:
    """Refuse a file from which no model can be built.

    :raises LoadError: naming what is missing, and how to give it
    """
    for key in REQUIRED_KEYS:
        if key in found.left_out:
            raise LoadError(
                f"{found.label}: {key} cannot be restored without running the file's code: "
                f'{found.left_out[key]}. Give it with custom_objects={{"{key}": ...}}, or, if you trust '
                "the file, load it with trust=True"
            )
        if key not in found.data:
            raise LoadError(f"{found.label}: it has no {key}, so it is no model of this class")


def _drop_training_kwargs(rebuilder: Rebuilder, kwargs: Pairs, found: ModelFile) -> None:
    """Take the optimizer out of ``policy_kwargs`` if it cannot be restored: prediction needs none."""
    for key, node in kwargs.pairs:
        if key in TRAINING_KWARGS:
            try:
                check_keyword(key, rebuilder.value(node))
            except NotRestorable as reason:
                found.left_out[f"policy_kwargs.{key}"] = str(reason)
    if any(f"policy_kwargs.{key}" in found.left_out for key in TRAINING_KWARGS):
        kwargs.pairs[:] = [pair for pair in kwargs.pairs if pair[0] not in TRAINING_KWARGS]


def _never_saved(cls: type) -> set[str]:
    """What the class itself leaves out of its files: an honest file has none of it."""
    try:
        return set(cls._excluded_save_params(object.__new__(cls)))  # type: ignore[attr-defined]
    except (TypeError, AttributeError):
        return set()


def _check_attribute(cls: type, key: str) -> None:
    """Refuse names that would replace a method or property of the model."""
    if not _ATTRIBUTE.fullmatch(key):
        raise NotRestorable("it is not the name of a parameter")
    if hasattr(cls, key) and not isinstance(getattr(cls, key), ATOMS):
        raise NotRestorable("it would replace a part of the program")


def check_entry(key: str, value: Any) -> None:
    """Refuse a value that is not of the kind that the model's parameter ``key`` is for.

    :raises NotRestorable: if it is not
    """
    if key in ("policy_class", "rollout_buffer_class"):
        if value is not None and not (isinstance(value, type) and issubclass(value, _CLASSES[key])):
            raise NotRestorable(f"it is no subclass of {_CLASSES[key].__name__}")
    elif key in ("observation_space", "action_space"):
        if not isinstance(value, spaces.Space):
            raise NotRestorable("it is no space")
    elif key in SCHEDULE_KEYS:
        if not isinstance(value, (int, float, np.integer, np.floating, type(None), *SCHEDULES)):
            raise NotRestorable("it is neither a number nor a schedule")
    elif key in _INTEGERS:
        if not isinstance(value, (int, np.integer)) or not -1 <= value < 2**62:
            raise NotRestorable("it is no integer of a sensible size")
    elif key in _NUMBERS:
        if not isinstance(value, (int, float, np.integer, np.floating)):
            raise NotRestorable("it is no number")
    elif key in ("policy_kwargs", "rollout_buffer_kwargs"):
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise NotRestorable("it is no dictionary of keyword arguments")
        for name, part in value.items():
            check_keyword(name, part)
    else:
        check_plain(value)


def check_keyword(name: str, value: Any) -> None:
    """Refuse a keyword argument of the policy that is a class of another kind than its name says.

    :raises NotRestorable: if it is
    """
    base = _CLASSES.get(name, object)
    if isinstance(value, type) and not issubclass(value, base):
        raise NotRestorable(f"{name} is no subclass of {base.__name__}")
    check_plain(value, type)


def check_plain(value: Any, *kinds: type) -> None:
    """Refuse anything but numbers, texts, arrays, spaces and schedules, in containers or not."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (list, tuple, deque, set, frozenset)):
            waiting.extend(part)
        elif isinstance(part, dict):
            waiting.extend(part.values())
        elif not isinstance(part, (*_PLAIN, *SCHEDULES, *kinds)):
            raise NotRestorable(f"it holds an unexpected {type(part).__name__}")
