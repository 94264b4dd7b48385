"""SPPO: Stable-Baselines3's PPO with the surrogates of functional mirror ascent."""

from __future__ import annotations

from stable_baselines3 import PPO

from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm
from sppo.checkpoint.algorithm import Checkpointable


class SPPO(Checkpointable, SurrogateAlgorithm, PPO):
    r"""Proximal policy optimisation with a clipped log-ratio (sPPO), and its relatives.

    Takes :class:`stable_baselines3.PPO`'s parameters, unchanged and in the same order, and more,
    keyword-only. Most of them choose the surrogate:

    ===================  =====================  =========================================
    ``use_softmax``      clip (``clip_range``)  divergence (``clip_range=None, eta=...``)
    ===================  =====================  =========================================
    ``True`` (default)   sPPO                   sMDPO
    ``False``            PPO                    MDPO
    ===================  =====================  =========================================

    With both a clip and an ``eta``, both are applied. A ``kl_budget`` adds a trust region to any of them, or
    stands alone (``clip_range=None``). With ``use_softmax=False`` and none of the other new parameters the
    trained weights equal :class:`stable_baselines3.PPO`'s bit for bit, unless ``engine="fast"``.

    :param use_softmax: linearise the log-ratio of the policies instead of their ratio
    :param eta: step size of the divergence from the old policy (smaller keeps closer), or a function of
        the remaining progress (from 1 to 0); ``None`` leaves the divergence out; ``"auto"`` steers it, once
        per update, so that the policy moves as far as ``kl_budget`` allows (``auto_eta`` is its value)
    :param clip_mode: ``"one-sided"`` cuts a sample outside the clip's interval only where it would move
        further out, as PPO does; ``"two-sided"``, the printed formula, gives it no gradient at all, so that
        nothing pulls it back (it fails on Hopper and Pendulum, see ``benchmarks/README.md``).
        With ``use_softmax=False`` both are PPO's own clip, and ``"symmetric"`` is PPO with the ratio
        between ``1 / (1 + clip_range)`` and ``1 + clip_range``.
    :param divergence: the divergence behind ``eta``: ``"exact"``, in closed form for each state, or
        ``"sampled"``, estimated from the action that was taken
    :param kl_budget: how far the policy may move in an update: the mean over the batch of the exact
        :math:`\mathrm{KL}(\pi_t \| \pi)`, or a function of the remaining progress. It is looked at every
        few minibatches; a policy found outside is put back to the border, and the actor rests until the
        next update, while the critic goes on. Not to be confused with upstream's ``target_kl``, which ends
        the whole update by an estimate.
    :param n_critic_epochs: passes of the critic over each batch, if not as many as the actor's ``n_epochs``
    :param critic_learning_rate: the critic's learning rate, if not the actor's; a number or a function of the
        remaining progress
    :param recompute_advantages: estimate advantages and returns anew, from the current critic, before every
        pass but the first
    :param surrogate: another surrogate by name, or as ``"package.module:Class"``, see
        :mod:`sppo.surrogates`; its own parameters are keyword arguments here, too
    :param engine: ``"auto"`` trains in compiled code where it can, several times faster and with the
        same result to float32 rounding per update, and otherwise (as well as for PPO proper) with
        PyTorch; ``"reference"`` always uses PyTorch; ``"fast"`` insists on compiled code and says why
        if that is not possible

    With any of ``kl_budget``, ``n_critic_epochs`` and ``critic_learning_rate``, actor and critic are trained
    apart: the norms of their gradients are clipped separately. Layers that they share (a features extractor
    with parameters, unless ``policy_kwargs=dict(share_features_extractor=False)``) are the actor's: they
    rest with it, and have its learning rate, for which reason ``critic_learning_rate`` is then refused.

    ``clip_range=None`` switches the clip off. For the other parameters see
    :class:`stable_baselines3.PPO`.

    A file saved by PPO loads here with the new parameters' defaults, unless
    ``SPPO.load(path, use_softmax=...)`` says otherwise; a file saved here loads in ``PPO.load``.
    """
