"""The parameters that SPPO and its relatives add to upstream's, and the surrogate that they choose."""

from __future__ import annotations

import inspect
import math
from typing import Any, Literal

from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule

from sppo.algorithms.safe_loading import SafeLoading
from sppo.algorithms.trust_region import shares_layers
from sppo.parameters import Parameter, checked, unknown
from sppo.surrogates import (
    AUTO,
    TRAINING,
    ClipMode,
    DivergenceMode,
    Surrogate,
    check_proximity,
    chosen,
)

EngineMode = Literal["auto", "reference", "fast"]


class SurrogateChoice(SafeLoading):
    """Mix-in with the new parameters; :class:`sppo.SPPO` documents them.

    :param args: the upstream class's parameters, unchanged and in the same order
    :param kwargs: likewise, and the parameters of a surrogate chosen by name
    """

    clip_range: float | Schedule
    eta: float | Schedule | Literal["auto"] | None
    kl_budget: float | Schedule | None
    critic_learning_rate: float | Schedule | None

    def __init__(
        self,
        *args: Any,
        use_softmax: bool = True,
        eta: float | Schedule | Literal["auto"] | None = None,
        clip_mode: ClipMode = "one-sided",
        divergence: DivergenceMode = "exact",
        kl_budget: float | Schedule | None = None,
        n_critic_epochs: int | None = None,
        critic_learning_rate: float | Schedule | None = None,
        recompute_advantages: bool = False,
        surrogate: str | None = None,
        engine: EngineMode = "auto",
        **kwargs: Any,
    ) -> None:
        # Before the parent's constructor, because that ends in `_setup_model`, which reads them.
        self.use_softmax = use_softmax
        self.eta = eta
        self.clip_mode = clip_mode
        # A file that does not say how its divergence is computed was saved when there was one way only.
        loading = kwargs.get("_init_setup_model") is False and eta is None
        self.divergence: DivergenceMode | None = None if loading else divergence
        self.kl_budget = kl_budget
        self.n_critic_epochs = n_critic_epochs
        self.critic_learning_rate = critic_learning_rate
        self.recompute_advantages = recompute_advantages
        self.surrogate = surrogate
        self.engine = engine
        #: the value of ``eta="auto"``
        self.auto_eta = 1.0
        self._take_surrogate_parameters(args, kwargs)
        super().__init__(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Give each class the signature it really has, for ``help()``, notebooks and ``inspect``."""
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            own = list(inspect.signature(cls.__init__).parameters.values())[1:]
        else:
            ours = inspect.signature(SurrogateChoice.__init__).parameters.values()
            new = [parameter for parameter in ours if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
            own = [*inspect.signature(cls._upstream()).parameters.values(), *new]
        cls.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]

    @classmethod
    def _upstream(cls) -> type:
        return cls.__mro__[cls.__mro__.index(SafeLoading) + 1]

    def _take_surrogate_parameters(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Keep what belongs to a surrogate chosen by name; refuse what belongs to nobody."""
        inherited = inspect.signature(self._upstream()).parameters
        own = {} if self.surrogate is None else chosen({"surrogate": self.surrogate}).defaults()
        for name, default in own.items():
            if name not in inherited and not hasattr(self, name):
                setattr(self, name, kwargs.pop(name, default))
            elif name in list(inherited)[len(args) :]:
                # What upstream takes as well has the surrogate's default, not upstream's.
                kwargs.setdefault(name, default)
        for name in kwargs:
            if name not in inherited:
                known = [*inspect.signature(type(self)).parameters, *own]
                raise TypeError(f"{type(self).__name__}({name}=...): {unknown(name, known)}")
        if self.eta is not None and own and "eta" not in own:
            raise ValueError(f"eta={self.eta!r}: the surrogate {self.surrogate!r} has no such parameter")

    def _setup_model(self) -> None:
        if self.clip_range is None:
            # Upstream wants a number here: an infinite clip cuts nothing, and a model saved with it
            # still loads in the upstream class.
            self.clip_range = math.inf
        if self.divergence is None:
            self.divergence = "exact" if self.eta is None else "sampled"
        surrogate, values = self.surrogate_class, {}
        # A file that was saved with another surrogate says nothing of this one's parameters.
        vars(self).update({k: v for k, v in surrogate.defaults().items() if not hasattr(self, k)})
        for name, parameter in {**surrogate.parameters(), **TRAINING}.items():
            value = _constant(getattr(self, name))
            if not callable(value):
                checked_or_raise(name, value, parameter)
            # A schedule's values are looked at when it gives them.
            values[name] = 1.0 if callable(value) or value in parameter.words else value
        numbers = {name: values[name] for name in surrogate.parameters()}
        check_proximity(surrogate(**numbers), self.eta, self.kl_budget)
        super()._setup_model()
        if self.critic_learning_rate is not None and shares_layers(self.policy):
            raise ValueError(
                "critic_learning_rate: actor and critic share layers, which have one learning rate: write "
                "policy_kwargs=dict(share_features_extractor=False), or leave it out"
            )
        for name, parameter in {**surrogate.parameters(), **TRAINING}.items():
            value = getattr(self, name)
            if parameter.kind == "schedule" and value is not None and value != AUTO:
                setattr(self, name, FloatSchedule(value))

    @property
    def surrogate_class(self) -> type[Surrogate]:
        """The surrogate that the parameters choose."""
        checked_or_raise("use_softmax", self.use_softmax, Parameter("bool", ""))
        clip_range = _constant(self.clip_range)
        return chosen({**vars(self), "clip_range": 1.0 if callable(clip_range) else clip_range})

    @property
    def surrogate_name(self) -> str:
        """The name of the surrogate in use: PPO, SPPO, MDPO, SMDPO or another one's."""
        return self.surrogate_class.name.upper()

    def current_surrogate(self) -> Surrogate:
        """What is maximised now."""
        return self.surrogate_at(self._current_progress_remaining)

    def surrogate_at(self, progress: float) -> Surrogate:
        """The surrogate with its schedules evaluated at a remaining progress, from 1 to 0."""
        values = {name: getattr(self, name) for name in self.surrogate_class.parameters()}
        if values.get("eta") == AUTO:
            values["eta"] = self.auto_eta
        numbers = {name: value(progress) if callable(value) else value for name, value in values.items()}
        try:
            surrogate = self.surrogate_class(**numbers)
            check_proximity(surrogate, self.eta, self.kl_budget)
            return surrogate
        except ValueError as error:
            raise ValueError(f"{error} (at progress_remaining={progress:.3g})") from error

    @property
    def trains_apart(self) -> bool:
        """Whether actor and critic are trained apart, see :class:`~sppo.algorithms.trust_region.Halves`."""
        given = (self.kl_budget, self.n_critic_epochs, self.critic_learning_rate)
        return any(value is not None for value in given)


def checked_or_raise(name: str, value: object, parameter: Parameter) -> None:
    """Refuse an impossible value of a constructor's parameter, and say what to write instead."""
    try:
        if parameter.kind == "schedule" and isinstance(value, str) and value not in parameter.words:
            raise ValueError(f"{value!r} is neither a number nor a function of the remaining progress")
        checked(name, value, parameter)
    except ValueError as error:
        advice = f"; {parameter.advice}" if parameter.advice else ""
        raise ValueError(f"{name}={error}{advice}") from None


def _constant(value: object) -> object:
    """The number behind a parameter that may be a number or a schedule; a schedule that varies as it is.

    Models keep their constants as schedules once they are set up or loaded.
    """
    if isinstance(value, FloatSchedule):
        value = value.value_schedule
    return value.val if isinstance(value, ConstantSchedule) else value
