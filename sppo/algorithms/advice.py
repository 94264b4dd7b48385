"""``sppo.check(model)``: the usual mistakes, before they cost a night of training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

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
    looks = (_weights, _observations, _actions, _minibatches, _passes, _surrogate)
    findings = list(dict.fromkeys(finding for look in looks for finding in look(model)))
    if warn:
        for finding in findings:
            warnings.warn(finding, stacklevel=2)
    return findings


def _weights(model: SurrogateAlgorithm) -> Iterator[str]:
    if name := broken_weights(model):
        yield f"the weights {name} are not finite: load an earlier checkpoint"


def _observations(model: SurrogateAlgorithm) -> Iterator[str]:
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None and normalizer.norm_obs:
        return
    space, buffer = model.observation_space, getattr(model, "rollout_buffer", None)
    for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else [("", space)]:
        if not isinstance(part, spaces.Box) or is_image_space(part) or part.dtype.kind != "f":
            continue
        size = _largest(np.append(part.low, part.high), UNBOUNDED)
        if buffer is not None and buffer.full:
            size = max(size, _largest(buffer.observations[key] if key else buffer.observations))
        if size > LARGE_OBSERVATION:
            name = f"the observation {key!r}" if key else "observations"
            yield (
                f"{name} reach {size:.3g} and are not normalised: wrap the environments in "
                "stable_baselines3.common.vec_env.VecNormalize (and load it again with "
                "sppo.load_vec_normalize), or scale them in the environment"
            )


def _largest(numbers: np.ndarray, below: float = math.inf) -> float:
    sizes = np.abs(numbers)
    return float(sizes.max(initial=0.0, where=sizes < below))


def _actions(model: SurrogateAlgorithm) -> Iterator[str]:
    space = model.action_space
    if not isinstance(space, spaces.Box) or model.policy.squash_output:
        return
    size = _largest(np.append(space.low, space.high), UNBOUNDED)
    if size > 10.0 or (0.0 < size < 0.1):
        yield (
            f"actions range up to {size:.3g}, while the initial policy has standard deviation "
            f"{math.exp(model.policy.log_std_init):.3g}: scale the action space to [-1, 1], "
            "for example with gymnasium.wrappers.RescaleAction"
        )


def _minibatches(model: SurrogateAlgorithm) -> Iterator[str]:
    samples = model.n_steps * model.n_envs
    stub = samples % model.batch_size
    if stub:
        divisors = [part for part in range(2, samples + 1) if samples % part == 0] or [1]
        nearest = min(divisors, key=lambda part: abs(math.log(part / model.batch_size)))
        yield (
            f"{samples} samples per rollout (n_steps={model.n_steps} times {model.n_envs} environments) "
            f"leave a minibatch of {stub} after those of batch_size={model.batch_size}, whose samples count "
            f"more than the others: write a batch_size that divides {samples}, such as {nearest}"
        )
    if model.normalize_advantage and 1 in (model.batch_size, stub):
        yield (
            "a minibatch of one sample cannot normalise its advantage, which is then used as it is: write a "
            "larger batch_size"
        )


def _passes(model: SurrogateAlgorithm) -> Iterator[str]:
    if model.n_epochs >= MANY_PASSES and model.kl_budget is None and model.target_kl is None:
        yield (
            f"n_epochs={model.n_epochs} passes over each batch: a clip keeps the policy close for fewer "
            "(benchmarks/README.md): write kl_budget=0.03 and n_critic_epochs=30, say"
        )


def _surrogate(model: SurrogateAlgorithm) -> Iterator[str]:
    # A schedule may end elsewhere: look at both ends.
    for progress in (1.0, 0.0):
        try:
            found = model.surrogate_at(progress).warnings()
            # They are about what does not keep the policy close; a budget does.
            yield from found if model.kl_budget is None else ()
        except ValueError as error:
            yield str(error)
