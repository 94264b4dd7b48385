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
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, softmax, xlogy

from sppo.arguments import finite_array, one_of
from sppo.exact.evaluation import Array
from sppo.exact.mdp import Evaluation, TabularMDP
from sppo.exact.objectives import softmax_pullback

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

    of: Callable[[Array], Array]
    pullback: Callable[[Array, Array], Array]
    gradient: Callable[[Evaluation], Array]


REPRESENTATIONS = {
    # probabilities: ∂J/∂p(a|s) = d(s) Q(s, a)
    "direct": Representation(
        lambda z: softmax(z, axis=1),
        lambda z, g: softmax_pullback(softmax(z, axis=1), g),
        lambda e: e.occupancy[:, None] * e.q,
    ),
    # logits: ∂J/∂z(a, s) = d(s) π(a|s) A(s, a)
    "softmax": Representation(
        lambda z: z, lambda z, g: g, lambda e: e.occupancy[:, None] * e.policy * e.advantage
    ),
}


class Parameterization(Protocol):
    """A differentiable map θ ↦ logits (S, A): its θ_0, its value z(θ), and (∂z/∂θ)ᵀ cotangent."""

    def initial(self) -> Array: ...

    def logits(self, theta: Array) -> Array: ...

    def pullback(self, theta: Array, cotangent: Array) -> Array: ...


@dataclass(frozen=True)
class TabularSoftmax:
    """One parameter per state and action: z = θ, at first the uniform policy."""

    states: int
    actions: int

    def initial(self) -> Array:
        return np.zeros((self.states, self.actions))

    def logits(self, theta: Array) -> Array:
        return theta

    def pullback(self, theta: Array, cotangent: Array) -> Array:
        return cotangent


@dataclass(frozen=True)
class LinearSoftmax:
    """Linear in features: z(s, a) = ⟨features(s, a), θ⟩, ``features`` of shape (S, A, k); θ_0 = 0."""

    features: Array

    def __post_init__(self) -> None:
        finite_array("features", self.features, "S", "A", "k")

    def initial(self) -> Array:
        return np.zeros(self.features.shape[2])

    def logits(self, theta: Array) -> Array:
        return self.features @ theta

    def pullback(self, theta: Array, cotangent: Array) -> Array:
        return np.einsum("sak,sa->k", self.features, cotangent)


@dataclass(frozen=True)
class LinearizedObjective:
    """ℓ_t for one policy π_t, as a function of θ.

    :param start: J(π_t)
    :param point: π_t
    :param slope: ∇_π J(π_t)
    :param weights: w(s)/η(s)
    """

    representation: Representation
    mirror_map: MirrorMap
    parameterization: Parameterization
    start: float
    point: Array
    slope: Array
    weights: Array

    def value(self, theta: Array) -> float:
        """ℓ_t(θ)."""
        point = self.representation.of(self.parameterization.logits(theta))
        linear = np.sum((point - self.point) * self.slope)
        return float(self.start + linear - self.weights @ self.mirror_map.bregman(point, self.point))

    def gradient(self, theta: Array) -> Array:
        """∇ℓ_t(θ): ∇_π J - (w/η)(∇φ(π) - ∇φ(π_t)), pulled back through the representation to θ."""
        logits = self.parameterization.logits(theta)
        point = self.representation.of(logits)
        pull = self.mirror_map.gradient(point) - self.mirror_map.gradient(self.point)
        cotangent = self.slope - self.weights[:, None] * pull
        return self.parameterization.pullback(theta, self.representation.pullback(logits, cotangent))


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
        if isinstance(self.representation, str):
            one_of("representation", self.representation, REPRESENTATIONS)
        if isinstance(self.mirror_map, str):
            one_of("mirror_map", self.mirror_map, MIRROR_MAPS)
        if self._resolved() == (REPRESENTATIONS["softmax"], NEGATIVE_ENTROPY):
            raise ValueError("the negative entropy is a map on probabilities: use the direct representation")

    def _resolved(self) -> tuple[Representation, MirrorMap]:
        representation, mirror_map = self.representation, self.mirror_map
        return (
            REPRESENTATIONS[representation] if isinstance(representation, str) else representation,
            MIRROR_MAPS[mirror_map] if isinstance(mirror_map, str) else mirror_map,
        )

    def for_mdp(self, mdp: TabularMDP) -> Parameterization:
        """The parameterisation, tabular unless another was given."""
        return self.parameterization or TabularSoftmax(mdp.n_states, mdp.n_actions)

    def surrogate(
        self, mdp: TabularMDP, theta_t: Array, eta: npt.ArrayLike, evaluation: Evaluation | None = None
    ) -> LinearizedObjective:
        """ℓ_t at θ_t, with η a number or one number per state."""
        parameterization, (representation, mirror_map) = self.for_mdp(mdp), self._resolved()
        logits = parameterization.logits(theta_t)
        if evaluation is None:
            evaluation = mdp.evaluate(softmax(logits, axis=1))
        slope = representation.gradient(evaluation) / (1.0 - mdp.gamma)
        weights = evaluation.occupancy / np.asarray(eta, dtype=np.float64) / (1.0 - mdp.gamma)
        point, start = representation.of(logits), evaluation.value
        return LinearizedObjective(representation, mirror_map, parameterization, start, point, slope, weights)
