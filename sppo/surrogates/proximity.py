"""What keeps the policy close besides the surrogate, and how the critic is trained."""

from __future__ import annotations

from sppo.parameters import Parameter
from sppo.surrogates.base import Surrogate
from sppo.surrogates.family import AUTO

#: By name; none of them is set unless it is said.
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
