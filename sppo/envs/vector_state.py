"""The state of a vectorised environment: its wrappers (normalisation and such) and its environments."""

from __future__ import annotations

import pickle
import types
from typing import Any

import gymnasium as gym
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecNormalize,
    VecTransposeImage,
)

from sppo.envs.state import (
    UncapturableError,
    capture_environment,
    restore_environment,
)

#: What a new vectorised environment has of its own and keeps.
_OWN = frozenset(
    {
        "venv",
        "envs",
        "class_attributes",
        "action_space",
        "observation_space",
        "metadata",
        "render_mode",
        "results_writer",
        "remotes",
        "work_remotes",
        "processes",
        "closed",
        "waiting",
    }
)


def capture_vector(venv: VecEnv) -> dict[str, Any]:
    """Everything about a vectorised environment that its next step depends on.

    ``"environments"`` is ``None`` where the simulators cannot be captured; ``"uncaptured"`` then says
    why, and the episodes have to be started again.
    """
    chain = vector_layers(venv)
    state: dict[str, Any] = {
        "types": [type(layer).__name__ for layer in chain],
        "attributes": [_attributes(layer) for layer in chain],
        "environments": None,
        "uncaptured": None,
        "recipe": None,
    }
    try:
        state["environments"] = _capture_environments(chain[-1])
    except UncapturableError as error:
        state["uncaptured"] = str(error)
    state["recipe"] = _recipe(chain)
    return state


def restore_vector(venv: VecEnv, state: dict[str, Any]) -> bool:
    """Put a captured state into an equal vectorised environment.

    :return: whether the simulators are back too; if not, the caller has to reset the environment
    :raises UncapturableError: if the environment is built otherwise than the captured one
    """
    chain = vector_layers(venv)
    found = [type(layer).__name__ for layer in chain]
    if found != state["types"]:
        raise UncapturableError(
            f"the checkpoint's environment is {state['types']}, the given one {found}: build it the same way"
        )
    for layer, attributes in zip(chain, state["attributes"], strict=True):
        for name, value in pickle.loads(attributes).items():
            setattr(layer, name, value)
    captured = state["environments"]
    if captured is None:
        return False
    base = chain[-1]
    environments = getattr(base, "envs", None)
    if environments is None:
        for index, environment_state in enumerate(captured):
            base.env_method("restore_state", environment_state, indices=[index])
    else:
        if len(environments) != len(captured):
            raise UncapturableError(
                f"the checkpoint has {len(captured)} environments, the given one {len(environments)}"
            )
        for env, environment_state in zip(environments, captured, strict=True):
            restore_environment(env, environment_state)
    return True


def rebuild_vector(state: dict[str, Any]) -> VecEnv | None:
    """A vectorised environment built as the captured one was; ``None`` if that is not known.

    Known are registered environments, in a ``Monitor`` or not, in this process, in a
    ``VecNormalize`` or not: what Stable-Baselines3 makes from an environment's name.
    """
    recipe = state["recipe"]
    if recipe is None:
        return None

    def make(spec: Any, monitored: bool) -> gym.Env:
        env = gym.make(spec)
        return Monitor(env) if monitored else env

    venv: VecEnv = recipe["class"]([lambda pair=pair: make(*pair) for pair in recipe["environments"]])
    return VecNormalize(venv) if recipe["normalized"] else venv


def vector_layers(venv: VecEnv) -> list[VecEnv]:
    """The wrappers of a vectorised environment from the outermost to the one that steps."""
    chain = [venv]
    while isinstance(chain[-1], VecEnvWrapper):
        chain.append(chain[-1].venv)
    return chain


def _attributes(layer: VecEnv) -> bytes:
    attributes = {
        name: value
        for name, value in vars(layer).items()
        if name not in _OWN and not isinstance(value, (types.FunctionType, types.MethodType))
    }
    try:
        return pickle.dumps(attributes)
    except Exception:  # pickling runs arbitrary code; keep what can be kept
        return pickle.dumps({name: value for name, value in attributes.items() if _pickles(value)})


def _pickles(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # pickling runs arbitrary code
        return False
    return True


def _capture_environments(base: VecEnv) -> list[bytes]:
    environments = getattr(base, "envs", None)
    if environments is not None and all(isinstance(env, gym.Env) for env in environments):
        return [capture_environment(env) for env in environments]
    # Asked first, because calling a method that is not there ends SubprocVecEnv's processes.
    if not _has_method(base, "capture_state"):
        raise UncapturableError(
            f"{type(base).__name__} keeps its environments elsewhere; they can only be captured if each is "
            "wrapped, outermost, in sppo.checkpoint.StatefulEnv"
        )
    return base.env_method("capture_state")


def _has_method(base: VecEnv, name: str) -> bool:
    try:
        return base.has_attr(name)
    except Exception:  # vectorised environments of other libraries need not know the question
        return False


def _recipe(chain: list[VecEnv]) -> dict[str, Any] | None:
    """How to build the environment again, if that can be told from looking at it."""
    # Stable-Baselines3 itself puts VecTransposeImage around image environments, outermost.
    wrappers = [layer for layer in chain[:-1] if type(layer) is not VecTransposeImage]
    base = chain[-1]
    if not isinstance(base, DummyVecEnv) or [type(layer) for layer in wrappers] not in ([], [VecNormalize]):
        return None
    environments = []
    for env in base.envs:
        monitored = type(env) is Monitor
        inner = env.env if isinstance(env, Monitor) else env
        spec = inner.spec
        if spec is None:
            return None
        environments.append((spec, monitored))
    recipe = {"class": type(base), "normalized": bool(wrappers), "environments": environments}
    return recipe if _pickles(recipe) else None
