"""What happens to numbers that are not finite: which updates are skipped, what ends the training, and what
the error says.

* :func:`finite_inputs` refuses an observation or reward that is not finite, before anything has seen it.
* :class:`FiniteGuard` counts the minibatches whose loss or gradient was not finite. Such a minibatch never
  reaches the weights. After :data:`MAX_SKIPPED_IN_A_ROW` of them in a row training stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sppo.envs.vector_state import vector_layers

MAX_SKIPPED_IN_A_ROW = 50


class NonFiniteError(FloatingPointError):
    """Training stopped because numbers were not finite; the message names which, and in which environment."""


class FiniteGuard:
    """What is remembered from one update to the next."""

    def __init__(self) -> None:
        #: skipped minibatches in a row
        self.in_a_row = 0

    def record(self, model: OnPolicyAlgorithm, skipped: int, looked_at: int) -> None:
        """Account for some minibatches, of which ``skipped`` were not finite."""
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


def broken_weights(model: OnPolicyAlgorithm) -> str | None:
    """The name of the first weights that are not finite."""
    parameters = model.policy.named_parameters()
    return next((name for name, weights in parameters if not th.isfinite(weights).all()), None)


def diagnose(model: OnPolicyAlgorithm, otherwise: str | None = None) -> str:
    """Name the first thing in the chain from observation to gradient that is not finite, and where.

    :param otherwise: what to say if the weights are in order and nothing was collected yet
    """
    if name := broken_weights(model):
        return f"the weights {name} of the policy are not finite, before any update"
    if otherwise is not None:
        return otherwise
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
    n_steps, n_envs = buffer.buffer_size, buffer.n_envs
    for name, array in suspects:
        rows = array.reshape(n_steps * n_envs, -1)
        for row, column in np.argwhere(~np.isfinite(rows)):
            # The axes are (step, environment); once minibatches were drawn they are one, environment first.
            in_order = array.shape[:2] == (n_steps, n_envs)
            step, environment = divmod(row, n_envs) if in_order else divmod(row, n_steps)[::-1]
            value = rows[row, column]
            return f"{name} in environment {environment} is {value} (step {step} of the rollout)"
    return (
        "the gradient, while observations, rewards, log-probabilities and advantages of all environments "
        f"are finite: they may be too large (advantages up to {np.abs(buffer.advantages).max():.3g}), or the "
        "policy's standard deviation too small"
    )


@contextmanager
def finite_inputs(model: OnPolicyAlgorithm) -> Iterator[None]:
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
            cause = diagnose(model, f"the policy's distribution has no finite parameters ({error})")
            raise NonFiniteError(f"the policy cannot choose an action: {cause}"[:1000]) from error


def _entrances(env: VecEnv | None) -> list[VecEnv]:
    """Where numbers enter: below the innermost normalisation, and above wrappers that come after it."""
    if env is None:
        return []
    below = [layer.venv for layer in vector_layers(env) if isinstance(layer, VecNormalize)][-1:]
    return below if isinstance(env, VecNormalize) else [env, *below]


@contextmanager
def _watched(layer: VecEnv, model: OnPolicyAlgorithm) -> Iterator[None]:
    """The answers of ``layer`` are looked at by functions that stand before its methods."""
    own = {name: value for name, value in vars(layer).items() if name in ("reset", "step_wait")}
    reset, step_wait = layer.reset, layer.step_wait

    def checked_reset() -> VecEnvObs:
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


def _look_at(values: object, step: int, name: str, environment: int | None = None) -> None:
    """Refuse numbers that are not finite: of one environment, or with a row for each."""
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
