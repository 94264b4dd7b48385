"""Which engine trains a model: compiled code where it is wanted and covers the model, PyTorch elsewhere."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from sppo.algorithms.finite import finite_inputs
from sppo.algorithms.surrogate_choice import EngineMode, SurrogateChoice, checked_or_raise
from sppo.algorithms.trust_region import is_critics
from sppo.parameters import Parameter
from sppo.surrogates import PPO, Surrogate

if TYPE_CHECKING:
    from sppo.engine.fast import FastEngine

_ENGINE = Parameter("choice", "", choices=get_args(EngineMode), advice='write engine="auto"')
Method = TypeVar("Method", bound=Callable[..., object])


@contextmanager
def without_torch_compiler() -> Iterator[None]:
    """Make an optimizer without ``torch._dynamo``, whose import takes a second and 70 MB of every training.

    PyTorch imports it to mark one method as not to be compiled, and remembers the marked method in an
    attribute; the fast engine calls no method of an optimizer. Without effect if that attribute is there
    already, or the compiler is loaded.
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


class EngineChoice(SurrogateChoice):
    """Mix-in that hands rollouts and updates to :mod:`sppo.engine` where it covers the model."""

    #: which engine the last rollout or update ran on: ``"fast"`` or ``"reference"``
    engine_in_use: str | None = None
    _fast: FastEngine | None = None
    _engine_told = False

    def _setup_model(self) -> None:
        checked_or_raise("engine", self.engine, _ENGINE)
        with without_torch_compiler():
            super()._setup_model()

    def parameter_halves(self) -> tuple[list[th.nn.Parameter], list[th.nn.Parameter]]:
        """The parameters that are trained with the actor, and those that are trained apart from it."""
        halves: tuple[list[th.nn.Parameter], list[th.nn.Parameter]] = ([], [])
        for name, parameter in self.policy.named_parameters():
            halves[self.trains_apart and is_critics(name)].append(parameter)
        return halves

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        with finite_inputs(self):
            return super()._setup_learn(*args, **kwargs)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
        *args: bool,
    ) -> bool:
        """Fill the rollout buffer, in compiled code where :mod:`sppo.engine` covers the policy."""
        with finite_inputs(self):
            engine = self._fast_engine(None)
            if engine is not None:
                masks_of = self._mask_source(env, *args)
                return engine.collect(self, env, callback, rollout_buffer, n_rollout_steps, masks_of)
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps, *args)

    def _mask_source(self, env: VecEnv) -> Callable[[VecEnv], np.ndarray] | None:
        """Where the allowed actions come from; ``None`` if all are always allowed."""
        return None

    def _fast_engine(self, surrogate: Surrogate | None) -> FastEngine | None:
        """The compiled engine, if it is wanted and covers this model; :attr:`engine_in_use` says which runs.

        :param surrogate: what an update maximises; ``None`` for collecting rollouts
        """
        checked_or_raise("engine", self.engine, _ENGINE)
        self.engine_in_use = "reference"
        if self.engine == "reference" or not self._wants_fast_engine():
            return None
        # Here, so that the reference loop does without Numba.
        from sppo.engine.coverage import Unsupported, check_methods, check_surrogate
        from sppo.engine.fast import FastEngine

        self._fast = self._fast or FastEngine()
        try:
            self._fast.check(self, None if surrogate is None else self.parameter_halves())
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

    def _wants_fast_engine(self) -> bool:
        """Whether compiled code is to be tried: for upstream's own surrogate only on request."""
        upstreams = self.surrogate_class is PPO and self.eta is None and self.clip_mode != "symmetric"
        upstreams = upstreams and not self.trains_apart and not self.recompute_advantages
        if self.engine == "auto" and upstreams:
            self._tell(
                "Using the reference engine, whose weights are upstream's bit for bit; "
                "engine='fast' gives the same to rounding, several times faster"
            )
            return False
        return True

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
