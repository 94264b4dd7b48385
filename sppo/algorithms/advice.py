"""``sppo.check(model)``: the usual mistakes, before they cost a night of training."""

from __future__ import annotations

import math
import warnings

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecNormalize, unwrap_vec_wrapper

from sppo.algorithms.finite import broken_weights
from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm

#: Inputs beyond this saturate a tanh network's first layer from the start.
LARGE_OBSERVATION = 100.0
#: Passes over a batch from which a clip alone was found to fail.
MANY_PASSES = 30
#: Bounds beyond this mean "unbounded".
UNBOUNDED = 1e30


def check(model: SurrogateAlgorithm, warn: bool = True) -> list[str]:
    """Look a model over for the usual mistakes.

    :param model: an SPPO or one of its relatives, trained or not. Once it has collected a rollout,
        the observations seen are looked at, too.
    :param warn: also give each finding as a warning
    :return: what was found, each with what to do about it; empty if nothing was
    """
    findings = [
        finding
        for look in (_weights, _observations, _actions, _stub, _normalised_single, _many_passes)
        if (finding := look(model)) is not None
    ]
    # A schedule may end elsewhere: look at both ends.
    for progress in (1.0, 0.0):
        findings += [each for each in _surrogate(model, progress) if each not in findings]
    if warn:
        for finding in findings:
            warnings.warn(finding, stacklevel=2)
    return findings


def _surrogate(model: SurrogateAlgorithm, progress: float) -> list[str]:
    try:
        found = model.surrogate_at(progress).warnings()
        # They are about what does not keep the policy close; a budget does.
        return found if model.kl_budget is None else []
    except ValueError as error:
        return [str(error)]


def _weights(model: SurrogateAlgorithm) -> str | None:
    name = broken_weights(model)
    return name and f"the weights {name} are not finite: load an earlier checkpoint"


def _observations(model: SurrogateAlgorithm) -> str | None:
    env = model.get_env()
    normalizer = None if env is None else unwrap_vec_wrapper(env, VecNormalize)
    if normalizer is not None and normalizer.norm_obs:
        return None
    space = model.observation_space
    parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    for key, part in parts.items():
        if not isinstance(part, spaces.Box) or is_image_space(part) or part.dtype.kind != "f":
            continue
        size = max(_bounds(part), _seen(model, key))
        if size > LARGE_OBSERVATION:
            name = f"the observation {key!r}" if key else "observations"
            return (
                f"{name} reach {size:.3g} and are not normalised: wrap the environments in "
                "stable_baselines3.common.vec_env.VecNormalize (and load it again with "
                "sppo.load_vec_normalize), or scale them in the environment"
            )
    return None


def _bounds(space: spaces.Box) -> float:
    bounds = np.abs(np.concatenate([space.low.ravel(), space.high.ravel()]).astype(np.float64))
    return float(bounds[bounds < UNBOUNDED].max(initial=0.0))


def _seen(model: SurrogateAlgorithm, key: str) -> float:
    buffer = getattr(model, "rollout_buffer", None)
    if buffer is None or not buffer.full:
        return 0.0
    observations = buffer.observations[key] if key else buffer.observations
    return float(np.abs(observations).max(initial=0.0, where=np.isfinite(observations)))


def _actions(model: SurrogateAlgorithm) -> str | None:
    space = model.action_space
    if not isinstance(space, spaces.Box) or model.policy.squash_output:
        return None
    size = _bounds(space)
    if size > 10.0 or (0.0 < size < 0.1):
        return (
            f"actions range up to {size:.3g}, while the initial policy has standard deviation "
            f"{math.exp(model.policy.log_std_init):.3g}: scale the action space to [-1, 1], "
            "for example with gymnasium.wrappers.RescaleAction"
        )
    return None


def _stub(model: SurrogateAlgorithm) -> str | None:
    samples = model.n_steps * model.n_envs
    stub = samples % model.batch_size
    if stub == 0:
        return None
    return (
        f"{samples} samples per rollout (n_steps={model.n_steps} times {model.n_envs} environments) leave a "
        f"minibatch of {stub} after those of batch_size={model.batch_size}, whose samples count more than "
        f"the others: write a batch_size that divides {samples}, such as "
        f"{_divisor(samples, model.batch_size)}"
    )


def _divisor(samples: int, near: int) -> int:
    """The divisor of ``samples`` that is nearest to ``near``, and more than one if there is any."""
    divisors = [part for part in range(2, samples + 1) if samples % part == 0] or [1]
    return min(divisors, key=lambda part: abs(math.log(part / near)))


def _normalised_single(model: SurrogateAlgorithm) -> str | None:
    samples = model.n_steps * model.n_envs
    if model.normalize_advantage and (model.batch_size == 1 or samples % model.batch_size == 1):
        return (
            "a minibatch of one sample cannot normalise its advantage, which is then used as it is: write a "
            "larger batch_size"
        )
    return None


def _many_passes(model: SurrogateAlgorithm) -> str | None:
    if model.n_epochs < MANY_PASSES or model.kl_budget is not None or model.target_kl is not None:
        return None
    return (
        f"n_epochs={model.n_epochs} passes over each batch: a clip keeps the policy close for fewer "
        "(benchmarks/README.md): write kl_budget=0.03 and n_critic_epochs=30, say"
    )
