"""RecurrentSPPO: sb3-contrib's RecurrentPPO with the surrogates of functional mirror ascent."""

from __future__ import annotations

from typing import Any

import torch as th
from sb3_contrib import RecurrentPPO

from sppo.algorithms.common import SurrogateAlgorithm
from sppo.checkpoint.algorithm import Checkpointable


class RecurrentSPPO(Checkpointable, SurrogateAlgorithm, RecurrentPPO):
    """sPPO and its relatives for LSTM policies.

    :class:`sb3_contrib.RecurrentPPO`'s parameters, and :class:`sppo.SPPO`'s ``use_softmax``, ``eta``,
    ``clip_mode`` and ``engine``; LSTMs are not covered by the fast engine, so ``"auto"`` is the
    reference loop. With ``use_softmax=False`` and no ``eta`` the trained weights equal RecurrentPPO's
    bit for bit.
    """

    run_name = "Recurrent{}"

    def _evaluate_actions(
        self, data: Any, actions: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        evaluate: Any = self.policy.evaluate_actions
        return evaluate(data.observations, actions, data.lstm_states, data.episode_starts)

    def _valid_samples(self, data: Any) -> th.Tensor:
        # The buffer pads sequences of different lengths and marks the padding in a float mask.
        return data.mask > 1e-8
