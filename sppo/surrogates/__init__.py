r"""What is maximised: the surrogate family of functional mirror ascent, and whatever is added to it.

A surrogate is *what is linearised* (the functional representation of the policy) plus *what keeps it
close* (the proximity). With :math:`r = \log \pi(a|s) - \log \pi_t(a|s)` the log-ratio of the new to
the old policy, :math:`A` the advantage under the old policy and samples drawn from the old policy:

======================  ===============  ===================================  ============================
representation          clip             divergence                           trust region
======================  ===============  ===================================  ============================
direct, ``A * exp(r)``  PPO              MDPO, ``KL(pi || pi_t) / eta``       constrained MDPO
softmax, ``A * r``      **sPPO**         **sMDPO**, ``KL(pi_t || pi) / eta``  constrained sMDPO
======================  ===============  ===================================  ============================

The trust region is the algorithms' ``kl_budget``, which can be had with every surrogate: alone
(``clip_range=None``), beside a clip, or with an ``eta`` that is steered to it (``eta="auto"``).

Each is one class with all that is particular to it: name, parameters, the objective **per sample** (the
surrogate is its mean over the batch, and it is *maximised*), further columns of the log, what
:func:`sppo.check` says, and its compiled form if it has one. CONTRIBUTING.md adds one, step by step.

The cells of the table share one gradient at :math:`\pi = \pi_t`, the policy gradient (for sMDPO with the
printed estimate of its divergence, ``divergence="sampled"``, in expectation over the old policy only).
The softmax family works on log-ratios throughout and never exponentiates one, so it stays finite where a
ratio would overflow.

Reference: Vaswani et al., *A general class of surrogate functions for stable and efficient
reinforcement learning*, AISTATS 2022.
"""

from sppo.surrogates.base import REGISTRY, Sample, Slope, Surrogate, find, parameter
from sppo.surrogates.divergences import forward_kl, kl_divergence, reverse_kl
from sppo.surrogates.family import AUTO, MDPO, PPO, SMDPO, SPPO, TRAINING, check_proximity, chosen

__all__ = [
    "AUTO",
    "MDPO",
    "PPO",
    "REGISTRY",
    "SMDPO",
    "SPPO",
    "TRAINING",
    "Sample",
    "Slope",
    "Surrogate",
    "check_proximity",
    "chosen",
    "find",
    "forward_kl",
    "kl_divergence",
    "parameter",
    "reverse_kl",
]
