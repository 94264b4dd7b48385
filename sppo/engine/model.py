"""What the engine needs to know of a model and of who is trained in an update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy


class Model(Protocol):
    """An algorithm whose updates run in compiled code, with upstream's names."""

    policy: ActorCriticPolicy
    rollout_buffer: RolloutBuffer
    batch_size: int
    max_grad_norm: float
    ent_coef: float
    vf_coef: float
    normalize_advantage: bool
    target_kl: float | None
    verbose: int
    _n_updates: int

    def fresh_advantages(
        self, finish: Callable[[RolloutBuffer, th.Tensor, np.ndarray], None]
    ) -> Callable[[], None] | None:
        """Recomputes the advantages of the rollout, if that is wanted."""

    def record_skipped(self, skipped: int, looked_at: int) -> None:
        """Account for minibatches, some of them not finite; raises if there were too many in a row."""


class Halves(Protocol):
    """Who is trained, see :class:`sppo.algorithms.trust_region.Halves`."""

    apart: bool
    budget: float | None
    critic_learning_rate: float | None
    critic_parameters: list[th.nn.Parameter]
    n_passes: int

    @property
    def trained(self) -> tuple[bool, bool]:
        """Whether the actor is trained now, and whether the critic is."""

    @property
    def minibatches_to_look(self) -> int | None:
        """After how many minibatches the divergence is to be looked at."""

    def bound(self, divergence: Callable[[], float]) -> None:
        """Begin to watch the trust region, if there is a budget."""

    def start_pass(self, number: int) -> bool:
        """Whether anything is trained in this pass."""

    def count(self, minibatches: int) -> bool:
        """Account for minibatches. Whether training goes on."""
