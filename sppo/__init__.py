"""sppo: Stable-Baselines3's PPO with the softmax surrogate of functional mirror ascent.

The names below are imported when they are first used: ``import sppo`` alone loads neither torch nor
Stable-Baselines3, so that ``sppo.exact`` and ``sppo.bandits`` stand alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sppo.algorithms import SPPO as SPPO
    from sppo.algorithms import MaskableRecurrentSPPO as MaskableRecurrentSPPO
    from sppo.algorithms import MaskableSPPO as MaskableSPPO
    from sppo.algorithms import RecurrentSPPO as RecurrentSPPO
    from sppo.algorithms.advice import check as check
    from sppo.checkpoint import ExactCheckpointCallback as ExactCheckpointCallback
    from sppo.envs.factory import make_vec_env as make_vec_env
    from sppo.export import export_onnx as export_onnx
    from sppo.loading import load_vec_normalize as load_vec_normalize

__version__ = "0.1.0"

#: public name -> module that defines it
_HOMES = {
    "SPPO": "sppo.algorithms",
    "ExactCheckpointCallback": "sppo.checkpoint",
    "MaskableRecurrentSPPO": "sppo.algorithms",
    "MaskableSPPO": "sppo.algorithms",
    "RecurrentSPPO": "sppo.algorithms",
    "check": "sppo.algorithms.advice",
    "export_onnx": "sppo.export",
    "load_vec_normalize": "sppo.loading",
    "make_vec_env": "sppo.envs.factory",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'sppo' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
