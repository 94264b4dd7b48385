"""Functional mirror ascent in general: a representation, a mirror map and a parameterisation make a
surrogate.

A policy has a *functional representation* π (its probabilities, or its logits) and a *parameterisation* θ ↦
π(θ). A strictly convex *mirror map* φ gives the Bregman divergence D(x, y) = φ(x) - φ(y) - ⟨∇φ(y), x - y⟩,
and

    ℓ_t(θ) = J(π_t) + ⟨π(θ) - π_t, ∇_π J(π_t)⟩ - Σ_s w(s)/η(s) D(π(·|s, θ), π_t(·|s))

with w = d^{π_t}/(1 - γ), the unnormalised occupancy. Algorithm 1 ascends ℓ_t by m gradient steps. The named
objectives are two instances: softmax + log-sum-exp is sMDPO, direct + negative entropy is MDPO.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, softmax, xlogy

from sppo.exact.evaluation import Array
from sppo.exact.mdp import Evaluation, TabularMDP

#: Probabilities are moved away from zero by this much inside logarithms of the negative entropy's gradient.
SMALLEST_PROBABILITY = 1e-300


@dataclass(frozen=True)
class MirrorMap:
    """φ on the vectors of one state, applied row by row.

    :param value: (S, A) ↦ φ of every row, (S,)
    :param gradient: (S, A) ↦ ∇φ of every row, (S, A)
    """

    name: str
    value: Callable[[Array], Array]
    gradient: Callable[[Array], Array]

    def bregman(self, x: Array, y: Array) -> Array:
        """D(x, y) = φ(x) - φ(y) - ⟨∇φ(y), x - y⟩, row by row."""
        return self.value(x) - self.value(y) - np.sum(self.gradient(y) * (x - y), axis=1)


#: φ(x) = ½‖x‖²; D is half the squared distance.
EUCLIDEAN = MirrorMap("euclidean", lambda x: 0.5 * np.sum(x * x, axis=1), lambda x: x)
#: φ(p) = Σ p log p (the paper prints the sign the other way round); D(p, q) = KL(p ‖ q).
NEGATIVE_ENTROPY = MirrorMap(
    "negative_entropy",
    lambda p: np.sum(xlogy(p, p), axis=1),
    lambda p: np.log(np.maximum(p, SMALLEST_PROBABILITY)) + 1.0,
)
#: φ(z) = log Σ exp z; D(z, z') = KL(p' ‖ p), the forward KL of the softmax policies.
LOG_SUM_EXP = MirrorMap("log_sum_exp", lambda z: logsumexp(z, axis=1), lambda z: softmax(z, axis=1))
MIRROR_MAPS = {map_.name: map_ for map_ in (EUCLIDEAN, NEGATIVE_ENTROPY, LOG_SUM_EXP)}


@dataclass(frozen=True)
class Representation:
    """What the policy is described by, as a function of logits z.

    :param of: z ↦ π
    :param pullback: (z, ∂f/∂π) ↦ ∂f/∂z
    :param gradient: evaluation ↦ (1 - γ) ∂J/∂π
    """

    name: str
    of: Callable[[Array], Array]
    pullback: Callable[[Array, Array], Array]
    gradient: Callable[[Evaluation], Array]


def _softmax_pullback(z: Array, cotangent: Array) -> Array:
    p = softmax(z, axis=1)
    return p * (cotangent - np.sum(p * cotangent, axis=1, keepdims=True))


#: Probabilities: ∂J/∂p(a|s) = d(s) Q(s, a).
DIRECT = Representation(
    "direct", lambda z: softmax(z, axis=1), _softmax_pullback, lambda e: e.occupancy[:, None] * e.q
)
#: Logits: ∂J/∂z(a, s) = d(s) π(a|s) A(s, a).
SOFTMAX = Representation(
    "softmax", lambda z: z, lambda z, g: g, lambda e: e.occupancy[:, None] * e.policy * e.advantage
)
REPRESENTATIONS = {representation.name: representation for representation in (DIRECT, SOFTMAX)}


class Parameterization(Protocol):
    """A differentiable map θ ↦ logits (S, A)."""

    def initial(self) -> Array:
        """θ_0."""

    def logits(self, theta: Array) -> Array:
        """z(θ), shape (S, A)."""

    def pullback(self, theta: Array, cotangent: Array) -> Array:
        """(∂z/∂θ)ᵀ cotangent, shape of θ."""


@dataclass(frozen=True)
class TabularSoftmax:
    """One parameter per state and action: z = θ."""

    states: int
    actions: int

    def initial(self) -> Array:
        """The uniform policy."""
        return np.zeros((self.states, self.actions))

    def logits(self, theta: Array) -> Array:
        """z(θ) = θ."""
        return theta

    def pullback(self, theta: Array, cotangent: Array) -> Array:
        """The identity."""
        return cotangent


@dataclass(frozen=True)
class LinearSoftmax:
    """Linear in features: z(s, a) = ⟨features(s, a), θ⟩, ``features`` of shape (S, A, k)."""

    features: Array

    def __post_init__(self) -> None:
        if np.ndim(self.features) != 3:
            raise ValueError(f"features must have shape (S, A, k), not {np.shape(self.features)}")

    def initial(self) -> Array:
        """The uniform policy."""
        return np.zeros(self.features.shape[2])

    def logits(self, theta: Array) -> Array:
        """z(θ) = features · θ."""
        return self.features @ theta

    def pullback(self, theta: Array, cotangent: Array) -> Array:
        """featuresᵀ cotangent."""
        return np.einsum("sak,sa->k", self.features, cotangent)


@dataclass(frozen=True)
class LinearizedObjective:
    """ℓ_t for one policy π_t, as a function of θ."""

    representation: Representation
    mirror_map: MirrorMap
    parameterization: Parameterization
    evaluation: Evaluation
    theta_t: Array
    inv_eta: Array
    gamma: float

    @cached_property
    def point(self) -> Array:
        """π_t."""
        return self.representation.of(self.parameterization.logits(self.theta_t))

    @cached_property
    def slope(self) -> Array:
        """∇_π J(π_t)."""
        return self.representation.gradient(self.evaluation) / (1.0 - self.gamma)

    @cached_property
    def weights(self) -> Array:
        """w(s)/η(s)."""
        return self.evaluation.occupancy * self.inv_eta / (1.0 - self.gamma)

    def value(self, theta: Array) -> float:
        """ℓ_t(θ)."""
        point = self.representation.of(self.parameterization.logits(theta))
        linear = np.sum((point - self.point) * self.slope)
        return float(
            self.evaluation.value + linear - self.weights @ self.mirror_map.bregman(point, self.point)
        )

    def gradient(self, theta: Array) -> Array:
        """∇ℓ_t(θ): ∇_π J - (w/η)(∇φ(π) - ∇φ(π_t)), pulled back through the representation to θ."""
        logits = self.parameterization.logits(theta)
        point = self.representation.of(logits)
        pull = self.mirror_map.gradient(point) - self.mirror_map.gradient(self.point)
        cotangent = self.slope - self.weights[:, None] * pull
        return self.parameterization.pullback(theta, self.representation.pullback(logits, cotangent))


def _named(what: str, value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, str) and value not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, not {value!r}")
    return known[value] if isinstance(value, str) else value


@dataclass(frozen=True)
class FMA:
    """A member of the family: functional representation × mirror map × parameterisation.

    :param representation: ``"direct"``, ``"softmax"`` or a :class:`Representation`
    :param mirror_map: ``"euclidean"``, ``"negative_entropy"``, ``"log_sum_exp"`` or a :class:`MirrorMap`
    :param parameterization: tabular softmax by default
    """

    representation: str | Representation
    mirror_map: str | MirrorMap
    parameterization: Parameterization | None = None

    def __post_init__(self) -> None:
        representation, mirror_map = self._resolved()
        if representation is SOFTMAX and mirror_map is NEGATIVE_ENTROPY:
            raise ValueError("the negative entropy is a map on probabilities: use the direct representation")

    def _resolved(self) -> tuple[Representation, MirrorMap]:
        return (
            _named("representation", self.representation, REPRESENTATIONS),
            _named("mirror_map", self.mirror_map, MIRROR_MAPS),
        )

    def for_mdp(self, mdp: TabularMDP) -> Parameterization:
        """The parameterisation, tabular unless another was given."""
        return self.parameterization or TabularSoftmax(mdp.n_states, mdp.n_actions)

    def surrogate(
        self, mdp: TabularMDP, theta_t: Array, eta: npt.ArrayLike, evaluation: Evaluation | None = None
    ) -> LinearizedObjective:
        """ℓ_t at θ_t, with η a number or one number per state."""
        parameterization = self.for_mdp(mdp)
        if evaluation is None:
            evaluation = mdp.evaluate(softmax(parameterization.logits(theta_t), axis=1))
        inv_eta = np.broadcast_to(1.0 / np.asarray(eta, dtype=np.float64), (mdp.n_states,))
        representation, mirror_map = self._resolved()
        return LinearizedObjective(
            representation, mirror_map, parameterization, evaluation, theta_t, inv_eta, mdp.gamma
        )

    def ascend(
        self,
        mdp: TabularMDP,
        theta: Array,
        eta: npt.ArrayLike,
        alpha: float,
        inner_steps: int,
        evaluation: Evaluation,
    ) -> Array:
        """One iteration of Algorithm 1: ``inner_steps`` times ω ← ω + α (1 - γ) ∇ℓ_t(ω) from ω = θ_t.

        The factor 1 - γ turns the unnormalised occupancy into the normalised one, so that α means here what
        it means for the named objectives.
        """
        surrogate = self.surrogate(mdp, theta, eta, evaluation)
        omega = theta
        for _ in range(inner_steps):
            omega = omega + alpha * (1.0 - mdp.gamma) * surrogate.gradient(omega)
        return omega
