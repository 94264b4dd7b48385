"""The fast engine of one model: keeps its layout and flat memory while the policy stays the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv

from sppo.engine.collect import collect_rollout, finish
from sppo.engine.coverage import check_buffer, check_optimizer
from sppo.engine.layout import describe
from sppo.engine.measurements import UpdateStatistics
from sppo.engine.memory import FlatMemory
from sppo.engine.model import Halves, Model
from sppo.engine.networks import Layout
from sppo.engine.threads import blas_threads
from sppo.engine.update import CompiledUpdate
from sppo.surrogates import Surrogate


class FastEngine:
    """Collects and updates in compiled code on the memory of the policy's own parameters."""

    def __init__(self) -> None:
        self._memory: FlatMemory | None = None
        self._layout: Layout | None = None

    def prepare(self, policy: ActorCriticPolicy) -> tuple[Layout, FlatMemory]:
        """The policy's layout and memory; raises ``Unsupported`` if it is not covered."""
        if self._layout is None or self._memory is None or not self._memory.is_current(policy):
            self._layout = describe(policy)
            self._memory = FlatMemory(policy)
        return self._layout, self._memory

    def check(self, model: OnPolicyAlgorithm, halves: Iterable[list[th.nn.Parameter]] | None) -> None:
        """Raise ``Unsupported`` if the model's rollouts, or its updates of ``halves``, are not covered."""
        self._layout = describe(model.policy)
        check_buffer(model.rollout_buffer)
        if halves is not None:
            check_optimizer(model.policy.optimizer, model.policy, halves)

    def update(
        self,
        model: Model,
        surrogate: Surrogate,
        clip_range_vf: float | None,
        halves: Halves,
        statistics: UpdateStatistics,
    ) -> None:
        """All passes over the model's rollout buffer, on the minibatches of the reference loop."""
        slope = surrogate.compiled()
        assert slope is not None
        run = CompiledUpdate(model, slope, clip_range_vf, halves, *self.prepare(model.policy))
        if surrogate.needs_distributions or halves.budget is not None:
            halves.bound(run.remember_policy())
        fresh_advantages = model.fresh_advantages(finish)
        for epoch in range(halves.n_passes):
            if not halves.start_pass(epoch):
                return
            statistics.start_epoch()
            if epoch > 0 and fresh_advantages is not None:
                fresh_advantages()
                run.read_buffer()
            for measured, skipped, goes_on in run.minibatches():
                weight = slope.inverse_eta
                further = {"eta_term": measured["divergence"] * weight} if weight else {}
                statistics.extend(measured, further, halves.trained)
                statistics.skipped += skipped
                model.record_skipped(skipped, len(measured))
                # Minibatches that were skipped, or found too far, changed nothing.
                if not halves.count(len(measured) - skipped - (not goes_on)) or not goes_on:
                    break
            model._n_updates += 1
            if not goes_on:
                if model.verbose >= 1:
                    kl = measured["approx_kl"][-1]
                    print(f"Early stopping at step {epoch} due to reaching max kl: {kl:.2f}")
                return

    def collect(
        self,
        model: OnPolicyAlgorithm,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
        masks_of: Callable[[VecEnv], np.ndarray] | None,
    ) -> bool:
        """Collect a rollout, see :func:`sppo.engine.collect.collect_rollout`."""
        layout, _ = self.prepare(model.policy)
        # Waiting BLAS threads would take the cores that the environments' processes need.
        with blas_threads(layout, env.num_envs):
            return collect_rollout(
                *(model, lambda: self.prepare(model.policy), env, callback, rollout_buffer, n_rollout_steps),
                masks_of,
            )
