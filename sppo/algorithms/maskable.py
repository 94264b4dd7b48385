"""MaskableSPPO: sb3-contrib's MaskablePPO with the surrogates of functional mirror ascent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.vec_env import VecEnv

from sppo.algorithms.common import SurrogateAlgorithm
from sppo.checkpoint.algorithm import Checkpointable


class MaskableSPPO(Checkpointable, SurrogateAlgorithm, MaskablePPO):
    """sPPO and its relatives for environments that forbid actions.

    :class:`sb3_contrib.MaskablePPO`'s parameters, and :class:`sppo.SPPO`'s ``use_softmax``, ``eta``,
    ``clip_mode`` and ``engine``. With ``use_softmax=False`` and no ``eta`` the trained weights equal
    MaskablePPO's bit for bit, unless ``engine="fast"``.
    """

    run_name = "Maskable{}"

    def _mask_source(self, env: VecEnv, use_masking: bool = True) -> Callable[[VecEnv], np.ndarray] | None:
        if not use_masking:
            return None
        if not is_masking_supported(env):
            raise ValueError("the environment has no action_masks(): wrap it in sb3_contrib's ActionMasker")
        return get_action_masks

    def _evaluate_actions(
        self, data: Any, actions: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        return self.policy.evaluate_actions(data.observations, actions, action_masks=data.action_masks)
