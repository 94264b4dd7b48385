"""One run as a training: environment, model, callbacks, and going on where it was interrupted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common import logger as sb3_logger
from stable_baselines3.common.logger import TensorBoardOutputFormat
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sppo.algorithms import SPPO
from sppo.algorithms.finite import NonFiniteError
from sppo.checkpoint import (
    CheckpointError,
    ExactCheckpointCallback,
    checkpoints,
    newest_readable,
    restore,
    why_inexact,
)
from sppo.checkpoint.model import RESUMPTION, put_back_log
from sppo.checkpoint.records import cut_events, cut_table
from sppo.envs.factory import InProcessVecEnv
from sppo.envs.generators import capture_generators, restore_generators
from sppo.parameters import LINEAR
from sppo.records.config import RunConfig
from sppo.records.run_files import CHECKPOINTS, EVALUATIONS, RESTARTS, TENSORBOARD, RunWriter
from sppo.study.mujoco_timers import stop_mujoco_timers
from sppo.study.trpo import StudyTRPO

if TYPE_CHECKING:
    from sppo.study.execution import Attempt

_ACTIVATIONS = {"tanh": th.nn.Tanh, "relu": th.nn.ReLU}
#: Episodes of an evaluation that are played side by side, so that they share passes through the policy.
_SIDE_BY_SIDE = 16

Observation = np.ndarray | dict[str, np.ndarray]


class Interrupted(Exception):
    """The training was asked to stop, and did, after writing a checkpoint."""


def train(attempt: Attempt, begin_again: bool) -> OnPolicyAlgorithm:
    """Train one run to its end, from its newest checkpoint or from the beginning.

    :param begin_again: where no checkpoint can be continued, keep them aside and begin from the first step
    :raises Interrupted: if the attempt was asked to stop
    """
    th.set_num_threads(1)
    config = attempt.config
    reason = why_inexact(lambda: make_environment(config))
    if reason is not None:
        inexact = "cannot be resumed exactly; if interrupted, its episodes start again"
        attempt.report(f"{config.env} {inexact}: {reason}")
    stop_mujoco_timers()
    model = _take_up(attempt, begin_again)
    try:
        model.learn(
            config.total_timesteps - model.num_timesteps,
            callback=_BetweenIterations(attempt),
            reset_num_timesteps=model.num_timesteps == 0,
        )
    finally:
        model.logger.close()
        if model.env is not None:
            model.env.close()
    return model


def make_environment(config: RunConfig) -> gym.Env:
    """One environment of a run, without the wrappers of its training."""
    return gym.make(config.env, **config.env_kwargs)


def make_vector(config: RunConfig) -> VecEnv:
    """The vectorised environment that a run trains in."""
    venv: VecEnv = InProcessVecEnv([lambda: Monitor(make_environment(config))] * config.n_envs)
    normalize = config.normalize
    if not (normalize["observations"] or normalize["rewards"]):
        return venv
    if normalize["observations"] and not isinstance(
        venv.observation_space, (gym.spaces.Box, gym.spaces.Dict)
    ):
        raise ValueError(
            f"{config.env} has observations that cannot be normalised ({venv.observation_space}): "
            "set normalize.observations = false (train: --no-normalize-observations)"
        )
    return VecNormalize(
        venv,
        norm_obs=normalize["observations"],
        norm_reward=normalize["rewards"],
        clip_obs=normalize["clip_obs"],
        clip_reward=normalize["clip_reward"],
        gamma=config.parameters["gamma"],
    )


def algorithm_class(config: RunConfig) -> type[OnPolicyAlgorithm]:
    return StudyTRPO if config.cls == "trpo" else SPPO


def make_model(config: RunConfig) -> OnPolicyAlgorithm:
    """A new model with its environment, everything seeded."""
    arguments = {name: _argument(name, value) for name, value in config.parameters.items()}
    model = algorithm_class(config)(env=make_vector(config), seed=config.seed, device="cpu", **arguments)
    assert model.env is not None
    # Upstream seeds the environments with seed, seed + 1, ...: neighbouring seeds of a study would
    # then share most of their environments.
    model.env.seed(int(np.random.SeedSequence(config.seed).generate_state(1)[0] >> 1))
    return model


def _argument(name: str, value: Any) -> Any:
    """A parameter of a configuration as the algorithm's constructor wants it."""
    if name == "policy_kwargs":
        return {**value, "activation_fn": _ACTIVATIONS[value["activation_fn"]]}
    if name == "max_grad_norm" and value is None:
        return math.inf
    if isinstance(value, str) and value.startswith(LINEAR):
        # Upstream's class, so that the saved model loads without this package.
        return LinearSchedule(start=float(value[len(LINEAR) :]), end=0.0, end_fraction=1.0)
    return value


def _take_up(attempt: Attempt, begin_again: bool) -> OnPolicyAlgorithm:
    config, directory = attempt.config, attempt.directory
    try:
        checkpoint = newest_readable(directory / CHECKPOINTS, attempt.report)
        return _begin(attempt) if checkpoint is None else _go_on(config, attempt.writer, checkpoint)
    except CheckpointError as error:
        if not begin_again:
            raise CheckpointError(f"{error}; --retry-failed begins again from the first step") from error
        for path in checkpoints(directory / CHECKPOINTS):
            path.rename(path.with_suffix(".unreadable"))
        attempt.report(f"{error}: begun again from the first step")
        return _begin(attempt)


def _begin(attempt: Attempt) -> OnPolicyAlgorithm:
    config, directory = attempt.config, attempt.directory
    # An attempt before this one may have been made elsewhere, or with other versions.
    attempt.record_beginning()
    cut_events(directory / TENSORBOARD, {})
    (directory / EVALUATIONS).unlink(missing_ok=True)
    (directory / RESTARTS).unlink(missing_ok=True)
    model = make_model(config)
    model.set_logger(sb3_logger.configure(str(directory / TENSORBOARD), ["tensorboard"]))
    return model


def _go_on(config: RunConfig, writer: RunWriter, checkpoint: Path) -> OnPolicyAlgorithm:
    directory = writer.directory
    kind, env = algorithm_class(config), make_vector(config)
    model = restore(kind, checkpoint, env=env, device="cpu", identity=config.hash)
    resumption = getattr(model, RESUMPTION)
    setattr(model, RESUMPTION, None)
    # By this run's own paths: the study may have been moved since.
    cut_events(directory / TENSORBOARD, resumption["records"]["events"])
    for path, length in resumption["records"]["tables"].items():
        cut_table(directory / Path(path).name, length)
    if resumption["restarted"]:
        writer.restart(model.num_timesteps)
    model.set_logger(sb3_logger.configure(str(directory / TENSORBOARD), ["tensorboard"]))
    put_back_log(model.logger, resumption["log"])
    return model


def evaluate(
    model: OnPolicyAlgorithm, make: Callable[[], gym.Env], seed: int, number: int, episodes: int
) -> list[tuple[float, int]]:
    """Return and length of each episode of an evaluation: deterministic actions, raw rewards.

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


class _BetweenIterations(ExactCheckpointCallback):
    """All that a run does between two iterations: it tells how far it is, evaluates, writes a checkpoint.

    Evaluation k of n takes place as soon as k/n of the steps are done, the last at the end of the training.
    Each episode is a row of the table; the means go to TensorBoard under Stable-Baselines3's names.
    Nothing is written unless the directory is still the run's own.
    """

    def __init__(self, attempt: Attempt) -> None:
        table, every = attempt.directory / EVALUATIONS, attempt.options.checkpoint_every
        place, identity = attempt.directory / CHECKPOINTS, attempt.config.hash
        super().__init__(place, every, tables=[table], identity=identity)
        self._attempt = attempt
        self._evaluated = 0

    def _on_training_start(self) -> None:
        super()._on_training_start()
        # A resumed training finds the evaluations that belong to its checkpoint in the table.
        self._evaluated = self._due()

    def _on_rollout_start(self) -> None:
        self._look()
        super()._on_rollout_start()
        if self._attempt.stop():
            if self.num_timesteps > 0:
                self.save()
            raise Interrupted

    def _on_rollout_end(self) -> None:
        # Before the update: what is not a number here would be everywhere after it.
        returns = self.model.rollout_buffer.returns  # type: ignore[attr-defined]
        self._require_finite(th.as_tensor(returns), "rewards or values")

    def _on_training_end(self) -> None:
        self._look()

    def save(self) -> Path:
        self._attempt.writer.guard()
        return super().save()

    def keep_last_good(self, error: FloatingPointError, timesteps: int | None) -> None:
        self._attempt.writer.guard()
        super().keep_last_good(error, timesteps)

    def _look(self) -> None:
        for name, tensor in self.model.policy.state_dict().items():
            self._require_finite(tensor, f"the weights {name}")
        self._attempt.progress(self.num_timesteps)
        due = self._due()
        if due > self._evaluated:
            self._evaluated = due
            self._evaluate(due)

    def _due(self) -> int:
        config = self._attempt.config
        return min(config.evaluations, self.num_timesteps * config.evaluations // config.total_timesteps)

    def _evaluate(self, number: int) -> None:
        config = self._attempt.config
        model: OnPolicyAlgorithm = self.model  # type: ignore[assignment]
        episodes = evaluate(
            model, lambda: make_environment(config), config.seed, number, config.eval_episodes
        )
        self._attempt.writer.evaluation(number, self.num_timesteps, episodes)
        reward, length = np.mean(episodes, axis=0).tolist()
        values = {"eval/mean_reward": reward, "eval/mean_ep_length": length}
        # Not through logger.record, which would mix them with the values of the next iteration.
        for output in self.logger.output_formats:
            if isinstance(output, TensorBoardOutputFormat):
                output.write(values, dict.fromkeys(values, ("",)), self.num_timesteps)

    def _require_finite(self, numbers: th.Tensor, what: str) -> None:
        """Our own algorithms see to that themselves; upstream's TRPO does not."""
        if not th.isfinite(numbers).all():
            raise NonFiniteError(
                f"{what} are not finite after {self.num_timesteps} steps: the environment gave something "
                "that is not a number, or the training has diverged (a smaller learning_rate, clip_range "
                "or n_epochs may help)"
            )
