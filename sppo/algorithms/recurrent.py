"""RecurrentSPPO: sb3-contrib's RecurrentPPO with the surrogates of functional mirror ascent."""

from __future__ import annotations

import copy
from typing import Any

import torch as th
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.distributions import Distribution

from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm
from sppo.checkpoint.algorithm import Checkpointable


class RecurrentSPPO(Checkpointable, SurrogateAlgorithm, RecurrentPPO):
    """sPPO and its relatives for LSTM policies.

    :class:`sb3_contrib.RecurrentPPO`'s parameters, and :class:`sppo.SPPO`'s ``use_softmax``, ``eta``,
    ``clip_mode``, ``surrogate`` and ``engine``; LSTMs are not covered by the fast engine, so ``"auto"`` is
    the reference loop. With ``use_softmax=False`` and no ``eta`` the trained weights equal RecurrentPPO's
    bit for bit.
    """

    run_prefix = "Recurrent"

    def _evaluate_actions(
        self, policy: Any, rollout_data: Any
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        actions, real = self._actions(rollout_data), _real(rollout_data)
        values, log_prob, entropy = policy.evaluate_actions(
            *(rollout_data.observations, actions, rollout_data.lstm_states, rollout_data.episode_starts)
        )
        return values.flatten()[real], log_prob[real], None if entropy is None else entropy[real]

    def _without_padding(self, rollout_data: Any) -> Any:
        real = _real(rollout_data)
        names = ("old_values", "old_log_prob", "advantages", "returns")
        return rollout_data._replace(**{name: getattr(rollout_data, name)[real] for name in names})

    def _distributions(self, old_policy: Any, rollout_data: Any) -> tuple[Distribution, ...]:
        padded = super()._distributions(old_policy, rollout_data)
        return tuple(_selected(distribution, _real(rollout_data)) for distribution in padded)


def _real(rollout_data: Any) -> th.Tensor:
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
