"""SPPO: Stable-Baselines3's PPO with the surrogates of functional mirror ascent."""

from __future__ import annotations

from stable_baselines3 import PPO

from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm
from sppo.checkpoint.algorithm import Checkpointable


class SPPO(Checkpointable, SurrogateAlgorithm, PPO):
    """Proximal policy optimisation with a clipped log-ratio (sPPO), and its relatives.

    Takes :class:`stable_baselines3.PPO`'s parameters, unchanged and in the same order, and five more,
    keyword-only. Most of them choose the surrogate:

    ===================  =====================  =========================================
    ``use_softmax``      clip (``clip_range``)  divergence (``clip_range=None, eta=...``)
    ===================  =====================  =========================================
    ``True`` (default)   sPPO                   sMDPO
    ``False``            PPO                    MDPO
    ===================  =====================  =========================================

    With both a clip and an ``eta``, both are applied. With ``use_softmax=False`` and no ``eta`` the
    trained weights equal :class:`stable_baselines3.PPO`'s bit for bit, unless ``engine="fast"``.

    :param use_softmax: linearise the log-ratio of the policies instead of their ratio
    :param eta: step size of the divergence from the old policy (smaller keeps closer), or a function of
        the remaining progress (from 1 to 0); ``None`` leaves the divergence out
    :param clip_mode: ``"one-sided"`` cuts a sample outside the clip's interval only where it would move
        further out, as PPO does; ``"two-sided"``, the printed formula, gives it no gradient at all, so that
        nothing pulls it back (it fails on Hopper and Pendulum, see ``benchmarks/README.md``).
        With ``use_softmax=False`` both are PPO's own clip, and ``"symmetric"`` is PPO with the ratio
        between ``1 / (1 + clip_range)`` and ``1 + clip_range``.
    :param surrogate: another surrogate by name, or as ``"package.module:Class"``, see
        :mod:`sppo.surrogates`; its own parameters are keyword arguments here, too
    :param engine: ``"auto"`` trains in compiled code where it can, several times faster and with the
        same result to float32 rounding per update, and otherwise (as well as for PPO proper) with
        PyTorch; ``"reference"`` always uses PyTorch; ``"fast"`` insists on compiled code and says why
        if that is not possible

    ``clip_range=None`` switches the clip off. For the other parameters see
    :class:`stable_baselines3.PPO`.

    A file saved by PPO loads here with the new parameters' defaults, unless
    ``SPPO.load(path, use_softmax=...)`` says otherwise; a file saved here loads in ``PPO.load``.
    """
