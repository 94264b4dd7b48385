"""How far the policy moves in an update, and who is trained in it: actor and critic together, or apart."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch as th
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import update_learning_rate

from sppo.algorithms.finite import is_about_numbers
from sppo.surrogates import kl_divergence

if TYPE_CHECKING:
    from sppo.algorithms.surrogate_algorithm import SurrogateAlgorithm

#: fewest and most minibatches between two looks at the divergence
LOOK_AFTER = 4, 32
#: a policy that would leave the trust region ends between this part of the budget and all of it
CLOSE = 0.95
#: by how much a steered ``eta`` changes at most from one update to the next, and where it ends
ETA_RATE, ETA_LIMITS = 1.5, (1e-6, 1e6)
_HALVINGS = 20
#: what only the value depends on, by the names that Stable-Baselines3 and sb3-contrib give it
_CRITIC = ("value_net.", "mlp_extractor.value_net.", "vf_features_extractor.", "lstm_critic.", "critic.")

Parameters = list[th.nn.Parameter]


def parameter_halves(policy: ActorCriticPolicy, apart: bool) -> tuple[Parameters, Parameters]:
    """The parameters that are trained with the actor, and those that are trained apart from it."""
    halves: tuple[Parameters, Parameters] = ([], [])
    for name, parameter in policy.named_parameters():
        halves[apart and name.startswith(_CRITIC)].append(parameter)
    return halves


def shares_layers(policy: ActorCriticPolicy) -> bool:
    """Whether the value's gradient reaches layers of the actor's."""
    names = [name for name, _ in policy.mlp_extractor.named_parameters()]
    shared = policy.share_features_extractor and list(policy.features_extractor.parameters())
    return bool(shared) or not all(name.startswith(("policy_net.", "value_net.")) for name in names)


def copied(policy: ActorCriticPolicy) -> ActorCriticPolicy:
    """The policy as it is now; what its last distribution was computed with stays with the original."""
    kept = {id(policy.action_dist): copy.copy(policy.action_dist), id(policy.optimizer): None}
    return copy.deepcopy(policy, kept)


def divergence_from_now(model: SurrogateAlgorithm) -> Callable[[], float]:
    """How to compute KL(policy now || policy by then), averaged over the rollout.

    It is infinite if a policy cannot be evaluated. All looks are at the same minibatches, because what an
    LSTM remembers depends on where its sequences were cut.
    """
    drawn = np.random.get_state()  # noqa: NPY002  (the generator the buffer draws from)
    minibatches = list(model.rollout_buffer.get(model.batch_size))
    np.random.set_state(drawn)  # noqa: NPY002

    @th.no_grad()
    def distributions() -> list[Distribution] | None:
        found = []
        try:
            for rollout_data in minibatches:
                model._evaluate_actions(model.policy, rollout_data)
                found.append(model._distribution(model.policy, rollout_data))
        except ValueError as error:
            if not is_about_numbers(error):
                raise
            return None
        return found

    old = distributions()

    def divergence() -> float:
        new = distributions()
        if old is None or new is None:
            return math.inf
        return th.cat([kl_divergence(p, q) for p, q in zip(old, new, strict=True)]).mean().item()

    return divergence


class TrustRegion:
    r"""The policies within :math:`\mathrm{KL}(\pi_t \| \pi) \le` ``budget``, averaged over the batch.

    :param parameters: what moves the policy
    :param divergence: computes the divergence of the policy as it is now
    """

    def __init__(self, budget: float, parameters: Parameters, divergence: Callable[[], float]) -> None:
        self.budget = budget
        #: the divergence at the last look
        self.kl = 0.0
        #: whether a look found the policy outside; it has been put back since
        self.reached = False
        self._parameters, self._divergence = parameters, divergence
        self._inside = self._copies()

    def look(self) -> None:
        """Remember the policy if it is inside; else put it back onto the way from there, near the border."""
        kl = self._divergence()
        if kl <= self.budget:
            self.kl, self._inside = kl, self._copies()
            return
        self.reached = True
        outside, inner, outer = self._copies(), 0.0, 1.0
        for _ in range(_HALVINGS):
            if self.kl >= CLOSE * self.budget:
                break
            part = (inner + outer) / 2
            self._place(outside, part)
            if (kl := self._divergence()) <= self.budget:
                inner, self.kl = part, kl
            else:
                outer = part
        self._place(outside, inner)

    def steered(self, eta: float) -> float:
        """The ``eta`` with which the next update ends just inside: less after one that was put back.

        For small steps the divergence grows with the square of ``eta``, hence the root.
        """
        room = math.sqrt(CLOSE * self.budget / self.kl) if self.kl > 0 else math.inf
        factor = 1 / ETA_RATE if self.reached else min(room, ETA_RATE)
        low, high = ETA_LIMITS
        return min(max(eta * factor, low), high)

    def _copies(self) -> list[th.Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]

    @th.no_grad()
    def _place(self, outside: list[th.Tensor], part: float) -> None:
        for parameter, start, end in zip(self._parameters, self._inside, outside, strict=True):
            # Not th.lerp: what is not finite outside must not come in with a weight of zero.
            parameter.copy_(start + part * (end - start) if part else start)


class Halves:
    """Who is trained in an update, for how many passes, and by which steps.

    Together, as upstream: one loss, one gradient norm, ``n_epochs`` passes. With a ``kl_budget``,
    ``n_critic_epochs`` or a ``critic_learning_rate`` apart: each half has its passes, its gradient norm and
    its learning rate, and the actor rests once the policy has reached its trust region. Layers that both
    share are the actor's: they rest with it.
    """

    def __init__(self, model: SurrogateAlgorithm) -> None:
        progress = model._current_progress_remaining
        self.budget = _at("kl_budget", model.kl_budget, progress)
        self.critic_learning_rate = _at("critic_learning_rate", model.critic_learning_rate, progress)
        self.apart = model.trains_apart
        self.actor_parameters, self.critic_parameters = parameter_halves(model.policy, self.apart)
        self._passes = model.n_epochs, model.n_critic_epochs or model.n_epochs
        self.n_passes = max(self._passes)
        self._optimizer, self._max_norm = model.policy.optimizer, model.max_grad_norm
        self.region: TrustRegion | None = None
        self.trains_actor = self.trains_critic = True
        #: minibatches that the actor took a step with
        self.actor_steps = 0
        self._last_look, self._next_look = 0, LOOK_AFTER[0]

    def bound(self, divergence: Callable[[], float]) -> None:
        """Begin to watch the trust region, if there is a budget; see :class:`TrustRegion`."""
        if self.budget is not None:
            self.region = TrustRegion(self.budget, self.actor_parameters, divergence)

    @property
    def trained(self) -> tuple[bool, bool]:
        """Whether the actor is trained now, and whether the critic is."""
        return self.trains_actor, self.trains_critic

    def start_pass(self, number: int) -> bool:
        """Whether anything is trained in this pass."""
        n_actor, n_critic = self._passes
        self.trains_actor = number < n_actor and not (self.region is not None and self.region.reached)
        self.trains_critic = number < n_critic
        return any(self.trained)

    def loss(self, actor: th.Tensor, critic: th.Tensor) -> th.Tensor:
        """The loss of those that are trained."""
        if all(self.trained):
            return actor + critic
        return actor if self.trains_actor else critic

    def step(self, loss: th.Tensor) -> bool:
        """One step down the loss, unless it or a gradient is not finite: then nothing, and ``False``."""
        self._optimizer.zero_grad()
        loss.backward()
        trained = [self.actor_parameters] * self.trains_actor
        trained += [self.critic_parameters] * (self.trains_critic and self.apart)
        norms = [th.nn.utils.clip_grad_norm_(half, self._max_norm) for half in trained]
        # A sum is finite only if all are.
        if not math.isfinite((loss.detach() + sum(norms)).item()):
            return False
        if not self.apart:
            self._optimizer.step()
            return True
        gradients = [[parameter.grad for parameter in half] for half in trained]
        rate = self._optimizer.param_groups[0]["lr"]
        for half, own in zip(trained, gradients, strict=True):
            self._optimizer.zero_grad()
            for parameter, gradient in zip(half, own, strict=True):
                parameter.grad = gradient
            if half is self.critic_parameters and self.critic_learning_rate is not None:
                update_learning_rate(self._optimizer, self.critic_learning_rate)
            self._optimizer.step()
        update_learning_rate(self._optimizer, rate)
        return True

    @property
    def minibatches_to_look(self) -> int | None:
        """After how many minibatches the divergence is to be looked at."""
        watched = self.region is not None and self.trains_actor
        return self._next_look - self.actor_steps if watched else None

    def count(self, minibatches: int = 1) -> bool:
        """Account for steps; look at the divergence when it is time. Whether training goes on."""
        if self.trains_actor:
            self.actor_steps += minibatches
            if self.actor_steps >= self._next_look:
                self.look()
        return any(self.trained)

    def look(self) -> None:
        """Look at the divergence, unless the policy has not moved since the last look."""
        if self.region is None or self._last_look == self.actor_steps:
            return
        self.region.look()
        self.trains_actor = not self.region.reached
        # It grows with the square of the number of steps, at most: look again halfway to the border.
        reach = math.sqrt(self.region.budget / self.region.kl) if self.region.kl > 0 else math.inf
        ahead = min(self.actor_steps * (reach - 1) / 2, LOOK_AFTER[1])
        self._last_look, self._next_look = self.actor_steps, self.actor_steps + max(LOOK_AFTER[0], int(ahead))


def _at(name: str, value: float | Schedule | None, progress: float) -> float | None:
    """What a parameter is at a remaining progress from 1 to 0."""
    if value is None:
        return None
    number = float(value(progress) if callable(value) else value)
    # Zero is possible: where a schedule ends.
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must not be negative, got {number} (at progress_remaining={progress:.3g})")
    return number
