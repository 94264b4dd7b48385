"""The fast engine of one model: keeps its layout and flat memory while the policy stays the same."""

from __future__ import annotations

from typing import Any

import torch as th
from stable_baselines3.common.vec_env import VecEnv

from sppo.engine.collect import collect_rollout
from sppo.engine.coverage import check_buffer, check_optimizer
from sppo.engine.layout import Layout, describe
from sppo.engine.measurements import UpdateStatistics
from sppo.engine.memory import FlatMemory
from sppo.engine.threads import blas_threads
from sppo.engine.update import run_update
from sppo.surrogates import Surrogate


class FastEngine:
    """Collects and updates in compiled code on the memory of the policy's own parameters."""

    def __init__(self) -> None:
        self._memory: FlatMemory | None = None
        self._layout: Layout | None = None

    def prepare(self, policy: th.nn.Module) -> tuple[Layout, FlatMemory]:
        """The policy's layout and memory; raises ``Unsupported`` if it is not covered."""
        if self._layout is None or self._memory is None or not self._memory.is_current(policy):
            self._layout = describe(policy)
            self._memory = FlatMemory(policy)
        return self._layout, self._memory

    def check(self, model: Any, updating: bool) -> None:
        """Raise ``Unsupported`` if the model's rollouts, or its updates, are not covered."""
        self._layout = describe(model.policy)
        check_buffer(model.rollout_buffer)
        if updating:
            check_optimizer(model.policy.optimizer, model.policy)

    def update(
        self, model: Any, surrogate: Surrogate, clip_range_vf: float | None, statistics: UpdateStatistics
    ) -> None:
        """All passes over the model's rollout buffer, on the minibatches of the reference loop."""
        slope = surrogate.compiled()
        assert slope is not None
        for epoch, result in enumerate(run_update(model, slope, clip_range_vf, *self.prepare(model.policy))):
            measured = result.measured
            further = {"eta_term": measured["divergence"] * slope.inverse_eta} if slope.inverse_eta else {}
            statistics.start_epoch()
            statistics.extend(measured, further)
            statistics.skipped += result.skipped
            model._finite_guard.record(model, result.skipped, len(measured))
            model._n_updates += 1
            if not result.finished and model.verbose >= 1:
                kl = measured["approx_kl"][-1]
                print(f"Early stopping at step {epoch} due to reaching max kl: {kl:.2f}")

    def collect(self, model: Any, env: VecEnv, *args: Any, **kwargs: Any) -> bool:
        """Collect a rollout, see :func:`sppo.engine.collect.collect_rollout`."""
        layout, _ = self.prepare(model.policy)
        # Waiting BLAS threads would take the cores that the environments' processes need.
        with blas_threads(layout, env.num_envs):
            return collect_rollout(model, lambda: self.prepare(model.policy), env, *args, **kwargs)
