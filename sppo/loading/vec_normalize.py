"""Reads the statistics of :class:`~stable_baselines3.common.vec_env.VecNormalize` without running a file."""

from __future__ import annotations

import io
import pathlib
import warnings
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sppo.loading.errors import LoadError, NotRestorable
from sppo.loading.model_file import check_plain, read_bytes
from sppo.loading.pickletree import Call, parse
from sppo.loading.rebuild import Rebuilder

_FLAGS = ("training", "norm_obs", "norm_reward")
_NUMBERS = ("clip_obs", "clip_reward", "gamma", "epsilon")


def _running_mean_std(rebuilder: Rebuilder, call: Call) -> RunningMeanStd:
    nodes = rebuilder.attributes(call)
    mean, var, count = (rebuilder.value(nodes[key]) for key in ("mean", "var", "count"))
    numeric = all(isinstance(part, (np.ndarray, np.floating, float)) for part in (mean, var))
    if not numeric or np.shape(mean) != np.shape(var) or not isinstance(count, (int, float, np.number)):
        raise NotRestorable("running statistics are malformed")
    made = RunningMeanStd(shape=np.shape(mean))
    # Statistics without a shape are NumPy scalars after the first update, and saved as such.
    made.mean, made.var, made.count = mean, var, count  # type: ignore[assignment]
    return made


def _vec_normalize(rebuilder: Rebuilder, call: Call) -> VecNormalize:
    state = {key: rebuilder.value(node) for key, node in rebuilder.attributes(call).items()}
    made = VecNormalize.__new__(VecNormalize)
    made.venv = None  # type: ignore[assignment]
    for key in ("observation_space", "action_space"):
        if not isinstance(state[key], spaces.Space):
            raise NotRestorable(f"{key} is no space")
    if not all(isinstance(state[key], (bool, np.bool_)) for key in _FLAGS):
        raise NotRestorable("a flag is no truth value")
    if not all(isinstance(state[key], (int, float, np.number)) for key in _NUMBERS):
        raise NotRestorable("a parameter is no number")
    _check_statistics(state)
    for key, value in state.items():
        if hasattr(VecNormalize, key) or key == "venv":
            raise NotRestorable(f"{key} would replace a part of the program")
        check_plain(value, RunningMeanStd)
    made.__dict__.update(state)
    if "norm_obs_keys" not in state:
        # Releases without the parameter normalised all parts.
        every = (
            list(made.observation_space.spaces) if isinstance(made.observation_space, spaces.Dict) else None
        )
        made.norm_obs_keys = every
    return made


def _check_statistics(state: dict[str, Any]) -> None:
    """The running statistics must have the shapes of the observations that they normalise."""
    space, statistics = state["observation_space"], state.get("obs_rms")
    if not isinstance(state["ret_rms"], RunningMeanStd):
        raise NotRestorable("the returns' statistics are missing")
    if statistics is None and not state["norm_obs"]:
        return
    if isinstance(space, spaces.Dict) and isinstance(statistics, dict):
        pairs = [(space.spaces[key].shape, part) for key, part in statistics.items()]
    else:
        pairs = [(space.shape, statistics)]
    for shape, part in pairs:
        if not isinstance(part, RunningMeanStd) or np.shape(part.mean) != shape:
            raise NotRestorable("the observations' statistics do not fit the observation space")


BUILDERS = {
    "stable_baselines3.common.running_mean_std.RunningMeanStd": _running_mean_std,
    "stable_baselines3.common.vec_env.vec_normalize.VecNormalize": _vec_normalize,
}
MAX_BYTES = 256 * 2**20


def load_vec_normalize(
    path: str | pathlib.Path | io.BufferedIOBase, venv: VecEnv, trust: bool = False
) -> VecNormalize:
    """Load what ``VecNormalize.save`` wrote and wrap ``venv`` in it, without running the file's code.

    :param path: the file
    :param venv: the environments to wrap
    :param trust: unpickle the file as ``VecNormalize.load`` does, which runs whatever it says
    :raises LoadError: if the file is damaged or holds anything but statistics; it names the file
    """
    if trust:
        return VecNormalize.load(str(path), venv)
    raw, label = read_bytes(path, "pkl")
    if len(raw) > MAX_BYTES:
        raise LoadError(f"{label}: it has {len(raw)} bytes, more than {MAX_BYTES}")
    try:
        rebuilder = Rebuilder(parse(raw), BUILDERS)
        loaded = rebuilder.root()
    except (NotRestorable, ValueError, RecursionError) as reason:
        raise LoadError(
            f"{label}: it cannot be restored without running its code: {reason}. If you trust the file, "
            "load it with trust=True"
        ) from reason
    if not isinstance(loaded, VecNormalize):
        raise LoadError(f"{label}: it holds no VecNormalize")
    if rebuilder.replaced:
        warnings.warn(f"{label}: replaced by new ones: {', '.join(rebuilder.replaced)}", stacklevel=2)
    loaded.set_venv(venv)
    return loaded
