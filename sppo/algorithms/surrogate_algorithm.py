"""What SPPO and its relatives share: the one update loop.

:class:`SurrogateAlgorithm` stands before the upstream class in the method resolution order and replaces
its ``train``. Everything else (saving, callbacks, logging) is inherited, and so is the collection of
rollouts unless :mod:`sppo.engine` covers the model. The upstream classes differ only in what their
buffers yield: :attr:`~SurrogateAlgorithm.evaluated_with`, and padding, which small hooks take off.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import MaybeCallback, PyTorchObs, Schedule
from stable_baselines3.common.utils import explained_variance
from stable_baselines3.common.vec_env import VecEnv
from torch.nn import functional as F

from sppo.algorithms.choices import Choices, replaced_by_engine
from sppo.algorithms.finite import FiniteGuard, finite_inputs, is_about_numbers
from sppo.algorithms.fresh_advantages import Finish, FreshAdvantages, Timeout
from sppo.algorithms.trust_region import Halves, copied, divergence_from_now
from sppo.engine.measurements import UpdateStatistics
from sppo.envs.group import Info, timed_out
from sppo.surrogates import AUTO, Sample, Surrogate

#: what a rollout buffer yields; upstream's have no type in common
Minibatch = Any


class SurrogateAlgorithm(Choices):
    """Mix-in that trains an upstream PPO class with any surrogate of the family.

    Use it through :class:`sppo.SPPO`, which documents the parameters, :class:`sppo.MaskableSPPO`,
    :class:`sppo.RecurrentSPPO` or :class:`sppo.MaskableRecurrentSPPO`.
    """

    #: what stands before the surrogate's name in the name of a run
    run_prefix: ClassVar[str] = ""
    #: fields of a minibatch that the policy evaluates actions with, beside the observations
    evaluated_with: ClassVar[tuple[str, ...]] = ()

    #: upstream's classes do not agree whether it may be None
    batch_size: Any
    n_epochs: int
    normalize_advantage: bool
    target_kl: float | None
    clip_range_vf: float | Schedule | None

    def _setup_model(self) -> None:
        super()._setup_model()
        self._finite_guard = FiniteGuard()
        self._timeouts: list[Timeout] = []

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_finite_guard", "_timeouts"]

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str | None = None,
        *args: bool,
        **kwargs: bool,
    ) -> Self:
        """Train, as upstream's ``learn`` does.

        :param tb_log_name: the name of the run for TensorBoard; the default names the surrogate
            (``SPPO``, ``PPO``, ``SMDPO``, ``MDPO``), so that runs can be told apart
        """
        self.require_complete()
        self._compare_normalization(training=True)
        name = self.run_prefix + self.surrogate_name if tb_log_name is None else tb_log_name
        return super().learn(total_timesteps, callback, log_interval, name, *args, **kwargs)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        with finite_inputs(self):
            return super()._setup_learn(*args, **kwargs)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
        *args: bool,
    ) -> bool:
        """Fill the rollout buffer, in compiled code where :mod:`sppo.engine` covers the policy."""
        with finite_inputs(self):
            rollout = (env, callback, rollout_buffer, n_rollout_steps)
            if (engine := self._fast_engine()) is not None:
                return engine.collect(self, *rollout, self._mask_source(env, *args))
            return super().collect_rollouts(*rollout, *args)

    def train(self) -> None:
        """Update the policy with the rollout buffer's data: ``n_epochs`` passes in minibatches."""
        self.require_complete()
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        surrogate = self.current_surrogate()
        limit = self.clip_range_vf
        clip_range_vf = limit(self._current_progress_remaining) if callable(limit) else limit
        halves, statistics = Halves(self), UpdateStatistics()
        engine = self._fast_engine(surrogate)
        update = self._update if engine is None else partial(engine.update, self)
        update(surrogate, clip_range_vf, halves, statistics)
        halves.look()
        if self.eta == AUTO and halves.region is not None:
            self.auto_eta = halves.region.steered(self.auto_eta)
        if clip_range_vf is not None:
            self.logger.record("train/clip_range_vf", clip_range_vf)
        self._record_update(surrogate, halves, statistics)

    def _update(
        self,
        surrogate: Surrogate,
        clip_range_vf: float | None,
        halves: Halves,
        statistics: UpdateStatistics,
    ) -> None:
        """The passes over the rollout buffer, as upstream's ``train`` makes them: the reference engine."""
        old_policy = copied(self.policy) if surrogate.needs_distributions else None
        if halves.budget is not None:
            halves.bound(divergence_from_now(self))
        fresh_advantages = self.fresh_advantages()
        for epoch in range(halves.n_passes):
            if not halves.start_pass(epoch):
                return
            statistics.start_epoch()
            if epoch > 0 and fresh_advantages is not None:
                fresh_advantages()
            continue_training = True
            for rollout_data in self.rollout_buffer.get(self.batch_size):
                try:
                    values, log_prob, entropy = self._evaluate_actions(self.policy, rollout_data)
                except ValueError as error:
                    # PyTorch's distributions refuse what is not finite before there is a loss.
                    if not is_about_numbers(error):
                        raise
                    statistics.skipped += 1
                    self.record_skipped(1, 1)
                    continue
                pair = () if old_policy is None else self._distributions(old_policy, rollout_data)
                rollout_data = self._without_padding(rollout_data)
                advantages = rollout_data.advantages
                # One sample has no standard deviation.
                if self.normalize_advantage and len(advantages) > 1:
                    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
                sample = Sample(log_prob, rollout_data.old_log_prob, advantages, *pair)
                policy_loss = -surrogate.objective(sample).mean()
                if clip_range_vf is not None:
                    change = th.clamp(values - rollout_data.old_values, -clip_range_vf, clip_range_vf)
                    values = rollout_data.old_values + change
                value_loss = F.mse_loss(rollout_data.returns, values)
                entropy_loss = -th.mean(-log_prob if entropy is None else entropy)
                loss = halves.loss(policy_loss + self.ent_coef * entropy_loss, self.vf_coef * value_loss)
                with th.no_grad():
                    approx_kl = th.mean((sample.ratio - 1) - sample.log_ratio)
                losses = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy_loss": entropy_loss}
                statistics.add(surrogate, sample, halves.trained, loss=loss, approx_kl=approx_kl, **losses)
                too_far = self.target_kl is not None and approx_kl.item() > 1.5 * self.target_kl
                if too_far and halves.trains_actor:
                    continue_training = False
                    if self.verbose >= 1:
                        kl = approx_kl.item()
                        print(f"Early stopping at step {epoch} due to reaching max kl: {kl:.2f}")
                    break
                finite = halves.step(loss)
                statistics.skipped += not finite
                self.record_skipped(int(not finite), 1)
                # A minibatch that was skipped moved nothing.
                if finite and not halves.count():
                    break
            self._n_updates += 1
            if not continue_training:
                return

    @replaced_by_engine
    def _evaluate_actions(
        self, policy: ActorCriticPolicy, rollout_data: Minibatch
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Values, log-probabilities and entropies of a minibatch under ``policy``, without padding."""
        actions, fields = self._actions(rollout_data), self.evaluated_with
        context = {name: getattr(rollout_data, name) for name in fields}
        values, log_prob, entropy = policy.evaluate_actions(rollout_data.observations, actions, **context)
        return values.flatten(), log_prob, entropy

    @replaced_by_engine
    def _without_padding(self, rollout_data: Minibatch) -> Minibatch:
        """The minibatch's real samples, for buffers that pad their sequences to one length."""
        return rollout_data

    @replaced_by_engine
    def _distribution(self, policy: ActorCriticPolicy, rollout_data: Minibatch) -> Distribution:
        """The distribution that ``_evaluate_actions`` just made of a minibatch, without padding."""
        return copy.copy(policy.action_dist)

    def _distributions(
        self, old_policy: ActorCriticPolicy, rollout_data: Minibatch
    ) -> tuple[Distribution, Distribution]:
        """The policy's distribution of the minibatch that was just evaluated, and the old policy's."""
        with th.no_grad():
            self._evaluate_actions(old_policy, rollout_data)
        return self._distribution(self.policy, rollout_data), self._distribution(old_policy, rollout_data)

    def record_skipped(self, skipped: int, looked_at: int) -> None:
        """Account for some minibatches, see :class:`~sppo.algorithms.finite.FiniteGuard`."""
        self._finite_guard.record(self, skipped, looked_at)

    def fresh_advantages(self, *finish: Finish) -> FreshAdvantages | None:
        """Recomputes the advantages of the rollout, if that is wanted."""
        return FreshAdvantages(self, *finish) if self.recompute_advantages else None

    def _values_at(
        self, observations: PyTorchObs, steps: np.ndarray, envs: np.ndarray, starts: np.ndarray
    ) -> th.Tensor:
        """Values of a batch of observations under the current critic.

        :param steps: when in the rollout, and with ``envs`` where, the state of memory before each was
        :param starts: whether each begins an episode
        """
        return self.policy.predict_values(observations)

    def _update_info_buffer(self, infos: list[Info], dones: np.ndarray | None = None) -> None:
        super()._update_info_buffer(infos, dones)
        if self.recompute_advantages and dones is not None:
            step = self.rollout_buffer.pos
            self._timeouts = self._timeouts if step > 0 else []
            self._timeouts += [(step, env, seen) for env, seen in timed_out(dones, infos)]

    @replaced_by_engine
    def _actions(self, rollout_data: Minibatch) -> th.Tensor:
        """The minibatch's actions in the type that the policy's distribution wants."""
        if isinstance(self.action_space, spaces.Discrete):
            return rollout_data.actions.long().flatten()
        if isinstance(self.action_space, spaces.MultiBinary):
            # sb3-contrib's recurrent buffers keep integers, which Bernoulli distributions refuse.
            return rollout_data.actions.float()
        return rollout_data.actions

    def _record_update(self, surrogate: Surrogate, halves: Halves, statistics: UpdateStatistics) -> None:
        """Record upstream's keys, then what shows how the surrogate behaves."""
        buffer, average, record = self.rollout_buffer, statistics.averages(), self.logger.record
        with np.errstate(all="ignore"):
            explained = explained_variance(buffer.values.flatten(), buffer.returns.flatten())
        record("train/entropy_loss", average["entropy_loss"])
        record("train/policy_gradient_loss", average["policy_loss"])
        record("train/value_loss", average["value_loss"])
        record("train/approx_kl", average["approx_kl"])
        record("train/clip_fraction", average["clipped_above"] + average["clipped_below"])
        record("train/loss", average["loss"])
        record("train/explained_variance", explained)
        if hasattr(self.policy, "log_std"):
            record("train/std", th.exp(self.policy.log_std).mean().item())
        record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, parameter in surrogate.parameters().items():
            if parameter.kind == "schedule" and getattr(surrogate, name) is not None:
                record(f"train/{name}", getattr(surrogate, name))

        if halves.region is not None:
            record("train/kl", halves.region.kl)
            record("train/kl_budget", halves.region.budget)
        if halves.apart:
            samples = self.n_steps * self.n_envs
            record("train/actor_epochs", halves.actor_steps / -(-samples // self.batch_size))
        if halves.critic_learning_rate is not None:
            record("train/critic_learning_rate", halves.critic_learning_rate)
        record("train/engine", self.engine_in_use, exclude="tensorboard")
        record("train/skipped_updates", statistics.skipped)
        record("train/clip_fraction_above", average["clipped_above"])
        record("train/clip_fraction_below", average["clipped_below"])
        record("train/log_ratio_abs_mean", average["log_ratio_mean"])
        record("train/log_ratio_abs_max", average["log_ratio_max"])
        for name, value in statistics.further().items():
            record(f"train/{name}", value)
