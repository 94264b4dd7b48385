"""The update of one rollout buffer with the compiled kernel: same minibatches, same maths."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer

from sppo.engine import kernels
from sppo.engine.layout import Layout, Unsupported, features_of
from sppo.engine.memory import FlatMemory, check_optimizer
from sppo.engine.threads import blas_threads
from sppo.surrogates import Surrogate


@dataclass(frozen=True)
class UpdateSettings:
    """What an update needs to know besides the data; the names are Stable-Baselines3's."""

    surrogate: Surrogate
    batch_size: int
    n_epochs: int
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    normalize_advantage: bool
    clip_range_vf: float | None
    target_kl: float | None

    def objective(self) -> kernels.Objective:
        """The numbers as the kernel takes them, with infinity for what is off."""
        surrogate = self.surrogate
        below, above = surrogate.ratio_bounds
        return kernels.Objective(
            use_softmax=bool(surrogate.use_softmax),
            two_sided=bool(surrogate.use_softmax and surrogate.clip_mode == "two-sided"),
            below=below,
            above=above,
            bound=math.log1p(surrogate.epsilon),
            inverse_eta=0.0 if surrogate.eta is None else 1.0 / float(surrogate.eta),
            clip_range_vf=math.inf if self.clip_range_vf is None else float(self.clip_range_vf),
            ent_coef=float(self.ent_coef),
            vf_coef=float(self.vf_coef),
            normalize_advantage=bool(self.normalize_advantage),
            kl_limit=math.inf if self.target_kl is None else 1.5 * float(self.target_kl),
        )


@dataclass(frozen=True)
class EpochResult:
    """What one pass over the buffer gave.

    :param measured: one row per minibatch, columns as in ``sppo.algorithms.statistics.MEASUREMENTS``
    :param skipped: minibatches left out because their loss or gradient was not finite
    :param finished: ``False`` if ``target_kl`` ended the pass
    """

    measured: np.ndarray
    skipped: int
    finished: bool


def check_buffer(buffer: Any) -> None:
    """Raise :class:`Unsupported` for buffers whose samples may not be what they look like."""
    from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer

    if type(buffer) not in (RolloutBuffer, MaskableRolloutBuffer):
        raise Unsupported(f"the rollout buffer {type(buffer).__name__}")


def run_update(
    policy: Any, layout: Layout, memory: FlatMemory, buffer: RolloutBuffer, settings: UpdateSettings
) -> Iterator[EpochResult]:
    """Train on ``buffer`` for ``n_epochs`` passes or until ``target_kl`` ends one; yields each pass.

    The minibatches are drawn as :meth:`RolloutBuffer.get` draws them, from NumPy's global generator.
    """
    check_buffer(buffer)
    optimizer = policy.optimizer
    check_optimizer(optimizer, policy)
    step = memory.bind_optimizer(optimizer)
    group = optimizer.param_groups[0]
    beta1, beta2 = group["betas"]
    adam = kernels.Adam(
        *(float(group["lr"]), float(beta1), float(beta2), float(group["eps"])),
        *(float(group["weight_decay"]), float(settings.max_grad_norm)),
    )
    objective = settings.objective()
    n_samples = buffer.buffer_size * buffer.n_envs
    n_minibatches = -(-n_samples // settings.batch_size)
    workspace = layout.workspace(min(settings.batch_size, n_samples))
    observations, data = None, None
    for _ in range(settings.n_epochs):
        order = np.random.permutation(n_samples)  # noqa: NPY002  (the generator the buffer draws from)
        if data is None:
            observations, data = _prepare(policy, layout, buffer)
        measured = np.zeros((n_minibatches, kernels.N_MEASUREMENTS))
        with blas_threads(layout, len(workspace[3])):
            count, skipped, finished = kernels.run_epoch(
                *(layout.layers, layout.heads, layout.kind, layout.sizes, objective, adam, step),
                *(order, observations, data, memory.state, workspace, measured),
            )
        # A pass that ended early looked at its last minibatch without learning from it.
        taken = count - skipped - (0 if finished else 1)
        memory.advance_optimizer(optimizer, taken)
        step += taken
        yield EpochResult(measured[:count], skipped, finished)
        if not finished:
            return


def _prepare(policy: Any, layout: Layout, buffer: RolloutBuffer) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Bring the buffer into the order of its own ``get`` and its arrays into the kernel's types."""
    names = ["observations", "actions", "values", "log_probs", "advantages", "returns"]
    masked = hasattr(buffer, "action_masks")
    if not buffer.generator_ready:
        for name in [*names, "action_masks"] if masked else names:
            setattr(buffer, name, buffer.swap_and_flatten(getattr(buffer, name)))
        buffer.generator_ready = True
    n_samples = len(buffer.observations)
    observations = features_of(buffer.observations, policy.observation_space, policy.normalize_images)

    def flat(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values.reshape(n_samples), np.float32)

    masks = getattr(buffer, "action_masks", np.zeros((n_samples, 0)))
    data = (
        np.ascontiguousarray(buffer.actions.reshape(n_samples, -1), np.float32),
        np.ascontiguousarray(masks.reshape(n_samples, masks.shape[-1]), np.float32),
        *(flat(array) for array in (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)),
    )
    return observations, data
