"""The full state of one environment: taken out, put back, and checked by replay.

An environment is a chain of wrappers around a simulator. The attributes of every layer are pickled
together (so that objects shared between layers stay shared), except for what must stay where it is:

* MuJoCo's ``MjData`` is pickled aside and put back with ``mj_copyData``. ``mj_setState`` is not enough:
  rewards read derived quantities (``xpos``, ``cfrc_ext``) that it does not carry.
* spaces keep their identity, since the algorithm shares them; only their generators are put back.
* renderers, windows and functions stay the new environment's own.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sppo.envs.generators import (
    capture_generators,
    restore_generators,
    restore_space_generators,
    space_generators,
)

#: Attributes that describe the environment, but are not part of its state.
_DESCRIPTION = frozenset(
    [
        "env",
        "spec",
        "_cached_spec",
        "metadata",
        "_metadata",
        "_saved_kwargs",
        "_ezpickle_args",
        "_ezpickle_kwargs",
        "results_writer",
    ]
)
#: Attributes that usually show the environment, and are state only if they hold plain data.
_DISPLAY = frozenset(["mujoco_renderer", "renderer", "viewer", "window", "screen", "surf", "clock", "isopen"])
_PLAIN = (bool, int, float, complex, str, bytes, np.ndarray, np.generic)
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
    live: dict[int, tuple] = {id(layer): ("layer", index) for index, layer in enumerate(chain)}
    state: dict[str, Any] = {
        "types": [_type_name(layer) for layer in chain],
        "attributes": [{} for _ in chain],
        "spaces": {},
        "models": {},
        "data": {},
    }
    for index, name, value in _attributes(chain):
        if isinstance(value, spaces.Space):
            live[id(value)] = ("attribute", index, name)
            state["spaces"][index, name] = space_generators(value)
        elif _is_mujoco(value, "MjModel"):
            live[id(value)] = ("attribute", index, name)
            state["models"][index, name] = pickle.dumps(value)
        elif _is_mujoco(value, "MjData"):
            live[id(value)] = ("attribute", index, name)
            state["data"][index, name] = pickle.dumps(value)
        else:
            state["attributes"][index][name] = value
    try:
        return _dumps(state, live)
    except Exception as error:  # pickling runs arbitrary code
        raise UncapturableError(_culprits(chain, live, error)) from error


def restore_environment(env: gym.Env, captured: bytes) -> None:
    """Put a captured state into an environment that was made in the same way.

    :raises UncapturableError: if the environment has other layers than the captured one
    """
    chain = layers(env)
    state = _loads(captured, chain)
    found = [_type_name(layer) for layer in chain]
    if found != state["types"]:
        raise UncapturableError(f"the state is of {state['types']}, but the environment is {found}")
    # Models first: data belongs to a model.
    for (index, name), pickled in state["models"].items():
        _restore_model(chain[index], name, pickled)
    for (index, name), pickled in state["data"].items():
        _restore_data(chain[index], name, pickled)
    for (index, name), generators in state["spaces"].items():
        restore_space_generators(getattr(chain[index], name), generators)
    for layer, attributes in zip(chain, state["attributes"], strict=True):
        for _, name, value in list(_attributes([layer])):
            if name not in attributes and not _stays(value):
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
        if _play(second, actions) != expected:
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


def _play(env: gym.Env, actions: list[Any]) -> list[Any]:
    """What the environment answers to the actions, starting a new episode whenever one ends."""
    answers: list[Any] = []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        answers.append((_plain(observation), float(reward).hex(), bool(terminated), bool(truncated)))
        if terminated or truncated:
            answers.append(_plain(env.reset()[0]))
    return answers


def _plain(observation: Any) -> Any:
    if isinstance(observation, dict):
        return [(key, _plain(value)) for key, value in sorted(observation.items())]
    if isinstance(observation, tuple):
        return [_plain(value) for value in observation]
    array = np.asarray(observation)
    return array.dtype.str, array.shape, array.tobytes()


def _attributes(chain: list[gym.Env]) -> Iterator[tuple[int, str, Any]]:
    """The attributes that are, or may hold, state: (layer's index, name, value)."""
    for index, layer in enumerate(chain):
        for name, value in vars(layer).items():
            if name in _DESCRIPTION or isinstance(value, _FUNCTIONS):
                continue
            if name not in _DISPLAY or isinstance(value, _PLAIN):
                yield index, name, value


def _stays(value: Any) -> bool:
    """Whether an attribute is restored in place instead of being replaced."""
    return isinstance(value, spaces.Space) or _is_mujoco(value, "MjModel") or _is_mujoco(value, "MjData")


def _is_mujoco(value: Any, kind: str) -> bool:
    # Without the module there can be no such object, and MuJoCo is optional.
    mujoco = sys.modules.get("mujoco")
    return mujoco is not None and isinstance(value, getattr(mujoco, kind))


def _restore_model(layer: gym.Env, name: str, pickled: bytes) -> None:
    current = getattr(layer, name, None)
    # Models rarely change during training; keeping the object keeps every reference to it.
    if current is None or pickle.dumps(current) != pickled:
        setattr(layer, name, pickle.loads(pickled))


def _restore_data(layer: gym.Env, name: str, pickled: bytes) -> None:
    import mujoco

    data = pickle.loads(pickled)
    current = getattr(layer, name, None)
    model = next((value for value in vars(layer).values() if _is_mujoco(value, "MjModel")), None)
    if current is None or model is None or current.model is not model:
        setattr(layer, name, data)
    else:
        mujoco.mj_copyData(current, model, data)


def _type_name(layer: gym.Env) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def _dumps(state: Any, live: dict[int, tuple]) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return live.get(id(obj))

    buffer = io.BytesIO()
    Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(state)
    return buffer.getvalue()


def _loads(captured: bytes, chain: list[gym.Env]) -> Any:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            layer = chain[pid[1]]
            return layer if pid[0] == "layer" else getattr(layer, pid[2], None)

    return Unpickler(io.BytesIO(captured)).load()


def _culprits(chain: list[gym.Env], live: dict[int, tuple], error: Exception) -> str:
    """Which attributes do not pickle, by name."""
    reasons = []
    for index, name, value in _attributes(chain):
        if _stays(value):
            continue
        try:
            _dumps(value, live)
        except Exception as reason:
            reasons.append(f"{type(chain[index]).__name__}.{name} ({reason})")
    return "cannot capture " + (", ".join(reasons) or f"the environment ({error})")
