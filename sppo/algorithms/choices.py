"""The parameters that SPPO and its relatives add to upstream's: which surrogate they choose, which engine."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import torch as th
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule
from stable_baselines3.common.vec_env import VecEnv

from sppo.algorithms.safe_loading import SafeLoading
from sppo.algorithms.trust_region import parameter_halves, shares_layers
from sppo.parameters import Parameter, checked, unknown
from sppo.surrogates import AUTO, PPO, TRAINING, Surrogate, check_proximity, chosen
from sppo.surrogates.family import ClipMode, DivergenceMode

if TYPE_CHECKING:
    from sppo.engine.fast import FastEngine

EngineMode = Literal["auto", "reference", "fast"]
_ENGINE = Parameter("choice", "", choices=get_args(EngineMode), advice='write engine="auto"')
#: stands for a parameter of the surrogate that was not given: the default is the surrogate's own
OWN_DEFAULT: Any = object()
Method = TypeVar("Method", bound=Callable[..., object])


@contextmanager
def without_torch_compiler() -> Iterator[None]:
    """Make an optimizer without ``torch._dynamo``, whose import takes a second and 70 MB of every training.

    PyTorch imports it to mark one method as not to be compiled, unless an attribute of that method says that
    this was done; the fast engine calls no method of an optimizer.
    """
    method = getattr(th.optim.Optimizer.add_param_group, "__wrapped__", None)
    if method is None or "torch._dynamo" in sys.modules or hasattr(method, "__dynamo_disable"):
        yield
        return
    method.__dynamo_disable = method
    try:
        yield
    finally:
        del method.__dynamo_disable


def replaced_by_engine(method: Method) -> Method:
    """Mark a method that compiled code stands in for: where it is overridden, the engine is not used."""
    method.replaced_by_engine = True  # type: ignore[attr-defined]
    return method


class Choices(SafeLoading):
    """Mix-in with the new parameters; :class:`sppo.SPPO` documents them.

    :param args: the upstream class's parameters, unchanged and in the same order
    :param kwargs: likewise, and the parameters of a surrogate chosen by name
    """

    clip_range: float | Schedule
    # Another surrogate may have no such parameter.
    eta: float | Schedule | Literal["auto"] | None = None
    clip_mode: ClipMode
    kl_budget: float | Schedule | None
    critic_learning_rate: float | Schedule | None
    #: which engine the last rollout or update ran on: ``"fast"`` or ``"reference"``
    engine_in_use: str | None = None
    _fast: FastEngine | None = None
    _engine_told = False

    def __init__(
        self,
        *args: Any,
        use_softmax: bool = True,
        eta: float | Schedule | Literal["auto"] | None = OWN_DEFAULT,
        clip_mode: ClipMode = OWN_DEFAULT,
        divergence: DivergenceMode = OWN_DEFAULT,
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
        self.kl_budget = kl_budget
        self.n_critic_epochs = n_critic_epochs
        self.critic_learning_rate = critic_learning_rate
        self.recompute_advantages = recompute_advantages
        self.surrogate = surrogate
        self.engine = engine
        #: the value of ``eta="auto"``
        self.auto_eta = 1.0
        given = {"eta": eta, "clip_mode": clip_mode, "divergence": divergence}
        self._take_surrogate_parameters(given, args, kwargs)
        super().__init__(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Give each class the signature it really has, for ``help()``, notebooks and ``inspect``."""
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            own = list(inspect.signature(cls.__init__).parameters.values())[1:]
        else:
            family = chosen({}).defaults()
            ours = inspect.signature(Choices.__init__).parameters.values()
            new = [each for each in ours if each.kind is each.KEYWORD_ONLY]
            own = [*inspect.signature(cls._upstream()).parameters.values()]
            own += [each.replace(default=family.get(each.name, each.default)) for each in new]
        cls.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]

    @classmethod
    def _upstream(cls) -> type:
        return cls.__mro__[cls.__mro__.index(SafeLoading) + 1]

    def _take_surrogate_parameters(
        self, ours: Mapping[str, object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """Keep what belongs to the surrogate; refuse what belongs to nobody."""
        inherited = list(inspect.signature(self._upstream()).parameters)
        own = chosen({"surrogate": self.surrogate}).defaults()
        given = {name: value for name, value in ours.items() if value is not OWN_DEFAULT}
        given |= {name: kwargs.pop(name) for name in own.keys() & kwargs.keys() if name not in inherited}
        for name, value in given.items():
            if name not in own:
                raise ValueError(f"{name}={value!r}: the surrogate {self.surrogate!r} has no such parameter")
        for name in kwargs:
            if name not in inherited:
                known = [*inspect.signature(type(self)).parameters, *own]
                raise TypeError(f"{type(self).__name__}({name}=...): {unknown(name, known)}")
        # A file that is being loaded has yet to say what it was saved with.
        loading = kwargs.get("_init_setup_model") is False
        for name, default in own.items():
            if name in inherited[len(args) :]:
                # What upstream takes as well has the surrogate's default, not upstream's.
                kwargs.setdefault(name, default)
            elif name not in inherited and not loading:
                given.setdefault(name, default)
        vars(self).update(given)

    def _setup_model(self) -> None:
        checked_or_raise("engine", self.engine, _ENGINE)
        if self.clip_range is None:
            # Upstream wants a number here: an infinite clip cuts nothing, and a model saved with it
            # still loads in the upstream class.
            self.clip_range = math.inf
        unsaid = chosen({"surrogate": self.surrogate}).defaults()
        if self.surrogate is None and self.eta is not None:
            # A file that does not say how its divergence is computed was saved when there was one way only.
            unsaid["divergence"] = "sampled"
        for name, default in unsaid.items():
            vars(self).setdefault(name, default)
        surrogate, numbers = self.surrogate_class, {}
        for name, parameter in {**TRAINING, **surrogate.parameters()}.items():
            given = getattr(self, name)
            value = _constant(given)
            if not callable(value):
                checked_or_raise(name, value, parameter)
            if parameter.kind == "schedule" and given is not None and given != AUTO:
                setattr(self, name, FloatSchedule(given))
            if name in surrogate.parameters():
                # A schedule's values are looked at when it gives them.
                numbers[name] = 1.0 if callable(value) or value in parameter.words else value
        check_proximity(surrogate(**numbers), self.eta, self.kl_budget)
        with without_torch_compiler():
            super()._setup_model()
        if self.critic_learning_rate is not None and shares_layers(self.policy):
            raise ValueError(
                "critic_learning_rate: actor and critic share layers, which have one learning rate: write "
                "policy_kwargs=dict(share_features_extractor=False), or leave it out"
            )

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

    def _mask_source(self, env: VecEnv) -> Callable[[VecEnv], np.ndarray] | None:
        """Where the allowed actions come from; ``None`` if all are always allowed."""
        return None

    def _fast_engine(self, surrogate: Surrogate | None = None) -> FastEngine | None:
        """The compiled engine, if it is wanted and covers collecting, or updates with this surrogate."""
        checked_or_raise("engine", self.engine, _ENGINE)
        self.engine_in_use = "reference"
        if self.engine == "reference":
            return None
        plain = self.surrogate_class is PPO and self.eta is None and self.clip_mode != "symmetric"
        if self.engine == "auto" and plain and not self.trains_apart and not self.recompute_advantages:
            self._tell(
                "Using the reference engine, whose weights are upstream's bit for bit; "
                "engine='fast' gives the same to rounding, several times faster"
            )
            return None
        # Here, so that the reference loop does without Numba.
        from sppo.engine.coverage import Unsupported, check_methods, check_surrogate
        from sppo.engine.fast import FastEngine

        self._fast = self._fast or FastEngine()
        try:
            updated = None if surrogate is None else parameter_halves(self.policy, self.trains_apart)
            self._fast.check(self, updated)
            check_methods(self)
            if surrogate is not None:
                check_surrogate(surrogate)
        except Unsupported as reason:
            if self.engine == "fast":
                raise ValueError(
                    f"the fast engine does not cover {reason}: write engine='auto' or engine='reference'"
                ) from None
            self._tell(f"Using the reference engine: the fast one does not cover {reason}", reason.changeable)
            return None
        self.engine_in_use = "fast"
        return self._fast

    def _tell(self, message: str, warn: bool = False) -> None:
        """Say once why compiled code is not used: to those who asked, or whose own choice it was."""
        if self._engine_told:
            return
        self._engine_told = True
        if warn:
            warnings.warn(f"{message}; engine='reference' says so without this warning", stacklevel=2)
        elif self.verbose >= 1:
            print(message)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_fast", "_engine_told", "engine_in_use"]


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
    """The number behind a constant schedule, as which models keep their numbers; others as they are."""
    if isinstance(value, FloatSchedule):
        value = value.value_schedule
    return value.val if isinstance(value, ConstantSchedule) else value
