"""What SPPO, MaskableSPPO and RecurrentSPPO share: the new parameters and the one update loop.

:class:`SurrogateAlgorithm` stands before the upstream class in the method resolution order and replaces
its ``train``. Everything else (saving, callbacks, logging) is inherited, and so is the collection of
rollouts unless :mod:`sppo.engine` covers the model. The upstream classes differ only in what their
buffers yield, so the loop asks two small hooks: :meth:`~SurrogateAlgorithm._evaluate_actions` and
:meth:`~SurrogateAlgorithm._valid_samples`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback, Schedule
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, explained_variance
from stable_baselines3.common.vec_env import VecEnv
from torch.nn import functional as F

from sppo.algorithms.files import SafeLoading
from sppo.algorithms.finite import FiniteGuard, RolloutWatch, cannot_act, is_about_numbers
from sppo.algorithms.statistics import MEASUREMENTS, UpdateStatistics
from sppo.surrogates import CLIP_MODES, ClipMode, Surrogate

if TYPE_CHECKING:
    from sppo.engine.driver import FastEngine

EngineMode = Literal["auto", "reference", "fast"]
ENGINES: tuple[str, ...] = get_args(EngineMode)
#: names of the policy classes for which the fast engine is likely to apply
FAST_POLICIES = ("ActorCriticPolicy", "MaskableActorCriticPolicy")

SelfSurrogateAlgorithm = TypeVar("SelfSurrogateAlgorithm", bound="SurrogateAlgorithm")


class SurrogateAlgorithm(SafeLoading):
    """Mix-in that trains an upstream PPO class with any surrogate of the family.

    Use it through :class:`sppo.SPPO`, :class:`sppo.MaskableSPPO` or :class:`sppo.RecurrentSPPO`.

    :param args: the upstream class's parameters, unchanged and in the same order
    :param use_softmax: linearise the log-ratio (sPPO, sMDPO) instead of the ratio (PPO, MDPO)
    :param eta: step size of the divergence from the old policy, or a function of the remaining
        progress; ``None`` leaves the divergence out
    :param clip_mode: which samples sPPO's clip cuts, see :func:`sppo.surrogates.sppo`. PPO's clip is
        one-sided by definition: for it only ``"symmetric"`` makes a difference, which raises its lower
        bound from ``1 - clip_range`` to ``1 / (1 + clip_range)``
    :param engine: ``"auto"`` collects and updates in compiled code where :mod:`sppo.engine` covers the
        model and with PyTorch elsewhere, as well as for upstream's own surrogate (``use_softmax=False``
        without ``eta``), whose weights stay upstream's bit for bit unless ``"fast"`` is asked for;
        ``"reference"`` always uses PyTorch, operation for operation
        as upstream does; ``"fast"`` insists on compiled code and raises if it does not apply
    :param kwargs: see ``args``; ``clip_range=None`` switches the clip off (then ``eta`` is needed)
    """

    #: the upstream class's own name for its runs, with ``{}`` in place of the surrogate's
    run_name: ClassVar[str] = "{}"

    batch_size: Any
    n_epochs: int
    normalize_advantage: bool
    target_kl: float | None
    clip_range: Any
    clip_range_vf: Any
    eta: Any

    def __init__(
        self,
        *args: Any,
        use_softmax: bool = True,
        eta: float | Schedule | None = None,
        clip_mode: ClipMode = "two-sided",
        engine: EngineMode = "auto",
        **kwargs: Any,
    ) -> None:
        # Before the parent's constructor, because that ends in `_setup_model`, which reads them.
        self._finite_guard = FiniteGuard()
        self.use_softmax = use_softmax
        self.eta = eta
        self.clip_mode = clip_mode
        self.engine = engine
        self._fast: FastEngine | None = None
        self._fallback_told = False
        super().__init__(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give each class the signature it really has, for ``help()``, notebooks and ``inspect``."""
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            own = list(inspect.signature(cls.__init__).parameters.values())[1:]
        else:
            upstream = cls.__mro__[cls.__mro__.index(SafeLoading) + 1]
            ours = inspect.signature(SurrogateAlgorithm.__init__).parameters.values()
            new = [parameter for parameter in ours if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
            own = [*inspect.signature(upstream).parameters.values(), *new]
        cls.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]

    def _setup_model(self) -> None:
        self._check_surrogate()
        if self.engine not in ENGINES:
            options = ", ".join(f'engine="{name}"' for name in ENGINES)
            raise ValueError(f"unknown engine={self.engine!r}: write one of {options}")
        setup: AbstractContextManager[None] = nullcontext()
        if self._wants_fast_engine() and self.policy_class.__name__ in FAST_POLICIES:
            # Before the policy is made, which leaves time to compile meanwhile.
            setup = self._make_engine().lean_setup()
        if self.clip_range is None:
            # Upstream wants a number here: an infinite clip cuts nothing, and a model saved with it
            # still loads in the upstream class.
            self.clip_range = math.inf
        with setup:
            super()._setup_model()
        if self.eta is not None:
            self.eta = FloatSchedule(self.eta)

    def _check_surrogate(self) -> None:
        """Refuse parameters that name no surrogate, and say what to write instead."""
        if self.clip_mode not in CLIP_MODES:
            options = " or ".join(f'clip_mode="{mode}"' for mode in CLIP_MODES)
            raise ValueError(f"unknown clip_mode={self.clip_mode!r}: write {options}")
        if self.clip_mode == "symmetric" and self.use_softmax:
            raise ValueError(
                'clip_mode="symmetric" is an option of PPO: sPPO\'s interval is symmetric in log space '
                'already, write clip_mode="one-sided" to cut it as PPO does, or use_softmax=False'
            )
        clip, eta = _constant(self.clip_range), _constant(self.eta)
        if clip is not None and not clip > 0:
            raise ValueError(
                f"clip_range must be positive, got {clip}: write clip_range=0.2, say, "
                "or clip_range=None together with eta=... to train without a clip"
            )
        if eta is not None and not eta > 0:
            raise ValueError(
                f"eta must be positive, got {eta}: write eta=1.0, say (smaller keeps closer to the "
                "old policy), or eta=None to train with the clip alone"
            )
        if self.eta is None and (self.clip_range is None or clip == math.inf):
            raise ValueError(
                "with neither a clip nor eta nothing keeps the new policy close to the old one: "
                "write clip_range=0.2, or eta=1.0, or both"
            )

    @property
    def surrogate_name(self) -> str:
        """The name of the surrogate in use: PPO, SPPO, MDPO or SMDPO."""
        clipped = not math.isinf(_constant(self.clip_range) or 0.0)
        return ("S" if self.use_softmax else "") + ("PPO" if clipped else "MDPO")

    def current_surrogate(self) -> Surrogate:
        """The surrogate with its schedules evaluated at the current progress."""
        progress = self._current_progress_remaining
        eta = None if self.eta is None else self.eta(progress)
        if eta is not None and not eta > 0:
            raise ValueError(
                f"the eta schedule gave {eta} at progress_remaining={progress:.3g}: "
                "let it end above zero, e.g. lambda progress: 0.1 + 0.9 * progress"
            )
        return Surrogate(self.use_softmax, self.clip_range(progress), eta, self.clip_mode)

    def learn(
        self: SelfSurrogateAlgorithm,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> SelfSurrogateAlgorithm:
        """Train, as upstream's ``learn`` does.

        :param tb_log_name: the name of the run for TensorBoard; the default names the surrogate
            (``SPPO``, ``PPO``, ``SMDPO``, ``MDPO``), so that runs can be told apart
        """
        self.require_complete()
        name = self.run_name.format(self.surrogate_name) if tb_log_name is None else tb_log_name
        return super().learn(total_timesteps, callback, log_interval, name, *args, **kwargs)

    def train(self) -> None:
        """Update the policy with the rollout buffer's data: ``n_epochs`` passes in minibatches."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        surrogate = self.current_surrogate()
        clip_range_vf = (
            None if self.clip_range_vf is None else self.clip_range_vf(self._current_progress_remaining)
        )
        statistics = UpdateStatistics()
        engine = self._fast_engine(self.policy.optimizer)
        if engine is None:
            for epoch in range(self.n_epochs):
                finished = self._train_epoch(epoch, surrogate, clip_range_vf, statistics)
                self._n_updates += 1
                if not finished:
                    break
        else:
            self._train_fast(engine, surrogate, clip_range_vf, statistics)
        self._log_update(surrogate, clip_range_vf, statistics)

    def _train_fast(
        self,
        engine: FastEngine,
        surrogate: Surrogate,
        clip_range_vf: float | None,
        statistics: UpdateStatistics,
    ) -> None:
        """All passes over the buffer in compiled code, on the same minibatches as the loop below."""
        settings = engine.settings(self, surrogate, clip_range_vf)
        for epoch, result in enumerate(engine.update(self, settings)):
            statistics.start_epoch()
            statistics.extend(result.measured)
            statistics.skipped += result.skipped
            self._finite_guard.record(self, result.skipped, len(result.measured))
            self._n_updates += 1
            if not result.finished and self.verbose >= 1:
                approx_kl = result.measured[-1, MEASUREMENTS.index("approx_kl")]
                print(f"Early stopping at step {epoch} due to reaching max kl: {approx_kl:.2f}")

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: Any, n_rollout_steps: int, *args: Any
    ) -> bool:
        """Fill the rollout buffer, in compiled code where :mod:`sppo.engine` covers the policy.

        Observations and rewards that are not finite are repaired on the way.
        """
        watch: Any = RolloutWatch(self, callback)
        engine = self._fast_engine(None)
        if engine is not None:
            masks_of = self._mask_source(env, *args)
            return engine.collect(self, env, watch, rollout_buffer, n_rollout_steps, masks_of)
        try:
            return super().collect_rollouts(env, watch, rollout_buffer, n_rollout_steps, *args)
        except (ValueError, RuntimeError) as error:
            if not is_about_numbers(error):
                raise
            raise cannot_act(self, error) from error

    def _mask_source(self, env: VecEnv) -> Callable[[VecEnv], np.ndarray] | None:
        """Where the allowed actions come from; ``None`` if all are always allowed."""
        return None

    def _fast_engine(self, optimizer: th.optim.Optimizer | None) -> FastEngine | None:
        """The compiled engine, if it is wanted and covers this model.

        :param optimizer: the optimizer it has to stand in for, ``None`` for collecting rollouts
        """
        if not self._wants_fast_engine():
            return None
        # Here, so that the reference loop does without Numba.
        from sppo.engine.layout import Unsupported

        engine = self._make_engine()
        try:
            engine.check(self, optimizer)
            for hook in ("_loss", "_normalized", "_train_epoch"):
                if getattr(type(self), hook) is not getattr(SurrogateAlgorithm, hook):
                    raise Unsupported(f"the method {hook} of {type(self).__name__}")
        except Unsupported as reason:
            if self.engine == "fast":
                raise ValueError(
                    f"the fast engine does not cover {reason}: write engine='auto' or engine='reference'"
                ) from None
            if self.verbose >= 1 and not self._fallback_told:
                print(f"Using the reference engine: the fast one does not cover {reason}")
                self._fallback_told = True
            return None
        return engine

    def _wants_fast_engine(self) -> bool:
        """Whether compiled code is to be tried: for upstream's own surrogate only on request."""
        upstreams = not self.use_softmax and self.eta is None and self.clip_mode != "symmetric"
        if self.engine != "auto" or not upstreams:
            return self.engine != "reference"
        if self.verbose >= 1 and not self._fallback_told:
            print(
                "Using the reference engine, whose weights are upstream's bit for bit; "
                "engine='fast' gives the same to rounding, several times faster"
            )
            self._fallback_told = True
        return False

    def _make_engine(self) -> FastEngine:
        from sppo.engine.driver import FastEngine

        if self._fast is None:
            self._fast = FastEngine()
        return self._fast

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_fast", "_fallback_told", "_finite_guard"]

    def _train_epoch(
        self, epoch: int, surrogate: Surrogate, clip_range_vf: float | None, statistics: UpdateStatistics
    ) -> bool:
        """One pass over the buffer; ``False`` if it was ended early because of ``target_kl``."""
        statistics.start_epoch()
        for data in self.rollout_buffer.get(self.batch_size):
            try:
                loss, approx_kl = self._loss(data, surrogate, clip_range_vf, statistics)
            except ValueError as error:
                # PyTorch's distributions refuse what is not finite before there is a loss.
                if not is_about_numbers(error):
                    raise
                statistics.skipped += 1
                self._finite_guard.record(self, 1, 1)
                continue
            if self.target_kl is not None and approx_kl.item() > 1.5 * self.target_kl:
                if self.verbose >= 1:
                    print(f"Early stopping at step {epoch} due to reaching max kl: {approx_kl.item():.2f}")
                return False
            self.policy.optimizer.zero_grad()
            loss.backward()
            norm = th.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            # The sum is finite only if both are.
            finite = math.isfinite((loss.detach() + norm).item())
            if finite:
                self.policy.optimizer.step()
            else:
                statistics.skipped += 1
            self._finite_guard.record(self, int(not finite), 1)
        return True

    def _loss(
        self, data: Any, surrogate: Surrogate, clip_range_vf: float | None, statistics: UpdateStatistics
    ) -> tuple[th.Tensor, th.Tensor]:
        """The minibatch's loss and its approximate KL divergence from the old policy.

        With ``use_softmax=False`` and ``eta=None`` the operations and their order are upstream's, so
        that the gradients agree bit for bit.
        """
        actions = data.actions
        if isinstance(self.action_space, spaces.Discrete):
            actions = actions.long().flatten()
        values, log_prob, entropy = self._evaluate_actions(data, actions)
        values = values.flatten()
        valid = self._valid_samples(data)

        def mean(sample: th.Tensor) -> th.Tensor:
            return th.mean(sample if valid is None else sample[valid])

        advantages = self._normalized(data.advantages, valid)
        policy_loss = -mean(surrogate(log_prob, data.old_log_prob, advantages))
        if clip_range_vf is not None:
            values = data.old_values + th.clamp(values - data.old_values, -clip_range_vf, clip_range_vf)
        if valid is None:
            value_loss = F.mse_loss(data.returns, values)
        else:
            value_loss = mean((data.returns - values) ** 2)
        entropy_loss = -mean(-log_prob if entropy is None else entropy)
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        with th.no_grad():
            log_ratio = log_prob - data.old_log_prob
            above, below = surrogate.outside(log_prob, data.old_log_prob)
            approx_kl = mean((th.exp(log_ratio) - 1) - log_ratio)
            distance = log_ratio.abs() if valid is None else log_ratio[valid].abs()
            divergence = mean(surrogate.divergence(log_prob, data.old_log_prob))
            statistics.add(
                loss=loss,
                policy_loss=policy_loss,
                value_loss=value_loss,
                entropy_loss=entropy_loss,
                approx_kl=approx_kl,
                clipped_above=mean(above.float()),
                clipped_below=mean(below.float()),
                log_ratio_mean=distance.mean(),
                log_ratio_max=distance.max(),
                divergence=divergence,
            )
        return loss, approx_kl

    def _normalized(self, advantages: th.Tensor, valid: th.Tensor | None) -> th.Tensor:
        """Advantages with mean 0 and standard deviation 1 over the valid samples, if so configured."""
        sample = advantages if valid is None else advantages[valid]
        # One sample has no standard deviation.
        if not self.normalize_advantage or len(sample) <= 1:
            return advantages
        return (advantages - sample.mean()) / (sample.std() + 1e-8)

    def _evaluate_actions(
        self, data: Any, actions: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Values, log-probabilities and entropies of a minibatch under the current policy."""
        return self.policy.evaluate_actions(data.observations, actions)

    def _valid_samples(self, data: Any) -> th.Tensor | None:
        """Which samples of a padded minibatch are real; ``None`` if there is no padding."""
        return None

    def _log_update(
        self, surrogate: Surrogate, clip_range_vf: float | None, statistics: UpdateStatistics
    ) -> None:
        """Record upstream's keys, then what shows how the surrogate behaves."""
        values, returns = self.rollout_buffer.values.flatten(), self.rollout_buffer.returns.flatten()
        average = statistics.averages()
        with np.errstate(all="ignore"):
            explained = explained_variance(values, returns)
        record = self.logger.record
        record("train/entropy_loss", average["entropy_loss"])
        record("train/policy_gradient_loss", average["policy_loss"])
        record("train/value_loss", average["value_loss"])
        record("train/approx_kl", average["approx_kl"])
        record("train/clip_fraction", average["clipped_above"] + average["clipped_below"])
        record("train/loss", average["loss"])
        record("train/explained_variance", explained)
        if hasattr(self.policy, "log_std"):
            record("train/std", th.exp(self.policy.log_std).mean().item())
        record("train/n_updates", self._n_updates, exclude="tensorboard")
        if not math.isinf(surrogate.epsilon):
            record("train/clip_range", surrogate.epsilon)
        if clip_range_vf is not None:
            record("train/clip_range_vf", clip_range_vf)

        record("train/skipped_updates", statistics.skipped)
        record("train/clip_fraction_above", average["clipped_above"])
        record("train/clip_fraction_below", average["clipped_below"])
        record("train/log_ratio_abs_mean", average["log_ratio_mean"])
        record("train/log_ratio_abs_max", average["log_ratio_max"])
        if surrogate.eta is not None:
            record("train/eta", surrogate.eta)
            record("train/eta_term", average["divergence"] / surrogate.eta)


def _constant(value: float | Schedule | None) -> float | None:
    """The number behind a parameter that may be a number or a schedule; ``None`` if it varies.

    Models keep their constants as schedules once they are set up or loaded.
    """
    if isinstance(value, FloatSchedule):
        value = value.value_schedule
    if isinstance(value, ConstantSchedule):
        value = value.val
    return None if value is None or callable(value) else float(value)
