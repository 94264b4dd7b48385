"""The full state of one environment: taken out, put back, and checked by replay.

An environment is a chain of wrappers around a simulator. The attributes of every layer are pickled
together (so that objects shared between layers stay shared), except for what must stay where it is:

* MuJoCo's ``MjData`` is pickled aside and put back with ``mj_copyData``. ``mj_setState`` is not enough:
  rewards read derived quantities (``xpos``, ``cfrc_ext``) that it does not carry.
* spaces keep their identity, since the algorithm shares them; only their generators are put back.
* renderers, windows and functions stay the new environment's own.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

if TYPE_CHECKING:
    from mujoco import MjData

from sppo.envs.generators import (
    capture_generators,
    restore_generators,
    restore_space_generators,
    space_generators,
)

#: Attributes that describe the environment, but are not part of its state.
_DESCRIPTION = {"env", "spec", "_cached_spec", "metadata", "_metadata", "results_writer"}
_DESCRIPTION |= {"_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs"}
#: Attributes that usually show the environment, and are state only if they hold plain data.
_DISPLAY = {"mujoco_renderer", "renderer", "viewer", "window", "screen", "surf", "clock", "isopen"}
_PLAIN = (bool, int, float, complex, str, bytes, np.ndarray, np.generic)
#: objects that stay where they are, by their id, and where that is
_Live = dict[int, tuple]
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type)


class UncapturableError(RuntimeError):
    """An environment whose state cannot be captured; the message names what is in the way."""


def layers(env: gym.Env) -> list[gym.Env]:
    """An environment's wrappers from the outermost to the simulator itself."""
    chain = [env]
    while isinstance(chain[-1], gym.Wrapper):
        chain.append(chain[-1].env)
    return chain


def capture_environment(env: gym.Env) -> bytes:
    """The environment's whole state, to be put into an equal one by :func:`restore_environment`.

    :raises UncapturableError: if some of it cannot be pickled
    """
    chain = layers(env)
    live: _Live = {id(layer): ("layer", index) for index, layer in enumerate(chain)}
    attributes: list[dict[str, object]] = [{} for _ in chain]
    in_place: dict[str, dict[tuple[int, str], object]] = {"spaces": {}, "models": {}, "data": {}}
    for index, name, value in _attributes(chain):
        kind = _kept_in_place(value)
        if kind is None:
            attributes[index][name] = value
        else:
            live[id(value)] = ("attribute", index, name)
            state = space_generators(value) if isinstance(value, spaces.Space) else pickle.dumps(value)
            in_place[kind][index, name] = state
    try:
        return _dumps({"types": _type_names(chain), "attributes": attributes, **in_place}, live)
    except Exception as error:  # pickling runs arbitrary code
        raise UncapturableError(_culprits(chain, attributes, live, error)) from error


def restore_environment(env: gym.Env, captured: bytes) -> None:
    """Put a captured state into an environment that was made in the same way.

    :raises UncapturableError: if the environment has other layers than the captured one
    """
    chain = layers(env)
    state = _loads(captured, chain)
    found = _type_names(chain)
    if found != state["types"]:
        raise UncapturableError(f"the state is of {state['types']}, but the environment is {found}")
    # Models first: data belongs to a model. They rarely change; keeping one keeps every reference to it.
    for (index, name), pickled in state["models"].items():
        if pickle.dumps(getattr(chain[index], name, None)) != pickled:
            setattr(chain[index], name, pickle.loads(pickled))
    for (index, name), pickled in state["data"].items():
        _restore_data(chain[index], name, pickle.loads(pickled))
    for (index, name), generators in state["spaces"].items():
        restore_space_generators(getattr(chain[index], name), generators)
    for layer, attributes in zip(chain, state["attributes"], strict=True):
        for _, name, value in list(_attributes([layer])):
            if name not in attributes and _kept_in_place(value) is None:
                delattr(layer, name)
        for name, value in attributes.items():
            setattr(layer, name, value)


def why_inexact(make: Callable[[], gym.Env], steps: int = 60, seed: int = 0) -> str | None:
    """Why environments made by ``make`` cannot be resumed exactly; ``None`` if they can.

    A state that pickles without complaint may still be incomplete (hidden in a C library, or rebuilt
    from constructor arguments). So one environment is captured in the middle of an episode, a second
    one continues from that state, and both must go the same way, over the ends of episodes too.
    """
    untouched = capture_generators()
    first, second = make(), make()
    try:
        first.reset(seed=seed)
        first.action_space.seed(seed)
        actions = [first.action_space.sample() for _ in range(steps)]
        _play(first, actions[: steps // 3])
        captured, generators = capture_environment(first), capture_generators()
        expected = _play(first, actions)
        second.reset(seed=seed + 1)
        restore_environment(second, captured)
        restore_generators(generators)
        if not data_equivalence(_play(second, actions), expected, exact=True):
            return "an environment continued from its captured state goes another way than the original"
    except UncapturableError as error:
        return str(error)
    finally:
        first.close()
        second.close()
        restore_generators(untouched)
    return None


class StatefulEnv(gym.Wrapper):
    """Lets an environment in another process be captured: wrap it, outermost, inside ``SubprocVecEnv``."""

    def capture_state(self) -> bytes:
        """See :func:`capture_environment`."""
        return capture_environment(self)

    def restore_state(self, captured: bytes) -> None:
        """See :func:`restore_environment`."""
        restore_environment(self, captured)


def _play(env: gym.Env, actions: list[object]) -> list[object]:
    """What the environment answers to the actions, starting a new episode whenever one ends."""
    answers: list[object] = []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        ended = bool(terminated or truncated)
        # Copies: an environment may give out the same array at every step.
        answers.append(copy.deepcopy((observation, float(reward), bool(terminated), ended)))
        if ended:
            answers.append(copy.deepcopy(env.reset()[0]))
    return answers


def _attributes(chain: list[gym.Env]) -> Iterator[tuple[int, str, object]]:
    """The attributes that are, or may hold, state: (layer's index, name, value)."""
    for index, layer in enumerate(chain):
        for name, value in vars(layer).items():
            if name in _DESCRIPTION or isinstance(value, _FUNCTIONS):
                continue
            if name not in _DISPLAY or isinstance(value, _PLAIN):
                yield index, name, value


def _kept_in_place(value: object) -> Literal["spaces", "models", "data"] | None:
    """What an attribute is that is brought up to date instead of being replaced; ``None`` for all others."""
    if isinstance(value, spaces.Space):
        return "spaces"
    # Without the module there can be no such object, and MuJoCo is optional.
    mujoco = sys.modules.get("mujoco")
    if mujoco is None or not isinstance(value, (mujoco.MjModel, mujoco.MjData)):
        return None
    return "models" if isinstance(value, mujoco.MjModel) else "data"


def _restore_data(layer: gym.Env, name: str, data: MjData) -> None:
    import mujoco

    current = getattr(layer, name, None)
    model = next((value for value in vars(layer).values() if _kept_in_place(value) == "models"), None)
    if current is None or model is None or current.model is not model:
        setattr(layer, name, data)
    else:
        mujoco.mj_copyData(current, model, data)


def _type_names(chain: list[gym.Env]) -> list[str]:
    return [f"{type(layer).__module__}.{type(layer).__qualname__}" for layer in chain]


def _dumps(state: object, live: _Live) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> tuple | None:
            return live.get(id(obj))

    buffer = io.BytesIO()
    Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(state)
    return buffer.getvalue()


def _loads(captured: bytes, chain: list[gym.Env]) -> Any:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: tuple) -> object:
            layer = chain[pid[1]]
            return layer if pid[0] == "layer" else getattr(layer, pid[2], None)

    return Unpickler(io.BytesIO(captured)).load()


def _culprits(
    chain: list[gym.Env], attributes: list[dict[str, object]], live: _Live, error: Exception
) -> str:
    """Which attributes do not pickle, by name."""
    reasons = []
    for layer, values in zip(chain, attributes, strict=True):
        for name, value in values.items():
            try:
                _dumps(value, live)
            except Exception as reason:
                reasons.append(f"{type(layer).__name__}.{name} ({reason})")
    return "cannot capture " + (", ".join(reasons) or f"the environment ({error})")
