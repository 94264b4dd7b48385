"""The update of one rollout buffer with the compiled kernel: same minibatches, same maths."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer

from sppo.engine import kernels
from sppo.engine.layout import Layout, features_of
from sppo.engine.measurements import MEASUREMENTS
from sppo.engine.memory import FlatMemory
from sppo.engine.threads import blas_threads

#: divergence between the policy and itself, computed by two programs in float32
ROUNDING = 1e-10


@dataclass(frozen=True)
class EpochResult:
    """What one pass over the buffer gave.

    :param measured: one record per minibatch, see :data:`~sppo.engine.measurements.MEASUREMENTS`
    :param skipped: minibatches left out because their loss or gradient was not finite
    :param finished: ``False`` if ``target_kl`` ended the pass
    """

    measured: np.ndarray
    skipped: int
    finished: bool


def run_update(
    model: Any, slope: Any, clip_range_vf: float | None, layout: Layout, memory: FlatMemory
) -> Iterator[EpochResult]:
    """Train on the model's buffer for ``n_epochs`` passes or until ``target_kl`` ends one; yields each pass.

    The minibatches are drawn as :meth:`RolloutBuffer.get` draws them, from NumPy's global generator.
    """
    buffer, optimizer = model.rollout_buffer, model.policy.optimizer
    memory.bind_optimizer(optimizer)
    group = optimizer.param_groups[0]
    beta1, beta2 = group["betas"]
    adam = kernels.Adam(
        *(float(group["lr"]), float(beta1), float(beta2), float(group["eps"])),
        *(float(group["weight_decay"]), float(model.max_grad_norm)),
    )
    objective = kernels.Objective(
        slope,
        clip_range_vf=math.inf if clip_range_vf is None else float(clip_range_vf),
        ent_coef=float(model.ent_coef),
        vf_coef=float(model.vf_coef),
        normalize_advantage=bool(model.normalize_advantage),
        kl_limit=math.inf if model.target_kl is None else 1.5 * float(model.target_kl) + ROUNDING,
    )
    n_samples = buffer.buffer_size * buffer.n_envs
    n_minibatches = -(-n_samples // model.batch_size)
    workspace = layout.workspace(min(model.batch_size, n_samples))
    observations, data = None, None
    for _ in range(model.n_epochs):
        order = np.random.permutation(n_samples)  # noqa: NPY002  (the generator the buffer draws from)
        if data is None:
            observations, data = _prepare(model.policy, buffer)
        measured = np.zeros(n_minibatches, MEASUREMENTS)
        with blas_threads(layout, len(workspace[3])):
            count, skipped, finished = kernels.run_epoch(
                *(layout.layers, layout.heads, layout.kind, layout.sizes, objective, adam),
                *(order, observations, data, memory.state, workspace, measured),
            )
        yield EpochResult(measured[:count], skipped, finished)
        if not finished:
            return


def _prepare(policy: Any, buffer: RolloutBuffer) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
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
