"""Reads the statistics of :class:`~stable_baselines3.common.vec_env.VecNormalize` without running a file."""

from __future__ import annotations

import inspect
import io
import pathlib

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sppo.loading.budget import Budget
from sppo.loading.errors import NotRestorable, printable, refused
from sppo.loading.model_file import carried_normalization, check_entry, read_bytes
from sppo.loading.pickletree import Call, parse
from sppo.loading.rebuild import Rebuilder, builds

_PARAMETERS = inspect.signature(VecNormalize.__init__).parameters
#: What a file may set, each with a value of its kind: the parameters, and the state that is saved with them.
_SETTABLE: dict[str, object] = {
    **{name: parameter.default for name, parameter in _PARAMETERS.items() if name not in ("self", "venv")},
    **dict.fromkeys(("observation_space", "action_space", "render_mode", "metadata", "reset_infos")),
    **dict.fromkeys(("obs_spaces", "obs_rms", "ret_rms", "old_obs", "old_reward", "_seeds", "_options")),
    "num_envs": 1,
}
_REQUIRED = {"observation_space", "action_space", "ret_rms"}
_REQUIRED |= {name for name, kind in _SETTABLE.items() if kind is not None}


@builds("stable_baselines3.common.running_mean_std.RunningMeanStd")
def _running_mean_std(rebuilder: Rebuilder, call: Call) -> RunningMeanStd:
    state = rebuilder.attributes(call)
    mean, var, count = state["mean"], state["var"], state["count"]
    numeric = all(isinstance(part, (np.ndarray, np.floating, float)) for part in (mean, var))
    if not numeric or np.shape(mean) != np.shape(var) or not isinstance(count, (int, float, np.number)):
        raise NotRestorable("running statistics are malformed")
    made = RunningMeanStd(shape=np.shape(mean))
    # Statistics without a shape are NumPy scalars after the first update, and saved as such.
    made.mean, made.var, made.count = mean, var, count  # type: ignore[assignment]
    return made


@builds("stable_baselines3.common.vec_env.vec_normalize.VecNormalize")
def _vec_normalize(rebuilder: Rebuilder, call: Call) -> VecNormalize:
    state = rebuilder.attributes(call)
    for key, value in state.items():
        if key not in _SETTABLE:
            raise NotRestorable(f"it sets {printable(key, 80)}, which is no part of VecNormalize")
        if key not in ("obs_rms", "ret_rms"):
            check_entry(key, value, _SETTABLE[key])
    if any(state.get(key) is None for key in _REQUIRED):
        raise NotRestorable("a parameter of VecNormalize is missing")
    space, statistics = state["observation_space"], state.get("obs_rms")
    # The running statistics must have the shapes of the observations that they normalise.
    pairs: list[tuple[object, object]] = [((), state["ret_rms"])]
    if isinstance(space, spaces.Dict) and isinstance(statistics, dict):
        pairs += [(space.spaces[key].shape, part) for key, part in statistics.items()]
    elif statistics is not None or state["norm_obs"]:
        pairs.append((space.shape, statistics))
    for shape, part in pairs:
        if not isinstance(part, RunningMeanStd) or np.shape(part.mean) != shape:
            raise NotRestorable("its statistics do not fit the observation space")
    made = VecNormalize.__new__(VecNormalize)
    made.__dict__.update(state | {"venv": None})
    return made


def load_vec_normalize(
    path: str | pathlib.Path | io.BufferedIOBase, venv: VecEnv, trust: bool = False
) -> VecNormalize:
    """Load what ``VecNormalize.save`` wrote and wrap ``venv`` in it, without running the file's code.

    :param path: the file; or that of a model, if it carries the statistics that it was trained with
    :param venv: the environments to wrap
    :param trust: unpickle the file as ``VecNormalize.load`` does, which runs whatever it says
    :raises LoadError: if the file is damaged or holds anything but statistics; it names the file
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
        loaded.set_venv(venv)
    return loaded


def read_vec_normalize(raw: bytes, label: str) -> VecNormalize:
    """The same without environments: what a file's contents are; ``label`` is its name for errors."""
    with refused(label, ". If you trust the file, load it with trust=True"):
        loaded = Rebuilder(parse(raw, Budget(len(raw)))).root()
        if not isinstance(loaded, VecNormalize):
            raise NotRestorable("it holds no VecNormalize")
    return loaded
