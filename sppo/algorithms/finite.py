"""What happens to numbers that are not finite: which updates are skipped, what ends the training, and what
the error says.

* :func:`finite_inputs` refuses an observation or reward that is not finite, before anything has seen it.
* :class:`FiniteGuard` counts the minibatches whose loss or gradient was not finite. Such a minibatch never
  reaches the weights. After :data:`MAX_SKIPPED_IN_A_ROW` of them in a row training stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

MAX_SKIPPED_IN_A_ROW = 50


class NonFiniteError(FloatingPointError):
    """Training stopped because numbers were not finite; the message names which, and in which environment."""


class FiniteGuard:
    """What is remembered from one update to the next."""

    def __init__(self) -> None:
        #: skipped minibatches in a row
        self.in_a_row = 0

    def record(self, model: Any, skipped: int, looked_at: int) -> None:
        """Account for some minibatches, of which ``skipped`` were not finite.

        :raises NonFiniteError: if :data:`MAX_SKIPPED_IN_A_ROW` is reached
        """
        self.in_a_row = self.in_a_row + skipped if skipped == looked_at else 0
        if self.in_a_row >= MAX_SKIPPED_IN_A_ROW:
            in_a_row, self.in_a_row = self.in_a_row, 0
            raise NonFiniteError(
                f"{in_a_row} minibatches in a row had a loss or gradient that is not finite: "
                f"{diagnose(model)}. None of them changed the weights: the model holds the last good "
                "ones, and model.save(path) keeps them"
            )


def is_about_numbers(error: Exception) -> bool:
    """Whether PyTorch's distributions refused parameters that are not finite."""
    return "to satisfy the constraint" in str(error) or "probability tensor contains" in str(error)


def _cannot_act(model: Any, error: Exception) -> NonFiniteError:
    """What to raise when the policy cannot choose an action, although the observations are finite."""
    cause = _broken_weights(model) or f"the policy's distribution has no finite parameters ({error})"
    return NonFiniteError(f"the policy cannot choose an action: {cause}"[:1000])


def _broken_weights(model: Any) -> str | None:
    for name, parameter in model.policy.named_parameters():
        if not th.isfinite(parameter).all():
            return f"the weights {name} of the policy are not finite, before any update"
    return None


def diagnose(model: Any) -> str:
    """Name the first thing in the chain from observation to gradient that is not finite, and where."""
    broken_weights = _broken_weights(model)
    if broken_weights is not None:
        return broken_weights
    buffer = model.rollout_buffer
    observations = buffer.observations
    parts = observations.items() if isinstance(observations, dict) else [("", observations)]
    suspects = [(f"the observation {key!r}" if key else "the observation", part) for key, part in parts]
    suspects += [
        ("the reward", buffer.rewards),
        ("the action", buffer.actions),
        ("the log-probability of the action", buffer.log_probs),
        ("the value", buffer.values),
        ("the advantage", buffer.advantages),
    ]
    for name, array in suspects:
        place = _first_broken(np.asarray(array), buffer.buffer_size, buffer.n_envs)
        if place is not None:
            step, environment, value = place
            return f"{name} in environment {environment} is {value} (step {step} of the rollout)"
    return (
        "the gradient, while observations, rewards, log-probabilities and advantages of all environments "
        "are finite: they may be too large (advantages up to "
        f"{np.abs(np.asarray(buffer.advantages)).max():.3g}), or the policy's standard deviation too small"
    )


def _first_broken(array: np.ndarray, n_steps: int, n_envs: int) -> tuple[int, int, float] | None:
    """Step, environment and value of the first number that is not finite."""
    if array.dtype.kind != "f":
        return None
    # Until minibatches are drawn the axes are (step, environment); then they are one, environment first.
    flattened = array.shape[:2] != (n_steps, n_envs)
    rows = array.reshape(n_steps * n_envs, -1)
    broken = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if not len(broken):
        return None
    row = rows[broken[0]]
    outer, inner = divmod(int(broken[0]), n_steps if flattened else n_envs)
    step, environment = (inner, outer) if flattened else (outer, inner)
    return step, environment, float(row[~np.isfinite(row)][0])


@contextmanager
def finite_inputs(model: Any) -> Iterator[None]:
    """Refuse observations and rewards that are not finite for as long as this lasts.

    The answers of the environments are looked at where they enter: below a ``VecNormalize``, whose running
    statistics would keep a NaN for ever and whose clip would hide an infinity. Weights and statistics are
    then those of the step before, and the next ``learn`` starts new episodes.

    :raises NonFiniteError: at the first such number, or if the policy cannot choose an action for its own
    """
    with ExitStack() as watched:
        for layer in _entrances(model.env):
            watched.enter_context(_watched(layer, model))
        try:
            yield
        except NonFiniteError:
            model._last_obs = None
            raise
        except (ValueError, RuntimeError) as error:
            if not is_about_numbers(error):
                raise
            raise _cannot_act(model, error) from error


def _entrances(env: VecEnv | None) -> list[VecEnv]:
    """Where numbers enter: below the innermost normalisation, and above wrappers that come after it."""
    if env is None:
        return []
    layers = [env]
    while isinstance(layers[-1], VecEnvWrapper):
        layers.append(layers[-1].venv)
    below = [layer.venv for layer in layers if isinstance(layer, VecNormalize)][-1:]
    return below if isinstance(env, VecNormalize) else [env, *below]


@contextmanager
def _watched(layer: VecEnv, model: Any) -> Iterator[None]:
    """Answers of one vectorised environment, looked at by functions that stand before its methods."""
    own = {name: value for name, value in vars(layer).items() if name in ("reset", "step_wait")}
    reset, step_wait = layer.reset, layer.step_wait

    def checked_reset() -> Any:
        observations = reset()
        _look_at(observations, model.num_timesteps, "observation")
        return observations

    def checked_step_wait() -> VecEnvStepReturn:
        observations, rewards, dones, infos = step_wait()
        step = model.num_timesteps + layer.num_envs
        _look_at(observations, step, "observation")
        _look_at(rewards, step, "reward")
        if np.count_nonzero(dones):
            for index in np.flatnonzero(dones):
                _look_at(infos[index].get("terminal_observation"), step, "last observation", int(index))
        return observations, rewards, dones, infos

    layer.reset, layer.step_wait = checked_reset, checked_step_wait  # type: ignore[method-assign]
    try:
        yield
    finally:
        del layer.reset, layer.step_wait
        vars(layer).update(own)


def _look_at(values: Any, step: int, name: str, environment: int | None = None) -> None:
    """Raise if a number is not finite.

    :param values: an array, or something that NumPy makes one of, or a dictionary of them
    :param environment: the one that they belong to; ``None`` if there is a row for each environment
    """
    if isinstance(values, dict):
        for key, part in values.items():
            _look_at(part, step, f"{name} {key!r}", environment)
        return
    array = np.asarray(values)
    # Twice as fast as .all() for the small arrays of every step.
    if array.dtype.kind != "f" or np.count_nonzero(np.isfinite(array)) == array.size:
        return
    place = [int(index) for index in np.argwhere(~np.isfinite(array))[0]]
    value = array[tuple(place)]
    if environment is None:
        environment, *place = place
    where = "".join(f"[{index}]" for index in place)
    raise NonFiniteError(
        f"the {name}{where} of environment {environment} is {value} at step {step}. The model holds its last "
        "good weights, and model.save(path) keeps them. Mend the environment, or put a wrapper around it "
        "that says what such numbers mean"
    )
