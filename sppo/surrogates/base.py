"""What a surrogate is: the class that one adds to, the sample that it sees, and where it is found by name."""

from __future__ import annotations

import dataclasses
import importlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar, Unpack

from sppo.parameters import Parameter, Ranges, checked, unknown

if TYPE_CHECKING:
    from stable_baselines3.common.distributions import Distribution
    from torch import Tensor

Value = TypeVar("Value")


@dataclass(frozen=True)
class Sample:
    r"""A minibatch as a surrogate sees it: tensors of one shape, one element per transition.

    :param log_prob: :math:`\log \pi(a|s)` of the policy that is trained
    :param old_log_prob: :math:`\log \pi_t(a|s)` of the policy that collected the data
    :param advantage: :math:`A^{\pi_t}(s, a)`
    :param distribution: :math:`\pi(\cdot|s)`, for surrogates that set ``needs_distributions``
    :param old_distribution: :math:`\pi_t(\cdot|s)`, likewise
    """

    log_prob: Tensor
    old_log_prob: Tensor
    advantage: Tensor
    distribution: Distribution | None = None
    old_distribution: Distribution | None = None

    @cached_property
    def log_ratio(self) -> Tensor:
        r""":math:`r = \log \pi(a|s) - \log \pi_t(a|s)`."""
        return self.log_prob - self.old_log_prob

    @cached_property
    def ratio(self) -> Tensor:
        """:math:`x = e^r`."""
        return self.log_ratio.exp()


class Slope(NamedTuple):
    """A surrogate in numbers, for compiled code: linear within an interval, cut outside, less a divergence.

    The *distance* from the old policy is the log-ratio in the softmax representation and the ratio minus
    one in the direct one. The divergence is the representation's own, see :mod:`sppo.surrogates`.

    :param two_sided: whether every sample outside is cut, or only those that would move further out
    :param below: how far below zero the distance may be
    :param above: how far above zero the distance may be
    :param inverse_eta: weight of the divergence
    :param exact: whether the divergence is the distributions', or estimated from the log-ratio
    """

    use_softmax: bool
    two_sided: bool
    below: float
    above: float
    inverse_eta: float
    exact: bool = False


class Surrogate:
    """What is maximised. Subclasses are frozen dataclasses whose fields, made by :func:`parameter`, are
    their parameters: those are keyword arguments of the algorithms, flags of the command line and keys of
    study files. Subclassing with a ``name`` is enough to be found by it.
    """

    #: how it is chosen (``surrogate="spo"``), and its runs' name in upper case
    name: ClassVar[str]
    #: what reports print
    title: ClassVar[str]
    #: its lines in reports
    colour: ClassVar[str]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            REGISTRY[cls.name] = cls

    def __post_init__(self) -> None:
        for name, each in self.parameters().items():
            if each.choices:
                checked(name, getattr(self, name), each)

    def objective(self, sample: Sample) -> Tensor:
        """The objective per transition; its mean over the minibatch is maximised."""
        raise NotImplementedError(f"{type(self).__name__} has no objective")

    @property
    def needs_distributions(self) -> bool:
        """Whether :class:`Sample` is to hold both distributions (a second forward pass)."""
        return False

    @property
    def is_bounded(self) -> bool:
        """Whether it keeps the new policy close to the old one by itself; else a ``kl_budget`` has to."""
        return True

    def outside(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """Which transitions lie above and below the interval that the policy is to stay in, if any."""
        never = sample.log_ratio > math.inf
        return never, never

    def measured(self, sample: Sample) -> dict[str, Tensor]:
        """Further columns of the log, ``train/<key>``: means over the minibatch."""
        return {}

    def compiled(self) -> Slope | None:
        """The same in numbers for :mod:`sppo.engine`, if it can be said so; else PyTorch maximises it.

        Not inherited: a subclass whose objective may be another one says it again.
        """
        return None

    def warnings(self) -> list[str]:
        """What :func:`sppo.check` says about these numbers, and what to write instead."""
        return []

    @property
    def label(self) -> str:
        """Its usual name in studies: the name, and the variant if that is not the default one."""
        variants = [
            f"-{getattr(self, each.name)}"
            for each in dataclasses.fields(self)  # type: ignore[arg-type]
            if each.metadata["parameter"].kind == "choice" and getattr(self, each.name) != each.default
        ]
        return self.name + "".join(variants)

    @classmethod
    def parameters(cls) -> dict[str, Parameter]:
        """Its parameters by name."""
        return {each.name: each.metadata["parameter"] for each in dataclasses.fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def defaults(cls) -> dict[str, object]:
        """The values of its parameters if nothing is said."""
        return {each.name: each.default for each in dataclasses.fields(cls)}  # type: ignore[arg-type]


#: name -> class, in the order in which they were defined
REGISTRY: dict[str, type[Surrogate]] = {}


def parameter(default: Value, kind: str, help: str, **ranges: Unpack[Ranges]) -> Value:
    """A field of a surrogate, see :class:`sppo.parameters.Parameter`; one without a value is nullable."""
    ranges.setdefault("nullable", default is None)
    return field(default=default, metadata={"parameter": Parameter(kind, help, **ranges)})


def find(name: str) -> type[Surrogate]:
    """The surrogate of this name, or the class ``"package.module:Class"``, whose module is imported.

    :raises ValueError: if there is none
    """
    module, separator, attribute = name.partition(":")
    if separator:
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"surrogate={name!r}: {error}") from error
        if not (isinstance(found, type) and issubclass(found, Surrogate)):
            raise ValueError(f"surrogate={name!r}: {attribute} is no subclass of sppo.surrogates.Surrogate")
        return found
    if name not in REGISTRY:
        known = ", ".join(REGISTRY)
        raise ValueError(
            f"{unknown(name, REGISTRY).replace('key', 'surrogate')} {name!r}: write one of {known}, or "
            '"package.module:Class"'
        )
    return REGISTRY[name]
