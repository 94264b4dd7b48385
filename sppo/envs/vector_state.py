"""The state of a vectorised environment: its wrappers (normalisation and such) and its environments."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import types
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common import monitor, vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from sppo.envs.factory import InProcessVecEnv
from sppo.envs.group import EnvFn, EnvGroup
from sppo.envs.state import UncapturableError
from sppo.envs.worker import WorkerProcess
from sppo.envs.worker_vec_env import WorkerVecEnv

State = dict[str, Any]
#: What a new vectorised environment has of its own and keeps.
_OWN = {"venv", "envs", "class_attributes", "metadata", "render_mode", "results_writer"}
_OWN |= {"action_space", "observation_space"}
#: Ways to step environments that stand for each other: a checkpoint of one is resumed with any of them.
_STEPPERS = {cls.__name__: cls for cls in (DummyVecEnv, InProcessVecEnv, WorkerVecEnv)}
#: All that those, and Stable-Baselines3's own processes, know besides their environments.
_STEPPERS_STATE = ("_seeds", "_options", "reset_infos")


def capture_vector(venv: VecEnv) -> State:
    """Everything about a vectorised environment that its next step depends on.

    ``"environments"`` is ``None`` where the simulators cannot be captured; ``"uncaptured"`` then says
    why, and the episodes have to be started again. ``"left_out"`` names attributes of the wrappers that
    cannot be pickled.
    """
    chain = vector_layers(venv)
    left_out: list[str] = []
    state: State = {
        "types": [type(layer).__name__ for layer in chain],
        "attributes": [_attributes(layer, left_out) for layer in chain],
        "left_out": left_out,
        "environments": None,
        "generators": [],
        "uncaptured": None,
        "recipe": _recipe(chain),
    }
    try:
        state.update(_capture_environments(chain[-1]))
    except UncapturableError as error:
        state["uncaptured"] = str(error)
    return state


def restore_vector(venv: VecEnv, state: State) -> bool:
    """Put a captured state into an equal vectorised environment.

    :return: whether the simulators are back too; if not, the caller has to reset the environment
    :raises UncapturableError: if the environment is built otherwise than the captured one
    """
    chain = vector_layers(venv)
    found = [type(layer).__name__ for layer in chain]
    captured = state["environments"]
    if captured is not None and venv.num_envs != len(captured):
        raise UncapturableError(
            f"the checkpoint has {len(captured)} environments, the given one {venv.num_envs}"
        )
    if _kinds(found) != _kinds(state["types"]):
        raise UncapturableError(
            f"the checkpoint's environment is {state['types']}, the given one {found}: build it the same way"
        )
    for layer, pickled in zip(chain, state["attributes"], strict=True):
        attributes = pickle.loads(pickled)
        for name in _STEPPERS_STATE if _only_steps(layer) else attributes:
            setattr(layer, name, attributes[name])
    if captured is None:
        return False
    processes = _processes(chain[-1])
    generators = [None, *state.get("generators", [])]
    if any(generators) and len(generators) != len(processes):
        raise UncapturableError(
            "the environments draw from random generators of the processes that step them: make them with "
            f'backend="subproc" and {len(generators)} processes (OMP_NUM_THREADS), as before'
        )
    for place, process in enumerate(processes):
        process.call("restore", captured[process.places], generators[place] if any(generators) else None)
    if not processes:
        for index, environment_state in enumerate(captured):
            chain[-1].env_method("restore_state", environment_state, indices=[index])
    return True


def rebuild_vector(state: State) -> VecEnv | None:
    """A vectorised environment built as the captured one was; ``None`` if that is not known.

    Known are registered environments, in a ``Monitor`` or not, in a ``VecNormalize`` or not: what
    Stable-Baselines3 makes from an environment's name.
    """
    recipe = state["recipe"]
    if recipe is None:
        return None

    # Here, so that a worker gets it by value, and need not import this module with all of Stable-Baselines3.
    def make(spec: EnvSpec, monitored: bool) -> gym.Env:
        env = gym.make(spec)
        return Monitor(env) if monitored else env

    env_fns: list[EnvFn] = [functools.partial(make, *each) for each in recipe["environments"]]
    cls = _STEPPERS[recipe["class"]] if isinstance(recipe["class"], str) else recipe["class"]
    venv: VecEnv = cls(env_fns, by_value=[monitor]) if cls is WorkerVecEnv else cls(env_fns)
    return VecNormalize(venv) if recipe["normalized"] else venv


def vector_layers(venv: VecEnv) -> list[VecEnv]:
    """The wrappers of a vectorised environment from the outermost to the one that steps."""
    chain = [venv]
    while isinstance(chain[-1], vec_env.VecEnvWrapper):
        chain.append(chain[-1].venv)
    return chain


def _kinds(names: list[str]) -> list[str]:
    return ["environments" if name in _STEPPERS else name for name in names]


def _only_steps(layer: VecEnv) -> bool:
    return type(layer).__name__ in _STEPPERS or type(layer) is SubprocVecEnv


def _attributes(layer: VecEnv, left_out: list[str]) -> bytes:
    """The pickled attributes of a layer; those that cannot be are named in ``left_out``."""
    own = [name for name in vars(layer) if name not in _OWN]
    kept = {}
    for name in _STEPPERS_STATE if _only_steps(layer) else own:
        value = getattr(layer, name)
        if isinstance(value, (types.FunctionType, types.MethodType)):
            continue
        if reason := _why_not_pickled(value):
            left_out.append(f"{type(layer).__name__}.{name} ({reason})")
        else:
            kept[name] = value
    return pickle.dumps(kept)


def _why_not_pickled(value: object) -> str | None:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception as error:  # pickling runs arbitrary code
        return str(error) or type(error).__name__
    return None


def _processes(base: VecEnv) -> list[EnvGroup | WorkerProcess]:
    """The environments by the processes that hold them, this one first; none if they are out of reach."""
    if isinstance(base, WorkerVecEnv):
        return base.processes
    environments = getattr(base, "envs", None) or [None]
    return [EnvGroup(environments)] if all(isinstance(env, gym.Env) for env in environments) else []


def _capture_environments(base: VecEnv) -> State:
    captured = [process.call("capture") for process in _processes(base)]
    if captured:
        # This process's own generators are the training's.
        generators = [generators for _, generators in captured[1:]]
        return {"environments": [each for states, _ in captured for each in states], "generators": generators}
    try:
        # Asked first, because calling a method that is not there ends SubprocVecEnv's processes.
        stateful = base.has_attr("capture_state")
    except Exception:  # vectorised environments of other libraries need not know the question
        stateful = False
    if not stateful:
        raise UncapturableError(
            f"{type(base).__name__} keeps its environments elsewhere; they can only be captured if each is "
            "wrapped, outermost, in sppo.checkpoint.StatefulEnv"
        )
    return {"environments": base.env_method("capture_state")}


def _recipe(chain: list[VecEnv]) -> State | None:
    """How to build the environment again, if that can be told from looking at it."""
    # Stable-Baselines3 itself puts VecTransposeImage around image environments, outermost.
    *wrappers, base = [type(layer) for layer in chain if type(layer) is not vec_env.VecTransposeImage]
    if base.__name__ not in _STEPPERS or wrappers not in ([], [VecNormalize]):
        return None
    try:
        environments = [_monitored(spec) for spec in chain[-1].get_attr("spec")]
    except Exception:  # a description may fail to be made, or to be sent
        return None
    recipe = {"class": base.__name__, "normalized": bool(wrappers), "environments": environments}
    return None if _why_not_pickled(recipe) else recipe


def _monitored(spec: EnvSpec) -> tuple[EnvSpec, bool]:
    """A description without an outermost ``Monitor``, whose arguments it lacks, and whether there was one."""
    wrappers = spec.additional_wrappers
    if not wrappers or wrappers[-1].entry_point != f"{Monitor.__module__}:Monitor":
        return spec, False
    return dataclasses.replace(spec, additional_wrappers=wrappers[:-1]), True
