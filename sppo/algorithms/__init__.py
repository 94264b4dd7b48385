"""Stable-Baselines3 and sb3-contrib subclasses, one update loop between them."""

from sppo.algorithms.maskable import MaskableSPPO
from sppo.algorithms.maskable_recurrent import MaskableRecurrentSPPO
from sppo.algorithms.recurrent import RecurrentSPPO
from sppo.algorithms.sppo import SPPO

__all__ = ["SPPO", "MaskableRecurrentSPPO", "MaskableSPPO", "RecurrentSPPO"]
