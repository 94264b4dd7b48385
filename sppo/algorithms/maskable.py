"""MaskableSPPO: sb3-contrib's MaskablePPO with the surrogates of functional mirror ascent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.type_aliases import GymEnv

from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm
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
    evaluated_with = ("action_masks",)
    _mask_source = staticmethod(mask_source)
