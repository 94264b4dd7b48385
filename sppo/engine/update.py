"""The update of one rollout buffer with the compiled kernel: same minibatches, same maths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from sppo.engine import kernels
from sppo.engine.acting import mean_divergence, policy_outputs
from sppo.engine.blas import blas_threads
from sppo.engine.layout import FlatMemory, features_of
from sppo.engine.measurements import MEASUREMENTS
from sppo.engine.networks import Layout
from sppo.surrogates import Slope

if TYPE_CHECKING:
    from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm
    from sppo.algorithms.trust_region import Halves

#: divergence between the policy and itself, computed by two programs in float32
ROUNDING = 1e-10
#: states that go through the policy at once when the divergence is looked at
_ROWS = 512


class CompiledUpdate:
    """One update: the data in the kernels' types, and the passes over them."""

    def __init__(
        self,
        model: SurrogateAlgorithm,
        slope: Slope,
        clip_range_vf: float | None,
        halves: Halves,
        layout: Layout,
        memory: FlatMemory,
    ) -> None:
        self._model, self._halves, self._layout, self._memory = model, halves, layout, memory
        optimizer = model.policy.optimizer
        memory.bind_optimizer(optimizer)
        group = optimizer.param_groups[0]
        lr, own_lr = float(group["lr"]), halves.critic_learning_rate
        self._adam = kernels.Adam(
            *(lr, lr if own_lr is None else own_lr, float(group["betas"][0]), float(group["betas"][1])),
            *(float(group["eps"]), float(group["weight_decay"]), float(model.max_grad_norm)),
        )
        self._objective = kernels.Objective(
            slope,
            clip_range_vf=math.inf if clip_range_vf is None else float(clip_range_vf),
            ent_coef=float(model.ent_coef),
            vf_coef=float(model.vf_coef),
            normalize_advantage=bool(model.normalize_advantage),
            kl_limit=math.inf if model.target_kl is None else 1.5 * float(model.target_kl) + ROUNDING,
        )
        critic = {id(parameter) for parameter in halves.critic_parameters}
        parameters = list(model.policy.parameters())
        owners = np.array([id(parameter) in critic for parameter in parameters], np.int64)
        self._owned = owners, _segments([parameter.numel() for parameter in parameters], owners)
        buffer = model.rollout_buffer
        self._n_samples = buffer.buffer_size * buffer.n_envs
        self._workspace = layout.workspace(min(model.batch_size, self._n_samples))
        #: the old policy's outputs and log standard deviations, once they are remembered
        self._old: tuple[np.ndarray, np.ndarray] | None = None
        self.read_buffer()

    def minibatches(self) -> Iterator[tuple[np.ndarray, int, bool]]:
        """One pass, drawn as :meth:`RolloutBuffer.get` draws it, from NumPy's global generator.

        It pauses where the divergence is to be looked at, and gives what was measured of the minibatches up
        to there, how many of them were left out as not finite, and whether to go on: not past ``target_kl``.
        """
        order = np.random.permutation(self._n_samples)  # noqa: NPY002  (the generator the buffer draws from)
        layout, halves, capacity = self._layout, self._halves, len(self._workspace.ones)
        old = self._old if self._objective.slope.exact else None
        while len(order):
            pause = halves.minibatches_to_look
            rows, order = np.split(order, [len(order) if pause is None else pause * capacity])
            measured = np.zeros(-(-len(rows) // capacity), MEASUREMENTS)
            trained = kernels.Trained(halves.apart, *halves.trained, *self._owned)
            with blas_threads(layout.multiply_adds(capacity)):
                count, skipped, goes_on = kernels.run_epoch(
                    *(layout, self._objective, self._adam, trained, rows, self._data, old),
                    *(self._memory.weights, self._workspace, measured),
                )
            yield measured[:count], skipped, goes_on

    def read_buffer(self) -> None:
        """Bring the buffer into the order of its own ``get`` and its arrays into the kernels' types."""
        policy, buffer, n_samples = self._model.policy, self._model.rollout_buffer, self._n_samples
        if not buffer.generator_ready:
            state = np.random.get_state()  # noqa: NPY002
            next(buffer.get(1))
            np.random.set_state(state)  # noqa: NPY002
        masks = getattr(buffer, "action_masks", np.zeros((n_samples, 0)))
        tables = (buffer.actions.reshape(n_samples, -1), masks.reshape(n_samples, masks.shape[-1]))
        columns = (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)
        arrays = (*tables, *(column.reshape(n_samples) for column in columns))
        self._data = kernels.Rollout(
            features_of(buffer.observations, policy.observation_space, policy.normalize_images),
            *(np.ascontiguousarray(array, np.float32) for array in arrays),
        )

    def remember_policy(self) -> Callable[[], float]:
        """Take the policy for the old one; how to compute the mean divergence of a later one from it."""
        layout, parameters = self._layout, self._memory.weights.parameters
        workspace = layout.workspace(min(_ROWS, self._n_samples))
        new = np.zeros((self._n_samples, layout.n_outputs), np.float32)
        log_std = parameters[slice(*layout.heads[2:])]

        def evaluate() -> None:
            with blas_threads(layout.multiply_adds(len(workspace.ones))):
                features, masks = self._data.observations.reshape(-1), self._data.masks
                policy_outputs(layout, parameters, features, masks, workspace, new)

        evaluate()
        old, old_log_std = self._old = new.copy(), log_std.copy()

        def divergence() -> float:
            evaluate()
            return mean_divergence(layout, new, log_std, old, old_log_std)

        return divergence


def _segments(sizes: list[int], owners: np.ndarray) -> np.ndarray:
    """Where in the flat parameters stretches of one owner's begin and end, and whose they are."""
    ends = np.cumsum(sizes)
    changes = np.flatnonzero(np.diff(owners))
    starts = np.concatenate([[0], ends[changes]])
    return np.stack([starts, [*ends[changes], ends[-1]], owners[[*changes, len(owners) - 1]]], axis=1)
