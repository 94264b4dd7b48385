"""RecurrentSPPO: sb3-contrib's RecurrentPPO with the surrogates of functional mirror ascent."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch as th
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
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

    def _evaluate_actions(
        self, policy: Any, rollout_data: Minibatch
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        actions, real = self._actions(rollout_data), _real(rollout_data)
        values, log_prob, entropy = policy.evaluate_actions(
            *(rollout_data.observations, actions, rollout_data.lstm_states, rollout_data.episode_starts)
        )
        return values.flatten()[real], log_prob[real], None if entropy is None else entropy[real]

    def _without_padding(self, rollout_data: Minibatch) -> Minibatch:
        real = _real(rollout_data)
        names = ("old_values", "old_log_prob", "advantages", "returns")
        return rollout_data._replace(**{name: getattr(rollout_data, name)[real] for name in names})

    def _distributions(
        self, old_policy: ActorCriticPolicy, rollout_data: Minibatch
    ) -> tuple[Distribution, ...]:
        padded = super()._distributions(old_policy, rollout_data)
        return tuple(_selected(distribution, _real(rollout_data)) for distribution in padded)

    def _values_at(
        self, observations: PyTorchObs, steps: np.ndarray, envs: np.ndarray, starts: np.ndarray
    ) -> th.Tensor:
        # Each as a sequence of its own, from the state of memory that the rollout had there.
        states = tuple(
            self._memory(name, last)[:, steps, envs].to(self.device)
            for name, last in zip(("hidden", "cell"), self._last_lstm_states.vf, strict=True)  # type: ignore[attr-defined]
        )
        begins = th.as_tensor(starts, dtype=th.float32, device=self.device)
        return self.policy.predict_values(observations, states, begins)  # type: ignore[call-arg]

    def _memory(self, name: str, last: th.Tensor) -> th.Tensor:
        """Hidden or cell states before every step and after the last; by layer, step, environment."""
        buffer, states = self.rollout_buffer, getattr(self.rollout_buffer, f"{name}_states_vf")
        if buffer.generator_ready:
            shape = buffer.n_envs, buffer.buffer_size, *states.shape[1:]
            states = states.reshape(shape).transpose(2, 1, 0, 3)
        else:
            states = states.swapaxes(0, 1)
        return th.cat([th.as_tensor(np.ascontiguousarray(states)), last.cpu().unsqueeze(1)], dim=1)


def _real(rollout_data: Minibatch) -> th.Tensor:
    """Which samples are no padding: the buffer marks those in a float mask."""
    return rollout_data.mask > 1e-8


def _selected(distribution: Distribution, rows: th.Tensor) -> Distribution:
    """The distributions of some samples of a batch."""

    def select(part: Any) -> Any:
        if isinstance(part, list):
            return [select(one) for one in part]
        if isinstance(part, th.distributions.Normal):
            return th.distributions.Normal(part.loc[rows], part.scale[rows])
        return type(part)(logits=part.logits[rows])

    selected = copy.copy(distribution)
    selected.distribution = select(distribution.distribution)
    return selected
