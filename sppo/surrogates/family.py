"""The family of functional mirror ascent: one class per cell of the table in :mod:`sppo.surrogates`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from sppo.parameters import Parameter
from sppo.surrogates.base import Sample, Slope, Surrogate, find, parameter
from sppo.surrogates.divergences import forward_kl, kl_divergence, reverse_kl

if TYPE_CHECKING:
    from torch import Tensor

ClipMode = Literal["one-sided", "two-sided", "symmetric"]
DivergenceMode = Literal["exact", "sampled"]
#: ``eta=AUTO``: steered so that the policy moves as far as ``kl_budget`` allows
AUTO = "auto"


@dataclass(frozen=True)
class _Cell(Surrogate):
    """What the cells share: a representation, and its divergence from the old policy, which may be off."""

    softmax: ClassVar[bool]
    eta: float | None = parameter(
        None,
        "schedule",
        "step size of the divergence from the old policy; smaller keeps closer; auto: steered to kl_budget",
        low=0,
        above=True,
        words=(AUTO,),
        advice='write eta=1.0, say (smaller keeps closer to the old policy), eta="auto" together with a '
        "kl_budget, or eta=None to train with the clip alone",
    )
    divergence: DivergenceMode = parameter(
        "exact",
        "choice",
        "the divergence behind eta: in closed form, or estimated from the action taken",
        choices=get_args(DivergenceMode),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eta is not None and not self.eta > 0:
            raise ValueError(
                f"eta must be positive, got {self.eta}: let its schedule end above zero, "
                "e.g. lambda progress: 0.1 + 0.9 * progress"
            )

    @property
    def interval(self) -> tuple[float, float]:
        """How far below and above zero the distance from the old policy may be, see :class:`Slope`."""
        return math.inf, math.inf

    @property
    def two_sided(self) -> bool:
        """Whether every sample outside is cut, or only those that would move further out."""
        return False

    @property
    def needs_distributions(self) -> bool:
        return self.eta is not None and self.divergence == "exact"

    @property
    def is_bounded(self) -> bool:
        return self.eta is not None or math.inf not in self.interval

    def objective(self, sample: Sample) -> Tensor:
        place, start = self._place(sample)
        value = sample.advantage * place
        if math.inf not in self.interval:
            below, above = self.interval
            clipped = sample.advantage * place.clamp(start - below, start + above)
            value = clipped if self.two_sided else value.minimum(clipped)
        return value if self.eta is None else value - self._distance(sample) / self.eta

    def outside(self, sample: Sample) -> tuple[Tensor, Tensor]:
        below, above = self.interval
        place, start = self._place(sample)
        return place - start > above, place - start < -below

    def measured(self, sample: Sample) -> dict[str, Tensor]:
        return {} if self.eta is None else {"eta_term": self._distance(sample).mean() / self.eta}

    def slope(self) -> Slope:
        """The compiled form; each cell says so itself, because a subclass may maximise something else."""
        weight = 0.0 if self.eta is None else 1 / self.eta
        return Slope(self.softmax, self.two_sided, *self.interval, weight, self.needs_distributions)

    def _place(self, sample: Sample) -> tuple[Tensor, float]:
        """What is linearised: the new policy in this representation; and the old one there."""
        return (sample.log_ratio, 0.0) if self.softmax else (sample.ratio, 1.0)

    def _distance(self, sample: Sample) -> Tensor:
        """The representation's own divergence from the old policy per transition."""
        if self.divergence == "sampled":
            return (forward_kl if self.softmax else reverse_kl)(sample.log_ratio)
        new, old = sample.distribution, sample.old_distribution
        if new is None or old is None:
            raise ValueError(
                'divergence="exact" needs both distributions of the sample: give them, or write '
                'divergence="sampled"'
            )
        return kl_divergence(old, new) if self.softmax else kl_divergence(new, old)

    @property
    def label(self) -> str:
        # How a divergence that is off would be computed is no variant.
        return super().label if self.eta is not None else super().label.removesuffix("-sampled")


@dataclass(frozen=True)
class _Clipped(_Cell):
    clip_range: float = parameter(
        0.2,
        "schedule",
        "clip (epsilon); none switches it off",
        low=0,
        above=True,
        nullable=True,
        advice="write clip_range=0.2, say, or clip_range=None together with eta=... to train without a clip",
    )
    clip_mode: ClipMode = parameter(
        "one-sided",
        "choice",
        "which samples the clip cuts; symmetric: PPO with sPPO's interval",
        choices=get_args(ClipMode),
    )


@dataclass(frozen=True)
class PPO(_Clipped):
    r"""The clipped ratio, :math:`\min(A e^r, A\,\mathrm{clip}(e^r, 1-\epsilon, 1+\epsilon))`.

    The operations and their order are those of Stable-Baselines3, so that results agree bit for bit.
    With ``clip_mode="symmetric"`` the lower bound is :math:`1/(1+\epsilon)`, which is as far from 1 as the
    upper one in log space. PPO's clip is one-sided by definition, whatever else ``clip_mode`` says.
    With an ``eta``, MDPO's divergence is subtracted.
    """

    name = "ppo"
    title = "PPO"
    colour = "#0072b2"
    softmax = False
    compiled = _Cell.slope

    @property
    def interval(self) -> tuple[float, float]:
        epsilon = self.clip_range
        return (epsilon / (1 + epsilon) if self.clip_mode == "symmetric" else epsilon), epsilon

    def warnings(self) -> list[str]:
        if self.clip_mode == "symmetric" or self.clip_range < 1:
            return []
        return [
            f"clip_range={self.clip_range:g} puts PPO's lower bound, 1 - clip_range, at or below zero, so "
            "that it cuts nothing: write clip_range=0.2, say"
        ]

    @property
    def label(self) -> str:
        return "ppo-symmetric" if self.clip_mode == "symmetric" else "ppo"


@dataclass(frozen=True)
class SPPO(_Clipped):
    r"""sPPO's clipped log-ratio, with :math:`c = \log(1+\epsilon)`.

    - ``"one-sided"``: :math:`\min(A r, A\,\mathrm{clip}(r, -c, c))`. As in PPO, a sample is cut only
      where it would move further out; one that is outside on the wrong side is pulled back.
    - ``"two-sided"`` (the formula as printed): :math:`A\,\mathrm{clip}(r, -c, c)`. A sample outside the
      interval has no gradient, whatever the sign of its advantage, so that nothing pulls it back.

    With an ``eta``, sMDPO's divergence is subtracted.
    """

    name = "sppo"
    title = "sPPO"
    colour = "#e69f00"
    softmax = True
    compiled = _Cell.slope

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_mode == "symmetric":
            raise ValueError(
                'clip_mode="symmetric" is an option of PPO: sPPO\'s interval is symmetric in log space '
                'already, write clip_mode="one-sided" to cut it as PPO does, or use_softmax=False'
            )

    @property
    def interval(self) -> tuple[float, float]:
        bound = math.log1p(self.clip_range)
        return bound, bound

    @property
    def two_sided(self) -> bool:
        return self.clip_mode == "two-sided"

    def warnings(self) -> list[str]:
        if not self.two_sided or self.eta is not None:
            return []
        return [
            "the printed two-sided clip does not pull back a policy that has left its interval, and nothing "
            'else does (it fails on Hopper and Pendulum): write clip_mode="one-sided", or add '
            "kl_budget=0.03, say"
        ]


@dataclass(frozen=True)
class MDPO(_Cell):
    r"""Mirror descent, :math:`A e^r - \mathrm{KL}(\pi \| \pi_t) / \eta`.

    With ``divergence="sampled"`` the divergence is estimated by :func:`~sppo.surrogates.reverse_kl`.
    """

    name = "mdpo"
    title = "MDPO"
    colour = "#56b4e9"
    softmax = False
    compiled = _Cell.slope


@dataclass(frozen=True)
class SMDPO(_Cell):
    r"""sMDPO, :math:`A r - \mathrm{KL}(\pi_t \| \pi) / \eta`.

    With ``divergence="sampled"`` the divergence is estimated by :func:`~sppo.surrogates.forward_kl`, as
    printed, whose gradient is not zero sample by sample. Either way the objective is
    :math:`\sum_a \pi_t (A + 1/\eta) r` in expectation, and has a maximum only where :math:`\eta A > -1` for
    every action: with normalised advantages, which reach beyond -3, ``eta`` must be small, or steered to a
    ``kl_budget`` (``eta="auto"``), which bounds the policy whatever the objective does.
    """

    name = "smdpo"
    title = "sMDPO"
    colour = "#cc79a7"
    softmax = True
    compiled = _Cell.slope


#: (``use_softmax``, whether there is a clip) -> the cell of the table
_TABLE: dict[tuple[bool, bool], type[Surrogate]] = {
    (False, True): PPO,
    (True, True): SPPO,
    (False, False): MDPO,
    (True, False): SMDPO,
}


def chosen(parameters: Mapping[str, Any]) -> type[Surrogate]:
    """The surrogate that an algorithm's parameters choose: by name, or as a cell of the family's table."""
    name = parameters.get("surrogate")
    if name is not None:
        return find(name)
    clipped = parameters.get("clip_range", 0.2) not in (None, math.inf)
    return _TABLE[parameters.get("use_softmax", True), clipped]


#: What keeps the policy close besides the surrogate, and how the critic is trained; off unless it is said.
TRAINING: dict[str, Parameter] = {
    "kl_budget": Parameter(
        "schedule",
        "how far KL(old || new) the policy may move per update; none: as far as the surrogate lets it",
        low=0,
        above=True,
        nullable=True,
        advice="write kl_budget=0.03, say, or kl_budget=None",
    ),
    "n_critic_epochs": Parameter(
        "int",
        "passes of the critic over each batch; none: as many as the actor's",
        low=1,
        nullable=True,
        advice="write n_critic_epochs=30, say, or n_critic_epochs=None for as many as n_epochs",
    ),
    "critic_learning_rate": Parameter(
        "schedule",
        "the critic's step size; none: the actor's",
        low=0,
        nullable=True,
        advice="write critic_learning_rate=1e-3, say, or critic_learning_rate=None",
    ),
    "recompute_advantages": Parameter(
        "bool", "estimate the advantages anew from the current critic before every pass"
    ),
}


def check_proximity(surrogate: Surrogate, eta: object, kl_budget: object) -> None:
    """Refuse a training in which nothing keeps the new policy close to the old one.

    :param eta: as the user wrote it
    :raises ValueError: saying what to write
    """
    if kl_budget is not None:
        return
    if isinstance(eta, str) and eta == AUTO:
        raise ValueError('eta="auto" is steered to a kl_budget: write kl_budget=0.03, say, or eta=1.0')
    if not surrogate.is_bounded:
        raise ValueError(
            "with neither a clip nor eta nor kl_budget nothing keeps the new policy close to the old one: "
            "write clip_range=0.2, eta=1.0 or kl_budget=0.03"
        )
