"""Evaluations during a training: deterministic actions, raw rewards, no trace left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gymnasium as gym
import numpy as np
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sppo.envs.generators import capture_generators, restore_generators

#: Episodes that are played side by side, so that they share passes through the policy.
_SIDE_BY_SIDE = 16

Observation = np.ndarray | dict[str, np.ndarray]


def evaluate(
    model: OnPolicyAlgorithm, make: Callable[[], gym.Env], seed: int, number: int, episodes: int
) -> list[tuple[float, int]]:
    """Return and length of each episode of an evaluation.

    They depend on the policy, the seed and the evaluation's number only: every episode has its own seed, the
    environments are new, and the process-wide generators are left as they were found. An evaluation needs no
    place in a checkpoint, and a training does not depend on how often it is evaluated.
    """
    generators = capture_generators()
    sequences = [np.random.SeedSequence([seed, number, one]) for one in range(episodes)]
    seeds = [int(sequence.generate_state(1)[0]) for sequence in sequences]
    played: list[tuple[float, int]] = []
    try:
        for first in range(0, episodes, _SIDE_BY_SIDE):
            together = seeds[first : first + _SIDE_BY_SIDE]
            environments = [make() for _ in together]
            played += _play(model, environments, together)
            for env in environments:
                env.close()
    finally:
        restore_generators(generators)
    return played


def _play(
    model: OnPolicyAlgorithm, environments: Sequence[gym.Env], seeds: Sequence[int]
) -> list[tuple[float, int]]:
    normalize = model.get_vec_normalize_env()
    observations = [env.reset(seed=seed)[0] for env, seed in zip(environments, seeds, strict=True)]
    returns, lengths = [0.0] * len(seeds), [0] * len(seeds)
    active = list(range(len(seeds)))
    while active:
        batch = _stack([observations[index] for index in active])
        if normalize is not None:
            batch = normalize.normalize_obs(batch)
        actions, _ = model.predict(batch, deterministic=True)
        for action, index in zip(actions, list(active), strict=True):
            observations[index], reward, terminated, truncated, _ = environments[index].step(action)
            returns[index] += float(reward)
            lengths[index] += 1
            if terminated or truncated:
                active.remove(index)
    return list(zip(returns, lengths, strict=True))


def _stack(observations: Sequence[Observation]) -> Observation:
    first = observations[0]
    if isinstance(first, dict):
        return {key: np.stack([one[key] for one in observations]) for key in first}
    return np.stack(observations)  # type: ignore[arg-type]
