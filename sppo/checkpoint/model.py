"""A whole training in one file: what is written, and how it is put back."""

from __future__ import annotations

import inspect
import io
import os
import pickle
import warnings
from collections.abc import Iterable
from importlib import metadata
from typing import Any, TypeVar

import numpy as np
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sppo.checkpoint import files, records
from sppo.checkpoint.files import CheckpointError
from sppo.envs.generators import (
    capture_generators,
    restore_generators,
    restore_space_generators,
    space_generators,
)
from sppo.envs.state import UncapturableError
from sppo.envs.vector_state import capture_vector, rebuild_vector, restore_vector

Algorithm = TypeVar("Algorithm", bound=OnPolicyAlgorithm)

#: Attribute of a resumed model with what ``learn`` has to put back: pending log values, record lengths.
RESUMPTION = "_resumption"
#: Attribute with the generators at the beginning of the iteration (:class:`Checkpointable` sets it).
ITERATION_START = "_iteration_start"
#: What ``save`` leaves out of its files, although the next iteration depends on it.
_LEFT_OUT = ("_last_lstm_states", "_finite_guard")


def save(
    model: OnPolicyAlgorithm,
    path: str | os.PathLike[str],
    tables: Iterable[str | os.PathLike[str]] = (),
) -> None:
    """Write a checkpoint of a model that is between two iterations.

    :param tables: files that grow during training and shall be cut to their present length at resume
    """
    if model.env is None:
        raise CheckpointError("a model without an environment has nothing to resume: use save()")
    start = getattr(model, ITERATION_START, None)
    if start is not None:
        generators = start
    elif model.use_sde:
        raise CheckpointError(
            f"{type(model).__name__} draws new exploration noise before its callbacks are called: "
            "with use_sde=True, use the class of the same name in sppo"
        )
    else:
        generators = capture_generators()
    zipped = io.BytesIO()
    model.save(zipped, exclude=[RESUMPTION, ITERATION_START])
    logger: Logger | None = getattr(model, "_logger", None)
    vector = capture_vector(model.env)
    state = {
        "generators": generators,
        "action_space": space_generators(model.action_space),
        "vector": vector,
        "last_observation": _with_strides(model._last_obs),
        "attributes": {name: getattr(model, name) for name in _LEFT_OUT if hasattr(model, name)},
        "log": None if logger is None else _pending(logger),
        "records": records.positions(logger, tables),
    }
    about = {
        "algorithm": type(model).__name__,
        "timesteps": model.num_timesteps,
        "exact": vector["uncaptured"] is None,
        "versions": {name: metadata.version(name) for name in ("torch", "stable_baselines3", "gymnasium")},
    }
    members = {"model.zip": zipped.getvalue(), "state.pkl": pickle.dumps(state)}
    files.write_atomically(path, files.pack(members, about))


def restore(
    algorithm: type[Algorithm],
    path: str | os.PathLike[str],
    env: VecEnv | None = None,
    device: str = "auto",
) -> Algorithm:
    """The model of a checkpoint, as it was.

    :param env: an environment built like the checkpoint's; may be left out where it can be rebuilt
    """
    _, members = files.read(path)
    state = pickle.loads(members["state.pkl"])
    if env is None:
        env = _rebuilt(state["vector"], os.fspath(path))
    options: dict[str, Any] = {"env": env, "device": device, "force_reset": False}
    if "trust" in inspect.signature(algorithm.load).parameters:
        # The rest of a checkpoint is a pickle, too.
        options["trust"] = True
    model = algorithm.load(io.BytesIO(members["model.zip"]), **options)
    assert model.env is not None
    try:
        simulators = restore_vector(model.env, state["vector"])
    except UncapturableError as error:
        raise CheckpointError(f"cannot resume {os.fspath(path)}: {error}") from error
    restore_space_generators(model.action_space, state["action_space"])
    model._last_obs = _from_strides(state["last_observation"])
    for name, value in state["attributes"].items():
        setattr(model, name, value)
    if not simulators:
        warnings.warn(
            f"the episodes of {os.fspath(path)} are started again, because their state was not captured: "
            f"{state['vector']['uncaptured']}",
            stacklevel=2,
        )
        _restart_episodes(model)
    resumption = {"log": state["log"], "records": state["records"], "restarted": not simulators}
    setattr(model, RESUMPTION, resumption)
    restore_generators(state["generators"])
    return model


def put_back_log(logger: Logger, pending: dict[str, Any] | None) -> None:
    """Give a logger the values that were recorded but not yet written at the checkpoint."""
    if pending is not None:
        logger.name_to_value.update(pending["value"])
        logger.name_to_count.update(pending["count"])
        logger.name_to_excluded.update(pending["excluded"])


def _with_strides(observation: Any) -> Any:
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
    if saved is None or min(saved[1], default=0) < 0:
        return saved if saved is None else saved[0]
    values, strides = saved
    extent = sum((n - 1) * stride for n, stride in zip(values.shape, strides, strict=True)) + values.itemsize
    memory = np.empty(extent, np.uint8)
    observation: np.ndarray = np.ndarray(values.shape, values.dtype, memory, strides=strides)
    observation[...] = values
    return observation


def _rebuilt(vector: dict[str, Any], path: str) -> VecEnv:
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


def _pending(logger: Logger) -> dict[str, Any]:
    return {
        "value": dict(logger.name_to_value),
        "count": dict(logger.name_to_count),
        "excluded": dict(logger.name_to_excluded),
    }


def _restart_episodes(model: OnPolicyAlgorithm) -> None:
    assert model.env is not None
    # New episodes, but the same ones at every attempt: seeded by the position in the training.
    seed = np.random.SeedSequence([model.seed or 0, model.num_timesteps]).generate_state(1)[0]
    model.env.seed(int(seed))
    model._last_obs = model.env.reset()  # type: ignore[assignment]
    model._last_episode_starts = np.ones((model.env.num_envs,), dtype=bool)
