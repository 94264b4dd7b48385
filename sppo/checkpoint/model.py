"""A whole training in one file: what is written, and how it is put back."""

from __future__ import annotations

import inspect
import io
import os
import pickle
import secrets
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sppo.checkpoint import files, records
from sppo.checkpoint.files import CheckpointError
from sppo.envs.factory import InProcessVecEnv
from sppo.envs.generators import (
    capture_generators,
    restore_generators,
    restore_space_generators,
    space_generators,
)
from sppo.envs.state import UncapturableError
from sppo.envs.vector_state import State, capture_vector, rebuild_vector, restore_vector
from sppo.records.conditions import conditions
from sppo.records.config import differences

Observation = np.ndarray | dict[str, np.ndarray]
Algorithm = TypeVar("Algorithm", bound=OnPolicyAlgorithm)

#: Attribute of a resumed model with what ``learn`` has to put back: pending log values, record lengths.
RESUMPTION = "_resumption"
#: Attribute with the generators at the beginning of the iteration (:class:`Checkpointable` sets it).
ITERATION_START = "_iteration_start"
#: What ``save`` leaves out of its files, although the next iteration depends on it.
_LEFT_OUT = ("_last_lstm_states", "_finite_guard")
#: What a logger was told but has not written yet.
_PENDING = ("value", "count", "excluded")
#: Which training a model belongs to; its checkpoints carry it, so that a directory holds those of one.
RUNS: WeakKeyDictionary[BaseAlgorithm, str | None] = WeakKeyDictionary()
#: Classes in checkpoints of earlier versions, and where they are now.
_MOVED = {("sppo.engine.vec_env", "InProcessVecEnv"): InProcessVecEnv}


def run_of(model: BaseAlgorithm) -> str | None:
    """The training that a model belongs to (``None``: one that an earlier version began)."""
    return RUNS.setdefault(model, secrets.token_hex(8))


def save(
    model: OnPolicyAlgorithm,
    path: str | os.PathLike[str],
    tables: Iterable[str | os.PathLike[str]] = (),
    identity: str | None = None,
    broken_by: BaseException | None = None,
) -> str | None:
    """Write a checkpoint of a model that is between two iterations.

    :param tables: files that grow during training and shall be cut to their present length at resume
    :param identity: what :func:`restore` may be asked to find, such as a configuration's hash
    :param broken_by: what ended an iteration that is left out, together with its episodes
    :return: why a training that is resumed from it will not go on exactly; ``None`` if it will
    """
    if model.env is None:
        raise CheckpointError("a model without an environment has nothing to resume: use save()")
    generators = getattr(model, ITERATION_START, None)
    if generators is None and model.use_sde:
        raise CheckpointError(
            f"{type(model).__name__} draws new exploration noise before its callbacks are called: "
            "with use_sde=True, use the class of the same name in sppo"
        )
    zipped = io.BytesIO()
    # The state of the environments has the statistics.
    model.save(zipped, exclude=[RESUMPTION, ITERATION_START, "normalization"])
    logger: Logger | None = getattr(model, "_logger", None)
    vector = capture_vector(model.env)
    if broken_by is not None:
        vector.update(environments=None, uncaptured=f"an iteration was broken off ({broken_by})")
    state = {
        "generators": generators or capture_generators(),
        "action_space": space_generators(model.action_space),
        "vector": vector,
        "last_observation": _with_strides(model._last_obs),
        "attributes": {name: getattr(model, name) for name in _LEFT_OUT if hasattr(model, name)},
        "log": logger and {name: dict(getattr(logger, f"name_to_{name}")) for name in _PENDING},
        "records": records.positions(logger, tables),
    }
    missing = [*vector["left_out"], *([vector["uncaptured"]] if vector["uncaptured"] else [])]
    about = {
        "algorithm": type(model).__name__,
        "timesteps": model.num_timesteps,
        "run": run_of(model),
        "identity": identity,
        "exact": not missing,
        "left_out": missing,
        "versions": _conditions(),
    }
    members = {"model.zip": zipped.getvalue(), "state.pkl": pickle.dumps(state)}
    files.write_atomically(path, files.pack(members, about))
    return "; ".join(missing) or None


def restore(
    algorithm: type[Algorithm],
    path: str | os.PathLike[str],
    env: VecEnv | None = None,
    device: str = "auto",
    identity: str | None = None,
) -> Algorithm:
    """The model of a checkpoint, as it was.

    :param env: an environment built like the checkpoint's; may be left out where it can be rebuilt
    :param identity: refuse a checkpoint that was saved with another one
    """
    manifest, members = files.read(path)
    name = os.fspath(path)
    if identity is not None and manifest.get("identity") not in (None, identity):
        raise CheckpointError(
            f"{name} belongs to another run ({manifest['identity']}, not {identity}), begun with other "
            "settings: go on with those, or choose another directory"
        )
    before, now = manifest.get("versions", {}), _conditions()
    if changed := differences(before, {key: now.get(key) for key in before}):
        reason = f"{name} was saved under other conditions ({'; '.join(changed)})"
        warnings.warn(f"{reason}: the training may not go on exactly", stacklevel=2)
    state = _Unpickler(io.BytesIO(members["state.pkl"])).load()
    vector = state["vector"]
    # The rest of a checkpoint is a pickle, too.
    trust: dict[str, Any] = {"trust": True} if "trust" in inspect.signature(algorithm.load).parameters else {}
    given = env if env is not None else _rebuilt(vector, name)
    model = algorithm.load(io.BytesIO(members["model.zip"]), given, device, force_reset=False, **trust)
    assert model.env is not None
    try:
        simulators = restore_vector(model.env, vector)
    except UncapturableError as error:
        raise CheckpointError(f"cannot resume {name}: {error}") from error
    restore_space_generators(model.action_space, state["action_space"])
    model._last_obs = _from_strides(state["last_observation"])
    vars(model).update(state["attributes"])
    if not simulators:
        reason = f"the episodes of {name} are started again, because their state was not captured"
        warnings.warn(f"{reason}: {vector['uncaptured']}", stacklevel=2)
        _restart_episodes(model, model.env)
    if vector.get("left_out"):
        reason = f"{name} does not hold everything, and the training goes on another way"
        warnings.warn(f"{reason}: {'; '.join(vector['left_out'])}", stacklevel=2)
    resumption = {"log": state["log"], "records": state["records"], "restarted": not simulators}
    setattr(model, RESUMPTION, resumption)
    RUNS[model] = manifest.get("run")
    restore_generators(state["generators"])
    return model


def _conditions() -> dict[str, str]:
    # PyTorch adds in another order with another number of threads.
    return {**conditions(), "threads": str(th.get_num_threads())}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        return _MOVED.get((module, name)) or super().find_class(module, name)


def put_back_log(logger: Logger, pending: Mapping[str, Mapping[str, object]] | None) -> None:
    """Give a logger the values that were recorded but not yet written at the checkpoint."""
    for name, values in (pending or {}).items():
        getattr(logger, f"name_to_{name}").update(values)


def _with_strides(observation: Observation | None) -> object:
    """An observation with its memory layout.

    Pickle makes arrays contiguous, but a transposed image goes another way through a convolution than a
    contiguous one, and comes out with other rounding errors.
    """
    if isinstance(observation, dict):
        return {key: _with_strides(value) for key, value in observation.items()}
    return observation if observation is None else (observation, observation.strides)


def _from_strides(saved: Any) -> Any:
    if isinstance(saved, dict):
        return {key: _from_strides(value) for key, value in saved.items()}
    values, strides = saved or (None, ())
    if values is None or min(strides, default=0) < 0:
        return values
    extent = sum((n - 1) * stride for n, stride in zip(values.shape, strides, strict=True)) + values.itemsize
    memory = np.empty(extent, np.uint8)
    observation: np.ndarray = np.ndarray(values.shape, values.dtype, memory, strides=strides)
    observation[...] = values
    return observation


def _rebuilt(vector: State, path: str) -> VecEnv:
    reason = "it is not made of registered environments in this process"
    try:
        env = rebuild_vector(vector)
        if env is not None:
            return env
    except Exception as error:  # making an environment runs arbitrary code
        reason = str(error)
    raise CheckpointError(
        f"the environment of {path} cannot be built again from the checkpoint alone ({reason}): "
        "pass one built in the same way, resume(path, env=...)"
    )


def _restart_episodes(model: OnPolicyAlgorithm, env: VecEnv) -> None:
    # New episodes, but the same ones at every attempt: seeded by the position in the training.
    env.seed(int(np.random.SeedSequence([model.seed or 0, model.num_timesteps]).generate_state(1)[0]))
    model._last_obs = env.reset()  # type: ignore[assignment]
    model._last_episode_starts = np.ones((env.num_envs,), dtype=bool)
