"""What SPPO and its relatives share: the new parameters and the one update loop.

:class:`SurrogateAlgorithm` stands before the upstream class in the method resolution order and replaces
its ``train``. Everything else (saving, callbacks, logging) is inherited, and so is the collection of
rollouts unless :mod:`sppo.engine` covers the model. The upstream classes differ only in what their
buffers yield, so the loop asks two small hooks: :meth:`~SurrogateAlgorithm._evaluate_actions` and
:meth:`~SurrogateAlgorithm._without_padding`.
"""

from __future__ import annotations

import copy
import inspect
import math
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import (
    MaybeCallback,
    PyTorchObs,
    RolloutBufferSamples,
    Schedule,
)
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, explained_variance
from torch.nn import functional as F

from sppo.algorithms.engine_choice import (
    EngineChoice,
    EngineMode,
    replaced_by_engine,
    without_torch_compiler,
)
from sppo.algorithms.finite import FiniteGuard, is_about_numbers
from sppo.algorithms.fresh_advantages import Finish, FreshAdvantages, Timeout
from sppo.algorithms.safe_loading import SafeLoading
from sppo.algorithms.trust_region import EtaController, Halves, shares_layers
from sppo.engine.measurements import UpdateStatistics
from sppo.parameters import Parameter, checked, unknown
from sppo.surrogates import (
    AUTO,
    TRAINING,
    ClipMode,
    DivergenceMode,
    Sample,
    Surrogate,
    check_proximity,
    chosen,
    kl_divergence,
)


class SurrogateAlgorithm(EngineChoice, SafeLoading):
    """Mix-in that trains an upstream PPO class with any surrogate of the family.

    Use it through :class:`sppo.SPPO`, which documents the parameters, :class:`sppo.MaskableSPPO`,
    :class:`sppo.RecurrentSPPO` or :class:`sppo.MaskableRecurrentSPPO`.

    :param args: the upstream class's parameters, unchanged and in the same order
    :param kwargs: likewise, and the parameters of a surrogate chosen by name
    """

    #: what stands before the surrogate's name in the name of a run
    run_prefix: ClassVar[str] = ""

    #: upstream's classes do not agree whether it may be None
    batch_size: Any
    n_epochs: int
    normalize_advantage: bool
    target_kl: float | None
    clip_range: float | Schedule
    clip_range_vf: float | Schedule | None
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
        self._finite_guard = FiniteGuard()
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
        self._timeouts: list[Timeout] = []
        self._take_surrogate_parameters(kwargs)
        super().__init__(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Give each class the signature it really has, for ``help()``, notebooks and ``inspect``."""
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            own = list(inspect.signature(cls.__init__).parameters.values())[1:]
        else:
            ours = inspect.signature(SurrogateAlgorithm.__init__).parameters.values()
            new = [parameter for parameter in ours if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
            own = [*inspect.signature(cls._upstream()).parameters.values(), *new]
        cls.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]

    @classmethod
    def _upstream(cls) -> type:
        return cls.__mro__[cls.__mro__.index(SafeLoading) + 1]

    def _take_surrogate_parameters(self, kwargs: dict[str, object]) -> None:
        """Keep what belongs to a surrogate chosen by name; refuse what belongs to nobody."""
        inherited = inspect.signature(self._upstream()).parameters
        own = {} if self.surrogate is None else chosen({"surrogate": self.surrogate}).defaults()
        for name, default in own.items():
            if name not in inherited and not hasattr(self, name):
                setattr(self, name, kwargs.pop(name, default))
        for name in kwargs:
            if name not in inherited:
                known = [*inspect.signature(type(self)).parameters, *own]
                raise TypeError(f"{type(self).__name__}({name}=...): {unknown(name, known)}")
        if self.eta is not None and own and "eta" not in own:
            raise ValueError(f"eta={self.eta!r}: the surrogate {self.surrogate!r} has no such parameter")

    def _setup_model(self) -> None:
        self._check_engine()
        if self.clip_range is None:
            # Upstream wants a number here: an infinite clip cuts nothing, and a model saved with it
            # still loads in the upstream class.
            self.clip_range = math.inf
        if self.divergence is None:
            self.divergence = "exact" if self.eta is None else "sampled"
        surrogate, values = self.surrogate_class, {}
        for name, parameter in {**surrogate.parameters(), **TRAINING}.items():
            value = _constant(getattr(self, name))
            if not callable(value):
                checked_or_raise(name, value, parameter)
            # A schedule's values are looked at when it gives them.
            values[name] = 1.0 if callable(value) or value in parameter.words else value
        numbers = {name: values[name] for name in surrogate.parameters()}
        check_proximity(surrogate(**numbers), self.eta, self.kl_budget)
        with without_torch_compiler():
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

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str | None = None,
        *args: bool,
        **kwargs: bool,
    ) -> Self:
        """Train, as upstream's ``learn`` does.

        :param tb_log_name: the name of the run for TensorBoard; the default names the surrogate
            (``SPPO``, ``PPO``, ``SMDPO``, ``MDPO``), so that runs can be told apart
        """
        self.require_complete()
        self._compare_normalization(training=True)
        name = self.run_prefix + self.surrogate_name if tb_log_name is None else tb_log_name
        return super().learn(total_timesteps, callback, log_interval, name, *args, **kwargs)

    @property
    def trains_apart(self) -> bool:
        """Whether actor and critic are trained apart, see :class:`~sppo.algorithms.trust_region.Halves`."""
        given = (self.kl_budget, self.n_critic_epochs, self.critic_learning_rate)
        return any(value is not None for value in given)

    def train(self) -> None:
        """Update the policy with the rollout buffer's data: ``n_epochs`` passes in minibatches."""
        self.require_complete()
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        surrogate = self.current_surrogate()
        limit = self.clip_range_vf
        clip_range_vf = limit(self._current_progress_remaining) if callable(limit) else limit
        halves, statistics = Halves(self), UpdateStatistics()
        if (engine := self._fast_engine(surrogate)) is not None:
            engine.update(self, surrogate, clip_range_vf, halves, statistics)
            self._finish_update(surrogate, clip_range_vf, halves, statistics)
            return

        old_policy = None
        if surrogate.needs_distributions or halves.budget is not None:
            old_policy = _copied(self.policy)
            halves.bound(partial(self._mean_kl, old_policy))
        fresh_advantages = self.fresh_advantages()
        continue_training = True
        for epoch in range(halves.n_passes):
            if not halves.start_pass(epoch):
                break
            statistics.start_epoch()
            if epoch > 0 and fresh_advantages is not None:
                fresh_advantages()
            for rollout_data in self.rollout_buffer.get(self.batch_size):
                try:
                    values, log_prob, entropy = self._evaluate_actions(self.policy, rollout_data)
                except ValueError as error:
                    # PyTorch's distributions refuse what is not finite before there is a loss.
                    if not is_about_numbers(error):
                        raise
                    statistics.skipped += 1
                    self.record_skipped(1, 1)
                    continue
                distributions: tuple[Distribution, ...] = ()
                if old_policy is not None and surrogate.needs_distributions:
                    distributions = self._distributions(old_policy, rollout_data)
                rollout_data = self._without_padding(rollout_data)
                advantages = rollout_data.advantages
                # One sample has no standard deviation.
                if self.normalize_advantage and len(advantages) > 1:
                    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
                sample = Sample(log_prob, rollout_data.old_log_prob, advantages, *distributions)
                policy_loss = -surrogate.objective(sample).mean()
                if clip_range_vf is not None:
                    change = th.clamp(values - rollout_data.old_values, -clip_range_vf, clip_range_vf)
                    values = rollout_data.old_values + change
                value_loss = F.mse_loss(rollout_data.returns, values)
                entropy_loss = -th.mean(-log_prob if entropy is None else entropy)
                loss = halves.loss(policy_loss + self.ent_coef * entropy_loss, self.vf_coef * value_loss)
                with th.no_grad():
                    approx_kl = th.mean((sample.ratio - 1) - sample.log_ratio)
                statistics.add(
                    *(surrogate, sample, halves.trained),
                    loss=loss,
                    policy_loss=policy_loss,
                    value_loss=value_loss,
                    entropy_loss=entropy_loss,
                    approx_kl=approx_kl,
                )
                too_far = self.target_kl is not None and approx_kl.item() > 1.5 * self.target_kl
                if too_far and halves.trains_actor:
                    continue_training = False
                    if self.verbose >= 1:
                        print(
                            f"Early stopping at step {epoch} due to reaching max kl: {approx_kl.item():.2f}"
                        )
                    break
                finite = halves.step(loss)
                statistics.skipped += not finite
                self.record_skipped(int(not finite), 1)
                if not halves.count():
                    break
            self._n_updates += 1
            if not continue_training:
                break
        self._finish_update(surrogate, clip_range_vf, halves, statistics)

    @replaced_by_engine
    def _evaluate_actions(
        self, policy: ActorCriticPolicy, rollout_data: RolloutBufferSamples
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Values, log-probabilities and entropies of a minibatch under ``policy``, without padding."""
        actions = self._actions(rollout_data)
        values, log_prob, entropy = policy.evaluate_actions(rollout_data.observations, actions)
        return values.flatten(), log_prob, entropy

    @replaced_by_engine
    def _without_padding(self, rollout_data: RolloutBufferSamples) -> RolloutBufferSamples:
        """The minibatch's real samples, for buffers that pad their sequences to one length."""
        return rollout_data

    @replaced_by_engine
    def _distributions(
        self, old_policy: ActorCriticPolicy, rollout_data: RolloutBufferSamples
    ) -> tuple[Distribution, ...]:
        """The distributions that the last ``_evaluate_actions`` made, and those of the old policy."""
        with th.no_grad():
            self._evaluate_actions(old_policy, rollout_data)
        return self.policy.action_dist, old_policy.action_dist

    def _mean_kl(self, old_policy: ActorCriticPolicy) -> float:
        """KL(old policy || policy), averaged over the rollout; infinite if the policy cannot be evaluated."""
        drawn = np.random.get_state()  # noqa: NPY002  (the generator the buffer draws from)
        divergences = []
        try:
            with th.no_grad():
                for rollout_data in self.rollout_buffer.get(self.batch_size):
                    self._evaluate_actions(self.policy, rollout_data)
                    new, old = self._distributions(old_policy, rollout_data)
                    divergences.append(kl_divergence(old, new))
        except ValueError as error:
            if not is_about_numbers(error):
                raise
            return math.inf
        finally:
            np.random.set_state(drawn)  # noqa: NPY002
        return th.cat(divergences).mean().item()

    def record_skipped(self, skipped: int, looked_at: int) -> None:
        """Account for some minibatches, see :class:`~sppo.algorithms.finite.FiniteGuard`."""
        self._finite_guard.record(self, skipped, looked_at)

    def fresh_advantages(self, *finish: Finish) -> FreshAdvantages | None:
        """Recomputes the advantages of the rollout, if that is wanted."""
        return FreshAdvantages(self, *finish) if self.recompute_advantages else None

    def _values_at(
        self, observations: PyTorchObs, steps: np.ndarray, envs: np.ndarray, starts: np.ndarray
    ) -> th.Tensor:
        """Values of a batch of observations under the current critic.

        :param steps: when in the rollout, and with ``envs`` where, the state of memory before each was
        :param starts: whether each begins an episode
        """
        return self.policy.predict_values(observations)

    def _update_info_buffer(self, infos: list[dict[str, Any]], dones: np.ndarray | None = None) -> None:
        super()._update_info_buffer(infos, dones)
        if self.recompute_advantages and dones is not None:
            step = self.rollout_buffer.pos
            self._timeouts = self._timeouts if step > 0 else []
            for env in np.flatnonzero(dones):
                seen = infos[env].get("terminal_observation")
                if seen is not None and infos[env].get("TimeLimit.truncated", False):
                    self._timeouts.append(Timeout(step, int(env), seen))

    def _actions(self, rollout_data: RolloutBufferSamples) -> th.Tensor:
        """The minibatch's actions in the type that the policy's distribution wants."""
        if isinstance(self.action_space, spaces.Discrete):
            return rollout_data.actions.long().flatten()
        if isinstance(self.action_space, spaces.MultiBinary):
            # sb3-contrib's recurrent buffers keep integers, which Bernoulli distributions refuse.
            return rollout_data.actions.float()
        return rollout_data.actions

    def _finish_update(
        self,
        surrogate: Surrogate,
        clip_range_vf: float | None,
        halves: Halves,
        statistics: UpdateStatistics,
    ) -> None:
        """Steer ``eta``; record upstream's keys, then what shows how the surrogate behaves."""
        halves.look()
        if self.eta == AUTO and halves.region is not None:
            self.auto_eta = EtaController()(self.auto_eta, halves.region)
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
        if clip_range_vf is not None:
            record("train/clip_range_vf", clip_range_vf)
        for name, parameter in surrogate.parameters().items():
            if parameter.kind == "schedule" and getattr(surrogate, name) is not None:
                record(f"train/{name}", getattr(surrogate, name))

        if halves.region is not None:
            record("train/kl", halves.region.kl)
            record("train/kl_budget", halves.region.budget)
        if halves.apart:
            samples = self.n_steps * self.n_envs
            record("train/actor_epochs", halves.actor_steps / -(-samples // self.batch_size))
        if halves.critic_learning_rate is not None:
            record("train/critic_learning_rate", halves.critic_learning_rate)
        record("train/engine", self.engine_in_use, exclude="tensorboard")
        record("train/skipped_updates", statistics.skipped)
        record("train/clip_fraction_above", average["clipped_above"])
        record("train/clip_fraction_below", average["clipped_below"])
        record("train/log_ratio_abs_mean", average["log_ratio_mean"])
        record("train/log_ratio_abs_max", average["log_ratio_max"])
        for name, value in statistics.further().items():
            record(f"train/{name}", value)


def checked_or_raise(name: str, value: object, parameter: Parameter) -> None:
    """Refuse an impossible value of a constructor's parameter, and say what to write instead."""
    try:
        if parameter.kind == "schedule" and isinstance(value, str) and value not in parameter.words:
            raise ValueError(f"{value!r} is neither a number nor a function of the remaining progress")
        checked(name, value, parameter)
    except ValueError as error:
        advice = f"; {parameter.advice}" if parameter.advice else ""
        raise ValueError(f"{name}={error}{advice}") from None


def _copied(policy: ActorCriticPolicy) -> ActorCriticPolicy:
    """The policy as it is now; what its last distribution was computed with stays with the original."""
    kept = {id(policy.action_dist): copy.copy(policy.action_dist), id(policy.optimizer): None}
    return copy.deepcopy(policy, kept)


def _constant(value: object) -> object:
    """The number behind a parameter that may be a number or a schedule; a schedule that varies as it is.

    Models keep their constants as schedules once they are set up or loaded.
    """
    if isinstance(value, FloatSchedule):
        value = value.value_schedule
    return value.val if isinstance(value, ConstantSchedule) else value
