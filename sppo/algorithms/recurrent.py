"""RecurrentSPPO: sb3-contrib's RecurrentPPO with the surrogates of functional mirror ascent."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch as th
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.type_aliases import PyTorchObs

from sppo.algorithms.surrogate_algorithm import Minibatch, SurrogateAlgorithm
from sppo.checkpoint.algorithm import Checkpointable


class RecurrentSPPO(Checkpointable, SurrogateAlgorithm, RecurrentPPO):
    """sPPO and its relatives for LSTM policies.

    :class:`sb3_contrib.RecurrentPPO`'s parameters, and those that :class:`sppo.SPPO` adds to PPO's; LSTMs are
    not covered by the fast engine, so ``engine="auto"`` is the reference loop. Recomputed advantages start
    from the LSTM states of the rollout. With ``use_softmax=False`` and none of the others the trained
    weights equal RecurrentPPO's bit for bit.
    """

    run_prefix = "Recurrent"
    evaluated_with = ("lstm_states", "episode_starts")

    def _evaluate_actions(
        self, policy: Any, rollout_data: Minibatch
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        real = _real(rollout_data)
        values, log_prob, entropy = super()._evaluate_actions(policy, rollout_data)
        return values[real], log_prob[real], None if entropy is None else entropy[real]

    def _without_padding(self, rollout_data: Minibatch) -> Minibatch:
        real = _real(rollout_data)
        names = ("old_values", "old_log_prob", "advantages", "returns")
        return rollout_data._replace(**{name: getattr(rollout_data, name)[real] for name in names})

    def _distribution(self, policy: Any, rollout_data: Minibatch) -> Distribution:
        real = _real(rollout_data)

        def selected(part: Any) -> Any:
            if isinstance(part, list):
                return [selected(one) for one in part]
            if isinstance(part, th.distributions.Normal):
                return th.distributions.Normal(part.loc[real], part.scale[real])
            return type(part)(logits=part.logits[real])

        distribution = copy.copy(policy.action_dist)
        distribution.distribution = selected(distribution.distribution)
        return distribution

    def _values_at(
        self, observations: PyTorchObs, steps: np.ndarray, envs: np.ndarray, starts: np.ndarray
    ) -> th.Tensor:
        # Each as a sequence of its own, from the state of memory that the rollout had there.
        buffer: Any = self.rollout_buffer
        memory = []
        for name, last in zip(("hidden_states_vf", "cell_states_vf"), self._last_lstm_states.vf, strict=True):  # type: ignore[attr-defined]
            states = getattr(buffer, name)
            if buffer.generator_ready:
                # One environment after the other, by then.
                states = states.reshape(buffer.n_envs, buffer.buffer_size, *states.shape[1:])
                states = states.transpose(1, 2, 0, 3)
            states = np.concatenate([states, last[None].cpu().numpy()])[steps, :, envs].swapaxes(0, 1)
            memory.append(th.as_tensor(np.ascontiguousarray(states), device=self.device))
        begins = th.as_tensor(starts, dtype=th.float32, device=self.device)
        return self.policy.predict_values(observations, tuple(memory), begins)  # type: ignore[call-arg]


def _real(rollout_data: Minibatch) -> th.Tensor:
    """Which samples are no padding: the buffer marks those in a float mask."""
    return rollout_data.mask > 1e-8
