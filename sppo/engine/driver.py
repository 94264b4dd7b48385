"""The fast engine of one model: keeps its layout and flat memory while the policy stays the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch as th
from numba import config
from stable_baselines3.common.vec_env import VecEnv

from sppo.engine.collect import collect_rollout
from sppo.engine.layout import Layout, Unsupported, describe
from sppo.engine.lean import optimizers_without_compiler
from sppo.engine.memory import FlatMemory, check_optimizer
from sppo.engine.threads import blas_threads
from sppo.engine.update import EpochResult, UpdateSettings, check_buffer, run_update
from sppo.engine.warmup import WARMUP
from sppo.surrogates import Surrogate

__all__ = ["FastEngine", "Unsupported"]


class FastEngine:
    """Collects and updates in compiled code on the memory of the policy's own parameters."""

    def __init__(self) -> None:
        self._memory: FlatMemory | None = None
        self._layout: Layout | None = None
        WARMUP.start()

    @staticmethod
    def lean_setup() -> AbstractContextManager[None]:
        """Make the policy in this, see :mod:`sppo.engine.lean`."""
        return optimizers_without_compiler()

    def prepare(self, policy: th.nn.Module) -> tuple[Layout, FlatMemory]:
        """The policy's layout and memory; raises :class:`Unsupported` if it is not covered."""
        if self._layout is None or self._memory is None or not self._memory.is_current(policy):
            self._layout = describe(policy)
            self._memory = FlatMemory(policy)
        return self._layout, self._memory

    def check(self, model: Any, optimizer: th.optim.Optimizer | None) -> None:
        """Raise :class:`Unsupported` if the model's rollouts, or ``optimizer``'s updates, are not covered."""
        if config.DISABLE_JIT:  # type: ignore[attr-defined]
            raise Unsupported("a Numba that may not compile (NUMBA_DISABLE_JIT=1)")
        if model.device.type != "cpu":
            raise Unsupported(f"the device {model.device}")
        self._layout = describe(model.policy)
        check_buffer(model.rollout_buffer)
        if optimizer is not None:
            check_optimizer(optimizer, model.policy)

    @staticmethod
    def settings(model: Any, surrogate: Surrogate, clip_range_vf: float | None) -> UpdateSettings:
        """The update's numbers, read from a model with Stable-Baselines3's attributes."""
        return UpdateSettings(
            surrogate=surrogate,
            batch_size=model.batch_size,
            n_epochs=model.n_epochs,
            ent_coef=model.ent_coef,
            vf_coef=model.vf_coef,
            max_grad_norm=model.max_grad_norm,
            normalize_advantage=model.normalize_advantage,
            clip_range_vf=clip_range_vf,
            target_kl=model.target_kl,
        )

    def update(self, model: Any, settings: UpdateSettings) -> Iterator[EpochResult]:
        """Train on the model's rollout buffer, one pass after the other."""
        layout, memory = self.prepare(model.policy)
        WARMUP.wait()
        return run_update(model.policy, layout, memory, model.rollout_buffer, settings)

    def collect(self, model: Any, env: VecEnv, *args: Any, **kwargs: Any) -> bool:
        """Collect a rollout, see :func:`sppo.engine.collect.collect_rollout`."""
        layout, _ = self.prepare(model.policy)
        # Waiting BLAS threads would take the cores that the environments' processes need.
        with blas_threads(layout, env.num_envs):
            return collect_rollout(model, lambda: self.prepare(model.policy), env, *args, **kwargs)
