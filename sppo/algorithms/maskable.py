"""MaskableSPPO: sb3-contrib's MaskablePPO with the surrogates of functional mirror ascent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv

from sppo.algorithms.engine_choice import replaced_by_engine
from sppo.algorithms.surrogate_algorithm import Minibatch, SurrogateAlgorithm
from sppo.checkpoint.algorithm import Checkpointable

MaskSource = Callable[[GymEnv], np.ndarray]


def mask_source(env: GymEnv, use_masking: bool = True) -> MaskSource | None:
    """Where the allowed actions come from; ``None`` if all are to be allowed.

    :raises ValueError: if the environments do not tell
    """
    if not use_masking:
        return None
    if not is_masking_supported(env):
        raise ValueError("the environment has no action_masks(): wrap it in sb3_contrib's ActionMasker")
    return get_action_masks


class MaskableSPPO(Checkpointable, SurrogateAlgorithm, MaskablePPO):
    """sPPO and its relatives for environments that forbid actions.

    :class:`sb3_contrib.MaskablePPO`'s parameters, and those that :class:`sppo.SPPO` adds to PPO's. With
    ``use_softmax=False`` and none of the others the trained weights equal MaskablePPO's bit for bit, unless
    ``engine="fast"``.
    """

    run_prefix = "Maskable"

    def _mask_source(self, env: VecEnv, use_masking: bool = True) -> MaskSource | None:
        return mask_source(env, use_masking)

    @replaced_by_engine
    def _evaluate_actions(
        self, policy: Any, rollout_data: Minibatch
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        values, log_prob, entropy = policy.evaluate_actions(
            rollout_data.observations, self._actions(rollout_data), action_masks=rollout_data.action_masks
        )
        return values.flatten(), log_prob, entropy
