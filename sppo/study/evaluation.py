"""Evaluations during a training: deterministic actions, raw rewards, no trace left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import TensorBoardOutputFormat
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sppo.envs.generators import capture_generators, restore_generators
from sppo.envs.state import UncapturableError, capture_environment, restore_environment
from sppo.records.run_files import RunWriter

#: Episodes that are played side by side, so that they share passes through the policy.
_SIDE_BY_SIDE = 16


class Evaluator:
    """Plays evaluation episodes, which depend on the policy, the seed and the evaluation's number only.

    Every episode has its own seed, the environments are put back to how they were made, and the
    process-wide generators are left as they were found: an evaluation needs no place in a checkpoint,
    and a training does not depend on how often it is evaluated.
    """

    def __init__(self, make: Callable[[], gym.Env], seed: int, episodes: int) -> None:
        self._make = make
        self._seed = seed
        self._episodes = episodes
        self._pool: list[tuple[gym.Env, bytes | None]] = []

    def evaluate(self, model: OnPolicyAlgorithm, number: int) -> list[tuple[float, int]]:
        """Return and length of each episode of the evaluation with this number."""
        generators = capture_generators()
        sequences = [np.random.SeedSequence([self._seed, number, one]) for one in range(self._episodes)]
        seeds = [int(sequence.generate_state(1)[0]) for sequence in sequences]
        try:
            batches = range(0, len(seeds), _SIDE_BY_SIDE)
            return [
                played for first in batches for played in self._play(model, seeds[first:][:_SIDE_BY_SIDE])
            ]
        finally:
            restore_generators(generators)

    def close(self) -> None:
        for env, _ in self._pool:
            env.close()
        self._pool = []

    def _play(self, model: OnPolicyAlgorithm, seeds: list[int]) -> list[tuple[float, int]]:
        environments = self._environments(len(seeds))
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

    def _environments(self, count: int) -> list[gym.Env]:
        """Environments as good as new."""
        for index in range(count):
            if index < len(self._pool):
                env, pristine = self._pool[index]
                if pristine is not None:
                    restore_environment(env, pristine)
                    continue
                self._pool.pop(index)[0].close()
            env = self._make()
            try:
                self._pool.insert(index, (env, capture_environment(env)))
            except UncapturableError:
                self._pool.insert(index, (env, None))
        return [env for env, _ in self._pool[:count]]


class EvaluationCallback(BaseCallback):
    """Evaluates ``evaluations`` times, evenly spread, the last time at the end of the training.

    Evaluation k of n takes place between iterations, as soon as k/n of the steps are done. Each episode
    is a row of the table; the means go to TensorBoard under Stable-Baselines3's names.
    """

    def __init__(
        self, evaluator: Evaluator, writer: RunWriter, evaluations: int, total_timesteps: int
    ) -> None:
        super().__init__()
        self._evaluator = evaluator
        self._writer = writer
        self._evaluations = evaluations
        self._total = total_timesteps
        self._done = 0

    def _on_training_start(self) -> None:
        # A resumed training finds the evaluations that belong to its checkpoint in the table.
        self._done = self._evaluations_due(self.num_timesteps)

    def _on_rollout_start(self) -> None:
        self._evaluate_until(self._evaluations_due(self.num_timesteps))

    def _on_training_end(self) -> None:
        self._evaluate_until(self._evaluations)
        self._evaluator.close()

    def _on_step(self) -> bool:
        return True

    def _evaluations_due(self, timesteps: int) -> int:
        return min(self._evaluations, timesteps * self._evaluations // self._total)

    def _evaluate_until(self, due: int) -> None:
        if due <= self._done:
            return
        self._done = due
        episodes = self._evaluator.evaluate(self.model, due)  # type: ignore[arg-type]
        self._writer.evaluation(due, self.num_timesteps, episodes)
        reward, length = np.mean(episodes, axis=0).tolist()
        values: dict[str, Any] = {"eval/mean_reward": reward, "eval/mean_ep_length": length}
        # Not through logger.record, which would mix them with the values of the next iteration.
        for output in self.logger.output_formats:
            if isinstance(output, TensorBoardOutputFormat):
                output.write(values, dict.fromkeys(values, ("",)), self.num_timesteps)


def _stack(observations: list[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([one[key] for one in observations]) for key in observations[0]}
    return np.stack(observations)
