"""What SPPO and its relatives share: the one update loop.

:class:`SurrogateAlgorithm` stands before the upstream class in the method resolution order and replaces
its ``train``. Everything else (saving, callbacks, logging) is inherited, and so is the collection of
rollouts unless :mod:`sppo.engine` covers the model. The upstream classes differ only in what their
buffers yield, so the loop asks two small hooks: :meth:`~SurrogateAlgorithm._evaluate_actions` and
:meth:`~SurrogateAlgorithm._without_padding`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import MaybeCallback, PyTorchObs, Schedule
from torch.nn import functional as F

from sppo.algorithms.engine_choice import EngineChoice, replaced_by_engine
from sppo.algorithms.finite import FiniteGuard, is_about_numbers
from sppo.algorithms.fresh_advantages import Finish, FreshAdvantages, Timeout
from sppo.algorithms.trust_region import EtaController, Halves, copied, mean_kl
from sppo.algorithms.update_log import record_update
from sppo.engine.measurements import UpdateStatistics
from sppo.envs.group import Info, timed_out
from sppo.surrogates import AUTO, Sample, Surrogate

#: what a rollout buffer yields; upstream's have no type in common
Minibatch = Any


class SurrogateAlgorithm(EngineChoice):
    """Mix-in that trains an upstream PPO class with any surrogate of the family.

    Use it through :class:`sppo.SPPO`, which documents the parameters, :class:`sppo.MaskableSPPO`,
    :class:`sppo.RecurrentSPPO` or :class:`sppo.MaskableRecurrentSPPO`.
    """

    #: what stands before the surrogate's name in the name of a run
    run_prefix: ClassVar[str] = ""

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

    def train(self) -> None:
        """Update the policy with the rollout buffer's data: ``n_epochs`` passes in minibatches."""
        self.require_complete()
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        surrogate = self.current_surrogate()
        limit = self.clip_range_vf
        clip_range_vf = limit(self._current_progress_remaining) if callable(limit) else limit
        halves, statistics = Halves(self), UpdateStatistics()
        if (engine := self._fast_engine(surrogate)) is not None:
            engine.update(self, surrogate, clip_range_vf, halves, statistics)
            self._finish_update(surrogate, clip_range_vf, halves, statistics)
            return

        old_policy = None
        if surrogate.needs_distributions or halves.budget is not None:
            old_policy = copied(self.policy)
            halves.bound(partial(mean_kl, self, old_policy))
        fresh_advantages = self.fresh_advantages()
        continue_training = True
        for epoch in range(halves.n_passes):
            if not halves.start_pass(epoch):
                break
            statistics.start_epoch()
            if epoch > 0 and fresh_advantages is not None:
                fresh_advantages()
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
                distributions: tuple[Distribution, ...] = ()
                if old_policy is not None and surrogate.needs_distributions:
                    distributions = self._distributions(old_policy, rollout_data)
                rollout_data = self._without_padding(rollout_data)
                advantages = rollout_data.advantages
                # One sample has no standard deviation.
                if self.normalize_advantage and len(advantages) > 1:
                    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
                sample = Sample(log_prob, rollout_data.old_log_prob, advantages, *distributions)
                policy_loss = -surrogate.objective(sample).mean()
                if clip_range_vf is not None:
                    change = th.clamp(values - rollout_data.old_values, -clip_range_vf, clip_range_vf)
                    values = rollout_data.old_values + change
                value_loss = F.mse_loss(rollout_data.returns, values)
                entropy_loss = -th.mean(-log_prob if entropy is None else entropy)
                loss = halves.loss(policy_loss + self.ent_coef * entropy_loss, self.vf_coef * value_loss)
                with th.no_grad():
                    approx_kl = th.mean((sample.ratio - 1) - sample.log_ratio)
                statistics.add(
                    *(surrogate, sample, halves.trained),
                    loss=loss,
                    policy_loss=policy_loss,
                    value_loss=value_loss,
                    entropy_loss=entropy_loss,
                    approx_kl=approx_kl,
                )
                too_far = self.target_kl is not None and approx_kl.item() > 1.5 * self.target_kl
                if too_far and halves.trains_actor:
                    continue_training = False
                    if self.verbose >= 1:
                        print(
                            f"Early stopping at step {epoch} due to reaching max kl: {approx_kl.item():.2f}"
                        )
                    break
                finite = halves.step(loss)
                statistics.skipped += not finite
                self.record_skipped(int(not finite), 1)
                if not halves.count():
                    break
            self._n_updates += 1
            if not continue_training:
                break
        self._finish_update(surrogate, clip_range_vf, halves, statistics)

    @replaced_by_engine
    def _evaluate_actions(
        self, policy: ActorCriticPolicy, rollout_data: Minibatch
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Values, log-probabilities and entropies of a minibatch under ``policy``, without padding."""
        actions = self._actions(rollout_data)
        values, log_prob, entropy = policy.evaluate_actions(rollout_data.observations, actions)
        return values.flatten(), log_prob, entropy

    @replaced_by_engine
    def _without_padding(self, rollout_data: Minibatch) -> Minibatch:
        """The minibatch's real samples, for buffers that pad their sequences to one length."""
        return rollout_data

    @replaced_by_engine
    def _distributions(
        self, old_policy: ActorCriticPolicy, rollout_data: Minibatch
    ) -> tuple[Distribution, ...]:
        """The distributions that the last ``_evaluate_actions`` made, and those of the old policy."""
        with th.no_grad():
            self._evaluate_actions(old_policy, rollout_data)
        return self.policy.action_dist, old_policy.action_dist

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
            self._timeouts += [Timeout(step, env, seen) for env, seen in timed_out(dones, infos)]

    @replaced_by_engine
    def _actions(self, rollout_data: Minibatch) -> th.Tensor:
        """The minibatch's actions in the type that the policy's distribution wants."""
        if isinstance(self.action_space, spaces.Discrete):
            return rollout_data.actions.long().flatten()
        if isinstance(self.action_space, spaces.MultiBinary):
            # sb3-contrib's recurrent buffers keep integers, which Bernoulli distributions refuse.
            return rollout_data.actions.float()
        return rollout_data.actions

    def _finish_update(
        self,
        surrogate: Surrogate,
        clip_range_vf: float | None,
        halves: Halves,
        statistics: UpdateStatistics,
    ) -> None:
        """Steer ``eta``, and tell the logger."""
        halves.look()
        if self.eta == AUTO and halves.region is not None:
            self.auto_eta = EtaController()(self.auto_eta, halves.region)
        record_update(self, surrogate, clip_range_vf, halves, statistics)
