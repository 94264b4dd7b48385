"""Reads a model's zip file, as Stable-Baselines3 writes it, into checked plain data and weights."""

from __future__ import annotations

import base64
import inspect
import itertools
import json
import pathlib
import re
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from sppo.loading.allowlist import CLOSED_PACKAGES
from sppo.loading.archive import Archive
from sppo.loading.budget import Budget
from sppo.loading.errors import LoadError, NotRestorable, brief, printable, refused
from sppo.loading.normalization import Normalization
from sppo.loading.pickletree import ATOMS, Tree, parse
from sppo.loading.rebuild import Rebuilder
from sppo.loading.schedules import NUMBERS, SCHEDULE_KEYS, SCHEDULES, LeftOut, StoredSchedule
from sppo.loading.tensors import read_tensors
from sppo.surrogates import AUTO, REGISTRY, Surrogate, find

#: The kinds of values that a parameter may have; nothing here means any plain one.
Kinds = tuple[type, ...]
_NUMBER: Kinds = (*NUMBERS, type(None))
#: What a file may set besides the parameters of ``__init__``: upstream's attributes of a model in training.
TRAINING_STATE: dict[str, Kinds] = {
    **dict.fromkeys(("observation_space", "action_space"), (spaces.Space,)),
    **dict.fromkeys(("policy_class", "_left_out"), ()),
    **dict.fromkeys(("n_envs", "_stats_window_size", "num_timesteps", "_total_timesteps"), _NUMBER),
    **dict.fromkeys(("_num_timesteps_at_start", "_episode_num", "_n_updates"), _NUMBER),
    **dict.fromkeys(("_current_progress_remaining", "auto_eta"), _NUMBER),
}
#: The state of a run in progress: training goes on without it.
RUN_STATE = frozenset(
    {"_last_obs", "_last_original_obs", "_last_episode_starts", "ep_info_buffer", "ep_success_buffer"}
    | {"start_time", "action_noise"}
)
#: Set up anew whenever a model is built: a file has no say in them, though honest ones hold some.
REBUILT = frozenset(
    {"policy", "device", "env", "replay_buffer", "rollout_buffer", "_vec_normalize_env", "_logger"}
    | {"_custom_logger", "logger", "lr_schedule", "_last_lstm_states", "self", "args", "kwargs"}
    | {"_init_setup_model"}
)
REQUIRED = ("policy_class", "observation_space", "action_space", "policy_kwargs")
#: Where a model's schedules are stored by value, beside the functions that upstream's loader would run.
SCHEDULES_MEMBER = "sppo_schedules.json"
#: Where the statistics of ``VecNormalize`` are.
NORMALIZATION_MEMBER = "sppo_normalization.json"

#: the type of a default -> the kinds of values that may take its place
_KINDS: dict[type, Kinds] = {
    bool: (bool, np.bool_, type(None)),
    int: _NUMBER,
    float: _NUMBER,
    str: (str, pathlib.PurePath, type(None)),
}
#: key -> the class that it must be, or derive from
_CLASSES: dict[str, type] = {
    "policy_class": BasePolicy,
    "rollout_buffer_class": BaseBuffer,
    "features_extractor_class": BaseFeaturesExtractor,
    "optimizer_class": th.optim.Optimizer,
    "activation_fn": th.nn.Module,
}
_PLAIN = (*ATOMS, np.ndarray, np.generic, np.dtype, pathlib.PurePath, spaces.Space)
_WEIGHTS_MEMBER = re.compile(r"((?!__)[A-Za-z_][A-Za-z0-9_]*(\.(?!__)[A-Za-z_][A-Za-z0-9_]*)*)\.pth")


@dataclass
class ModelFile:
    """What a model's file holds, as far as it can be restored without running its code."""

    budget: Budget
    #: what it may set, see :func:`settable`
    names: dict[str, Kinds]
    #: which of these may be functions of the remaining progress
    schedules: set[str] = field(default_factory=lambda: set(SCHEDULE_KEYS))
    data: dict[str, Any] = field(default_factory=dict)
    #: name -> why it was not restored
    left_out: dict[str, str] = field(default_factory=dict)
    #: name -> parsed pickle
    trees: dict[str, Tree] = field(default_factory=dict)
    entries: list[str] = field(default_factory=list)
    #: name -> size
    members: dict[str, int] = field(default_factory=dict)
    #: name -> weights or optimizer state
    weights: dict[str, dict[str, Any]] = field(default_factory=dict)
    weights_bytes: int = 0
    normalization: Normalization | None = None
    version: str = "unknown"
    system_info: str = ""

    @property
    def needed(self) -> dict[str, str]:
        """Of what was left out, what training needs."""
        return {key: self.left_out[key] for key in self.left_out if key in self.names.keys() - RUN_STATE}


def settable(*classes: type) -> dict[str, Kinds]:
    """What a file may set: parameters of ``__init__`` and training state, with the kinds of values."""
    names = dict.fromkeys(RUN_STATE, ()) | TRAINING_STATE
    for base in (base for cls in classes for base in cls.__mro__[:-1] if "__init__" in vars(base)):
        # A class of the user's own may take values of other kinds than its default.
        known = base.__module__.partition(".")[0] in CLOSED_PACKAGES
        for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items():
            names.setdefault(name, _KINDS.get(type(parameter.default), ()) if known else ())
    return {name: names[name] for name in names.keys() - REBUILT}


def read_model_file(
    raw: bytes, names: Mapping[str, Kinds], given: Mapping[str, object], with_data: bool = True
) -> ModelFile:
    """Read a model's file; :class:`LoadError` if it is damaged.

    :param names: what the file may set, see :func:`settable`
    :param given: what the caller has in place of entries; those are not looked at
    :param with_data: whether to read more than the weights
    """
    archive = Archive(raw, Budget(len(raw)))
    found = ModelFile(archive.budget, dict(names), members=archive.sizes)
    if with_data:
        _read_data(archive, found, given)
    for name in archive.sizes:
        if name.endswith(".pth"):
            _read_weights(archive, name, found)
    for name, attribute in (("_stable_baselines3_version", "version"), ("system_info.txt", "system_info")):
        if name in archive.sizes:
            text = archive.read(name)[: 2**16].decode(errors="replace")
            # Control characters could rewrite what a terminal shows.
            setattr(found, attribute, "".join(c for c in text if c.isprintable() or c == "\n").strip())
    return found


def _read_data(archive: Archive, found: ModelFile, given: Mapping[str, object]) -> None:
    by_value = _json(archive, SCHEDULES_MEMBER) if SCHEDULES_MEMBER in archive.sizes else {}
    data = _json(archive, "data")
    surrogate = find(str(given["surrogate"])) if given.get("surrogate") else imported_surrogate(data)
    for name, parameter in surrogate.parameters().items() if surrogate else ():
        found.names[name] = ()
        if parameter.kind == "schedule":
            found.schedules.add(name)
    for key, item in data.items():
        found.entries.append(key)
        if key in given:
            # Upstream replaces only what the file mentions.
            found.data[key] = given[key]
        else:
            _read_entry(found, key, item, by_value.get(key))
    # A model that was loaded with parts missing, and saved again, still misses them.
    earlier = found.data.pop("_left_out", None)
    for key, reason in itertools.islice(earlier.items() if isinstance(earlier, dict) else (), 100):
        if isinstance(key, str) and isinstance(reason, str) and key not in given:
            found.left_out[printable(key, 80)] = printable(reason, 300)
    found.data |= {key: LeftOut() for key in found.needed if key in found.schedules}
    space = given.get("observation_space", found.data.get("observation_space"))
    if isinstance(space, spaces.Space):
        found.normalization = read_normalization(archive, space)


def read_normalization(archive: Archive, space: spaces.Space) -> Normalization | None:
    """The statistics of ``VecNormalize`` that a model's file carries, if any; they must fit ``space``."""
    if NORMALIZATION_MEMBER not in archive.sizes:
        return None
    data = _json(archive, NORMALIZATION_MEMBER)
    with refused(f"its member {NORMALIZATION_MEMBER!r}"):
        return Normalization.from_json(data, space)


def _json(archive: Archive, member: str) -> dict[str, object]:
    if member not in archive.sizes:
        raise LoadError(f"it has no member {member!r}, so it is no model of Stable-Baselines3")
    raw = archive.read(member)
    values = sum(raw.count(separator) for separator in (b",", b"[", b"{"))
    archive.budget.work(values)
    archive.budget.memory(3 * len(raw) + 200 * values)
    with refused(f"its member {member!r} is no JSON text"):
        data = json.loads(raw.decode())
    if not isinstance(data, dict):
        raise LoadError(f"its member {member!r} is no JSON object")
    return data


def _read_entry(found: ModelFile, key: str, item: object, by_value: object) -> None:
    """One attribute of the model, restored or left out."""
    name = printable(key, 80)
    try:
        if isinstance(item, dict) and ":serialized:" in item:
            found.budget.memory(len(item[":serialized:"]))
            found.trees[name] = parse(base64.b64decode(item[":serialized:"], validate=True), found.budget)
        if key in found.names:
            found.data[key] = _value(found, key, item, by_value)
        elif key not in REBUILT:
            raise NotRestorable("it is neither a parameter of the model nor part of its training state")
    except LoadError:
        raise
    except (NotRestorable, ValueError, TypeError, RecursionError) as reason:
        found.left_out[name] = printable(str(reason), 300)


def _value(found: ModelFile, key: str, item: object, by_value: object) -> object:
    """What an entry stands for, checked."""
    tree, is_schedule = found.trees.get(key), key in found.schedules
    if tree is None:
        value = item
    elif is_schedule and isinstance(by_value, dict):
        value = StoredSchedule(**by_value)
    else:
        value = Rebuilder(tree).root()
    if key == "surrogate" and value is not None and imported_surrogate({"surrogate": value}) is None:
        raise NotRestorable(f"{brief(value)} is not imported: import it before loading, if you trust it")
    automatic = key == "eta" and isinstance(value, str) and value == AUTO
    if not is_schedule or not (automatic or isinstance(value, SCHEDULES)):
        check_entry(key, value, _NUMBER if is_schedule else found.names[key])
    return value


def imported_surrogate(data: Mapping[str, object]) -> type[Surrogate] | None:
    """The surrogate that a file names, if the program has imported it: a file causes no import."""
    named = data.get("surrogate")
    module, _, attribute = named.partition(":") if isinstance(named, str) else ("", "", "")
    found = vars(sys.modules[module]).get(attribute) if module in sys.modules else REGISTRY.get(module)
    return found if isinstance(found, type) and issubclass(found, Surrogate) else None


def _read_weights(archive: Archive, name: str, found: ModelFile) -> None:
    named = _WEIGHTS_MEMBER.fullmatch(name)
    if named is None:
        raise LoadError(f"it has a member with the unexpected name {name!r}")
    with refused(f"member {name}"):
        values, size = read_tensors(archive.read(name), found.budget)
    found.weights_bytes += size
    if not isinstance(values, dict) or (values and named[1] == "pytorch_variables"):
        raise LoadError(f"its member {name!r} holds no weights of a policy or optimizer")
    if named[1] != "pytorch_variables":
        found.weights[named[1]] = values


def require_essentials(found: ModelFile) -> None:
    """Refuse a file from which no model can be built, naming what is missing and how to give it."""
    for key in REQUIRED:
        if key in found.left_out:
            raise LoadError(
                f"{key} cannot be restored without running the file's code: {found.left_out[key]}. Give it "
                f'with custom_objects={{"{key}": ...}}, or, if you trust the file, load it with trust=True'
            )
        if key not in found.data:
            raise LoadError(f"it has no {key}, so it is no model of this class")


def check_entry(key: str, value: object, kinds: Kinds) -> None:
    """Refuse a value that is not of the kinds that the model's parameter ``key`` is for."""
    if key in ("policy_kwargs", "rollout_buffer_kwargs"):
        if not isinstance(value, dict):
            raise NotRestorable("it is no dictionary of keyword arguments")
        for name, part in value.items():
            check_class(name, part)
            check_plain(part, type)
    elif key in _CLASSES:
        check_class(key, value)
    elif kinds and not isinstance(value, kinds):
        raise NotRestorable(f"it is an unexpected {type(value).__name__}")
    else:
        check_plain(value)


def check_class(name: str, value: object) -> None:
    """Refuse what is no class of the kind that a keyword argument called ``name`` is for."""
    base = _CLASSES.get(name)
    if base and value is not None and not (isinstance(value, type) and issubclass(value, base)):
        raise NotRestorable(f"{name} is no subclass of {base.__name__}")


def check_plain(value: object, *kinds: type) -> None:
    """Refuse anything but numbers, texts, arrays and spaces, in containers or not."""
    waiting: list[object] = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (list, tuple, deque, set, frozenset)):
            waiting.extend(part)
        elif isinstance(part, dict):
            waiting.extend(part.values())
        elif not isinstance(part, (*_PLAIN, *kinds)):
            raise NotRestorable(f"it holds an unexpected {type(part).__name__}")
