"""What happens to numbers that are not finite: which updates are skipped, which samples are repaired, when
training stops, and what the error says.

Two guards, shared by both engines:

* :class:`FiniteGuard` counts the minibatches whose loss or gradient was not finite. Such a minibatch never
  reaches the weights. After :data:`MAX_SKIPPED_IN_A_ROW` of them in a row training stops.
* :class:`RolloutWatch` stands between an environment and the rollout buffer. A broken observation is
  replaced by the one before it and a broken reward by zero, so that one bad step spoils neither the
  episode's advantages nor the running statistics of a VecNormalize, which would keep a NaN for ever. After
  :data:`MAX_BROKEN_IN_A_ROW` broken steps of one environment in a row training stops.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecNormalize

MAX_SKIPPED_IN_A_ROW = 50
MAX_BROKEN_IN_A_ROW = 100

Observations = np.ndarray | dict[str, np.ndarray]


class NonFiniteError(FloatingPointError):
    """Training stopped because numbers were not finite; the message names which, and in which environment."""


class FiniteGuard:
    """What is remembered from one update and one rollout to the next."""

    def __init__(self) -> None:
        #: skipped minibatches in a row
        self.in_a_row = 0
        #: broken steps in a row, of each environment
        self.broken_steps = np.zeros(0, np.int64)
        self.told = False

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


def cannot_act(model: Any, error: Exception) -> NonFiniteError:
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


class RolloutWatch:
    """Stands in for a callback, and repairs each step of the environments before the callback sees it.

    Both collection loops give their local variables to the callback after the environments' step, and
    store those variables after it.

    :param model: the algorithm that collects
    :param callback: the callback to pass everything on to
    """

    def __init__(self, model: Any, callback: Any) -> None:
        self._model = model
        self._callback = callback
        # What is called at every step goes straight to the callback, which keeps the variables.
        self.update_locals = callback.update_locals
        self._normalizer: VecNormalize | None = model._vec_normalize_env
        self._guard: FiniteGuard = model._finite_guard
        if len(self._guard.broken_steps) != model.n_envs:
            self._guard.broken_steps = np.zeros(model.n_envs, np.int64)
        self._was_broken = bool(self._guard.broken_steps.any())
        self._repaired = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._callback, name)

    def on_rollout_start(self) -> None:
        """Keep the running statistics, and look at what the environments' reset gave."""
        if self._normalizer is not None:
            self._kept = copy.deepcopy(_statistics(self._normalizer))
        observations = self._model._last_obs
        if _broken_environments(observations) is not None:
            self._model._last_obs = _filled(observations, observations)
        self._callback.on_rollout_start()

    def on_step(self) -> bool:
        """Repair the step if need be, then ask the callback."""
        variables = self._callback.locals
        if self._normalizer is None:
            seen, earned = variables["new_obs"], variables["rewards"]
        else:
            # Normalising hides infinities, and spreads a NaN to all environments.
            seen, earned = self._normalizer.old_obs, self._normalizer.old_reward
        broken_obs = _broken_environments(seen)
        if broken_obs is not None or not _all_finite(earned):
            self._repair(broken_obs, ~np.isfinite(earned))
        elif self._was_broken:
            self._was_broken = False
            self._guard.broken_steps[:] = 0
        if np.count_nonzero(variables["dones"]):
            self._repair_terminal_observations()
        return self._callback.on_step()

    def on_rollout_end(self) -> None:
        """Report, then tell the callback."""
        if self._repaired:
            self._model.logger.record("rollout/repaired_steps", self._repaired)
        self._callback.on_rollout_end()

    def _repair(self, broken_obs: np.ndarray | None, broken_rewards: np.ndarray) -> None:
        new_obs, rewards = self._callback.locals["new_obs"], self._callback.locals["rewards"]
        broken_obs = np.zeros_like(broken_rewards) if broken_obs is None else broken_obs
        self._was_broken = True
        judged = new_obs
        if self._normalizer is not None:
            _restore(self._normalizer, self._kept)
            raw = self._normalizer.old_obs
            again = self._normalizer.normalize_obs(_filled(raw, raw))
            if _shapes(again) == _shapes(new_obs):
                # Otherwise a wrapper around the normaliser has changed the observations since.
                _assign(new_obs, again)
                judged = raw
            rewards[:] = self._normalizer.normalize_reward(self._normalizer.old_reward)
        _assign(new_obs, _filled(new_obs, self._model._last_obs, judged))
        rewards[broken_rewards] = 0.0
        self._tell(broken_obs, broken_rewards)

    def _repair_terminal_observations(self) -> None:
        """The last observation of an episode that ran out of time is in ``infos``, and gets a value."""
        infos, last = self._callback.locals["infos"], self._model._last_obs
        for index in np.flatnonzero(self._callback.locals["dones"]):
            final = infos[index].get("terminal_observation")
            if isinstance(final, dict):
                before = {key: part[index] for key, part in last.items()}
                infos[index]["terminal_observation"] = _filled(final, before)
            elif isinstance(final, np.ndarray) and final.dtype.kind == "f" and not np.isfinite(final).all():
                infos[index]["terminal_observation"] = _filled(final, last[index])

    def _tell(self, broken_obs: np.ndarray, broken_rewards: np.ndarray) -> None:
        broken = broken_obs | broken_rewards
        in_a_row = np.where(broken, self._guard.broken_steps + 1, 0)
        self._guard.broken_steps = in_a_row
        self._repaired += int(broken.sum())
        environment = int(np.argmax(in_a_row))
        what = "observation" if broken_obs[environment] else "reward"
        if in_a_row[environment] >= MAX_BROKEN_IN_A_ROW:
            self._guard.broken_steps[:] = 0
            raise NonFiniteError(
                f"the {what} of environment {environment} was not finite for {MAX_BROKEN_IN_A_ROW} steps in "
                "a row. The model holds its last good weights, and model.save(path) keeps them"
            )
        if not self._guard.told:
            self._guard.told = True
            warnings.warn(
                f"the {what} of environment {environment} is not finite at step {self._model.num_timesteps}: "
                "observations are held at their last value and rewards set to zero where that happens "
                "(counted in rollout/repaired_steps; training stops after "
                f"{MAX_BROKEN_IN_A_ROW} such steps of one environment in a row)",
                stacklevel=4,
            )


def _arrays(observations: Observations) -> list[np.ndarray]:
    return list(observations.values()) if isinstance(observations, dict) else [observations]


def _broken_environments(observations: Observations) -> np.ndarray | None:
    """Which environments' observations are not finite; ``None`` if all are."""
    if isinstance(observations, dict):
        found = [rows for part in observations.values() if (rows := _broken_environments(part)) is not None]
        return np.asarray(np.logical_or.reduce(found)) if found else None
    if observations.dtype.kind != "f" or _all_finite(observations):
        return None
    finite: np.ndarray = np.isfinite(observations.reshape(len(observations), -1))
    return np.asarray(~finite.all(axis=1))


def _all_finite(array: np.ndarray) -> bool:
    """``np.isfinite(array).all()``, at half the cost for the small arrays of every step."""
    return np.count_nonzero(np.isfinite(array)) == array.size


def _filled(observations: Any, before: Any, judged: Any = None) -> Any:
    """A copy in which every broken number has the value of ``before``, or zero if that is broken, too.

    :param judged: where to look for broken numbers, if not in ``observations``
    """
    judged = observations if judged is None else judged
    if isinstance(observations, dict):
        return {key: _filled(part, before[key], judged[key]) for key, part in observations.items()}
    if judged.dtype.kind != "f":
        return observations
    held = np.where(np.isfinite(before), before, 0)
    return np.where(np.isfinite(judged), observations, held).astype(observations.dtype)


def _shapes(observations: Observations) -> list[tuple[int, ...]]:
    return [array.shape for array in _arrays(observations)]


def _assign(target: Observations, source: Observations) -> None:
    """Write ``source`` into the arrays of ``target``, which the collection loop holds."""
    for old, new in zip(_arrays(target), _arrays(source), strict=True):
        old[...] = new


def _statistics(normalizer: VecNormalize) -> tuple[Any, Any]:
    return getattr(normalizer, "obs_rms", None), normalizer.ret_rms


def _restore(normalizer: VecNormalize, kept: tuple[Any, Any]) -> None:
    """Put back statistics that were finite, in place: others may hold references to them."""
    old_obs, old_ret = kept
    pairs = [(normalizer.ret_rms, old_ret)]
    if isinstance(old_obs, dict):
        pairs += [(normalizer.obs_rms[key], part) for key, part in old_obs.items()]
    elif old_obs is not None:
        pairs.append((normalizer.obs_rms, old_obs))  # type: ignore[arg-type]
    for current, good in pairs:
        current.mean, current.var, current.count = copy.copy(good.mean), copy.copy(good.var), good.count
    normalizer.returns[~np.isfinite(normalizer.returns)] = 0.0
