"""sb3-contrib's TRPO, with our engine for all but the step of its policy."""

from __future__ import annotations

import warnings

from sb3_contrib import TRPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from sppo.algorithms.finite import NonFiniteError, diagnose
from sppo.algorithms.trust_region import parameter_halves
from sppo.engine.coverage import Unsupported
from sppo.engine.fast import FastEngine


class StudyTRPO(TRPO):
    """Collects, and trains the critic, with our engine where it applies: the same numbers to rounding."""

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        # A new one each time: TRPO's line search replaces the parameters' memory.
        engine = FastEngine()
        try:
            engine.check(self, halves=None)
        except Unsupported:
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        return engine.collect(self, env, callback, rollout_buffer, n_rollout_steps, masks_of=None)

    def train(self) -> None:
        engine, passes = FastEngine(), self.n_critic_updates
        _, critic = parameter_halves(self.policy, apart=True)
        try:
            engine.check(self, halves=[critic])
        except Unsupported:
            super().train()
            return
        self.n_critic_updates = 0
        try:
            with warnings.catch_warnings():
                # Upstream logs the mean of the critic's losses, of which it has seen none.
                warnings.filterwarnings("ignore", message="Mean of empty slice")
                warnings.filterwarnings("ignore", message="invalid value encountered in scalar divide")
                super().train()
        finally:
            self.n_critic_updates = passes
        losses, skipped = engine.fit_values(self, critic, passes)
        if skipped:
            what = f"{skipped} minibatches of the critic had a loss or gradient that is not finite"
            raise NonFiniteError(f"{what}: {diagnose(self)}")
        self.logger.record("train/value_loss", losses.mean())
