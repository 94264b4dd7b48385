"""The fast engine of one model: keeps its layout and flat memory while the policy stays the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from sppo.engine.blas import blas_threads
from sppo.engine.collect import Actor, finish, store
from sppo.engine.coverage import check_buffer, check_optimizer
from sppo.engine.layout import FlatMemory, describe
from sppo.engine.measurements import UpdateStatistics
from sppo.engine.networks import Layout
from sppo.engine.normalize import stepper
from sppo.engine.update import CompiledUpdate
from sppo.envs.group import timed_out
from sppo.surrogates import Surrogate

if TYPE_CHECKING:
    from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm
    from sppo.algorithms.trust_region import Halves


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
        model: SurrogateAlgorithm,
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
                # The minibatch that was found too far changed nothing.
                if not halves.count(len(measured) - (not goes_on)) or not goes_on:
                    break
            model._n_updates += 1
            if not goes_on:
                if model.verbose >= 1:
                    kl = measured["approx_kl"][-1]
                    print(f"Early stopping at step {epoch} due to reaching max kl: {kl:.2f}")
                return

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
