"""The fast engine of one model: rollouts and updates in compiled code, as the reference loops have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from sppo.engine import kernels
from sppo.engine.acting import mean_divergence, policy_outputs
from sppo.engine.blas import blas_threads
from sppo.engine.collect import Actor, finish, store
from sppo.engine.coverage import check_buffer, check_optimizer
from sppo.engine.denormals import denormals_as_zero
from sppo.engine.layout import FlatMemory, describe, features_of
from sppo.engine.measurements import MEASUREMENTS, UpdateStatistics
from sppo.engine.networks import Layout
from sppo.engine.normalize import stepper
from sppo.envs.group import timed_out
from sppo.surrogates import Slope, Surrogate

if TYPE_CHECKING:
    from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm
    from sppo.algorithms.trust_region import Halves

#: divergence between the policy and itself, computed by two programs in float32
ROUNDING = 1e-10
#: the loss of a critic that is trained alone
SQUARED_ERROR = kernels.Objective(
    Slope(True, False, math.inf, math.inf, 0.0), math.inf, 0.0, 1.0, False, math.inf
)
#: states that go through the policy at once when the divergence is looked at
_ROWS = 512


class FastEngine:
    """Works on the memory of the policy's own parameters, and keeps it while the policy stays the same."""

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

    @denormals_as_zero()
    def update(
        self,
        model: SurrogateAlgorithm,
        surrogate: Surrogate,
        clip_range_vf: float | None,
        halves: Halves,
        statistics: UpdateStatistics,
    ) -> None:
        """All passes over the model's rollout buffer, on the minibatches of the reference loop."""
        slope = surrogate.compiled()
        assert slope is not None
        objective = kernels.Objective(
            slope,
            clip_range_vf=math.inf if clip_range_vf is None else float(clip_range_vf),
            ent_coef=float(model.ent_coef),
            vf_coef=float(model.vf_coef),
            normalize_advantage=bool(model.normalize_advantage),
            kl_limit=math.inf if model.target_kl is None else 1.5 * float(model.target_kl) + ROUNDING,
        )
        max_norm = float(model.max_grad_norm)
        run = CompiledUpdate(model, objective, max_norm, halves, *self.prepare(model.policy))
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

    @denormals_as_zero()
    def fit_values(self, model: Any, critic: list[th.nn.Parameter], n_passes: int) -> tuple[np.ndarray, int]:
        """Passes of the critic alone over the model's rollout buffer, by squared error.

        :return: the loss of each minibatch, and how many were left out as not finite
        """
        alone = ValuesAlone(critic)
        run = CompiledUpdate(model, SQUARED_ERROR, math.inf, alone, *self.prepare(model.policy))
        passes = [one for _ in range(n_passes) for one in run.minibatches()]
        losses = np.concatenate([measured["value_loss"] for measured, _, _ in passes])
        return losses, sum(skipped for _, skipped, _ in passes)

    def collect(
        self,
        model: Any,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
        masks_of: Callable[[VecEnv], np.ndarray] | None,
    ) -> bool:
        """Stable-Baselines3's loop with a compiled policy and no needless copies.

        What a user can observe is the same: the order of random draws from PyTorch's generator, the steps of
        the environment, the callbacks and the local variables they are shown, the bootstrapping of timeouts,
        and the contents of the buffer.

        :param masks_of: the allowed actions of all environments, if the algorithm masks actions
        :return: ``False`` if a callback ended the training
        """
        model.policy.set_training_mode(False)
        layout, memory = self.prepare(model.policy)
        act = Actor(model.policy, layout, memory, env.num_envs)
        rollout_buffer.reset()
        # Views of the buffer's rows, which the policy fills, as the tensors callbacks expect.
        all_values = th.from_numpy(rollout_buffer.values).unsqueeze(-1).unbind()
        all_log_probs = th.from_numpy(rollout_buffer.log_probs).unbind()
        callback.on_rollout_start()
        step = stepper(env)
        n_steps, action_masks = 0, None
        # Waiting BLAS threads would take the cores that the environments' processes need.
        with blas_threads(layout.multiply_adds(env.num_envs)):
            while n_steps < n_rollout_steps:
                if not memory.is_current(model.policy):
                    # A callback has replaced parameters.
                    layout, memory = self.prepare(model.policy)
                    act = Actor(model.policy, layout, memory, env.num_envs)
                if masks_of is not None:
                    action_masks = masks_of(env)
                rows = rollout_buffer.values[n_steps], rollout_buffer.log_probs[n_steps]
                actions, clipped_actions = act(model._last_obs, action_masks, *rows)
                new_obs, rewards, dones, infos = step(clipped_actions)
                model.num_timesteps += env.num_envs

                # Under the names they have in Stable-Baselines3, for callbacks that read them.
                values, log_probs = all_values[n_steps], all_log_probs[n_steps]
                obs_tensor = obs_as_tensor(model._last_obs, model.device)
                callback.update_locals({**locals(), "self": model})
                if not callback.on_step():
                    return False

                model._update_info_buffer(infos, dones)
                for idx, terminal_obs in timed_out(dones, infos):
                    # The value of the state that a time limit cut off belongs to the last reward.
                    with th.no_grad():
                        seen = model.policy.obs_to_tensor(terminal_obs)[0]
                        terminal_value = model.policy.predict_values(seen)[0]
                    rewards[idx] += (model.gamma * terminal_value).item()
                store(rollout_buffer, n_steps, model, actions, rewards, action_masks)
                n_steps += 1
                model._last_obs = new_obs
                model._last_episode_starts = dones
            with th.no_grad():
                values = model.policy.predict_values(obs_as_tensor(model._last_obs, model.device))
        finish(rollout_buffer, values, dones)
        callback.update_locals({**locals(), "self": model})
        callback.on_rollout_end()
        return True


class ValuesAlone(NamedTuple):
    """As :class:`~sppo.algorithms.trust_region.Halves`, of an update in which the actor rests throughout."""

    critic_parameters: list[th.nn.Parameter]
    apart: bool = True
    trained: tuple[bool, bool] = (False, True)
    critic_learning_rate: float | None = None
    minibatches_to_look: int | None = None


class CompiledUpdate:
    """One update: the data in the kernels' types, and the passes over them."""

    def __init__(
        self,
        model: Any,
        objective: kernels.Objective,
        max_grad_norm: float,
        halves: Halves | ValuesAlone,
        layout: Layout,
        memory: FlatMemory,
    ) -> None:
        self._model, self._objective, self._halves = model, objective, halves
        self._layout, self._memory = layout, memory
        optimizer = model.policy.optimizer
        memory.bind_optimizer(optimizer)
        group = optimizer.param_groups[0]
        lr, own_lr = float(group["lr"]), halves.critic_learning_rate
        self._adam = kernels.Adam(
            *(lr, lr if own_lr is None else own_lr, float(group["betas"][0]), float(group["betas"][1])),
            *(float(group["eps"]), float(group["weight_decay"]), max_grad_norm),
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
        _flatten(buffer)
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


def _flatten(buffer: RolloutBuffer) -> None:
    if buffer.generator_ready:
        return
    names = ["actions", "values", "log_probs", "advantages", "returns"]
    for name in [*names, "action_masks"] if hasattr(buffer, "action_masks") else names:
        setattr(buffer, name, buffer.swap_and_flatten(getattr(buffer, name)))
    seen = buffer.observations
    if isinstance(seen, dict):
        seen.update({key: buffer.swap_and_flatten(part) for key, part in seen.items()})
    else:
        buffer.observations = buffer.swap_and_flatten(seen)
    buffer.generator_ready = True
