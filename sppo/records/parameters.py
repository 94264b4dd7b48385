"""What a configuration can say, by Stable-Baselines3's names: values, ranges, defaults.

The only table of the parameters that are the algorithms' own; those of surrogates are their classes'
(:mod:`sppo.surrogates`). The schema of study files and the flags of ``python -m sppo train`` follow from
both. A test ties the table to the signatures of the algorithms, which are not imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sppo.parameters import LINEAR, Parameter, Ranges
from sppo.surrogates import AUTO, MDPO, PPO, SMDPO, SPPO, TRAINING, Surrogate, check_proximity, chosen

#: Names and values, as JSON and TOML hold them.
Values = Mapping[str, Any]
Parameters = dict[str, Parameter]


def defaults(parameters: Mapping[str, Parameter]) -> Values:
    """The values if nothing is said: the MuJoCo baseline's, else upstream's."""
    return {name: parameter.default for name, parameter in parameters.items()}


POLICY_KWARGS: Parameters = {
    "net_arch": Parameter(
        "numbers", "widths of the hidden layers, of policy and value network each", [64, 64]
    ),
    "activation_fn": Parameter("choice", "activation of the hidden layers", "tanh", choices=("tanh", "relu")),
    "ortho_init": Parameter("bool", "orthogonal initialisation (gains sqrt(2), 0.01 and 1)", True),
    "log_std_init": Parameter("float", "logarithm of the initial standard deviation", 0.0),
}

#: Of VecNormalize.
NORMALIZE: Parameters = {
    "observations": Parameter("bool", "normalise observations by running mean and deviation", True),
    "rewards": Parameter("bool", "normalise rewards by the running deviation of the return", True),
    "clip_obs": Parameter("float", "clip of normalised observations", 10.0, low=0, above=True),
    "clip_reward": Parameter("float", "clip of normalised rewards", 10.0, low=0, above=True),
}

_POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
_POSITIVE: Ranges = {"low": 0, "above": True}
_OFF: Ranges = {**_POSITIVE, "nullable": True}

# 8 x 256 transitions per batch rather than 1 x 2048, because eight environments share one pass through the
# policy: the same batch in half the collection time.
_SHARED: Parameters = {
    "policy": Parameter("choice", "kind of policy", "MlpPolicy", choices=_POLICIES),
    "learning_rate": Parameter(
        "schedule", "Adam's step size; lin_3e-4 decays linearly to 0", "lin_0.0003", low=0
    ),
    "n_steps": Parameter("int", "transitions per environment and batch", 256, low=1),
    "batch_size": Parameter("int", "transitions per minibatch", 64, low=2),
    "gamma": Parameter("float", "discount factor", 0.99, low=0, high=1),
    "gae_lambda": Parameter("float", "lambda of generalised advantage estimation", 0.95, low=0, high=1),
    "normalize_advantage": Parameter("bool", "normalise the advantages of each minibatch", True),
    "use_sde": Parameter("bool", "state-dependent exploration", False),
    "sde_sample_freq": Parameter(
        "int", "steps between two samples of its noise, -1: once per batch", -1, low=-1
    ),
    "stats_window_size": Parameter("int", "episodes that the logged means are taken over", 100, low=1),
    "policy_kwargs": Parameter(
        "table", "shape of the networks", defaults(POLICY_KWARGS), table=POLICY_KWARGS
    ),
}

_PPO: Parameters = {
    "n_epochs": Parameter("int", "passes over each batch (m)", 10, low=1),
    "clip_range_vf": Parameter("schedule", "clip of the value function", None, **_OFF),
    "ent_coef": Parameter("float", "weight of the entropy bonus", 0.0),
    "vf_coef": Parameter("float", "weight of the value loss", 0.5, low=0),
    "max_grad_norm": Parameter("float", "largest norm of a gradient; none: no limit", 0.5, **_OFF),
    "target_kl": Parameter("float", "stop an update beyond this divergence", None, **_OFF),
    "engine": Parameter("choice", "update loop", "auto", choices=("auto", "reference", "fast")),
    **{name: replace(one, default=None if one.nullable else False) for name, one in TRAINING.items()},
}

_TRPO: Parameters = {
    "cg_max_steps": Parameter("int", "steps of the conjugate gradient method", 15, low=1),
    "cg_damping": Parameter("float", "damping of the Hessian", 0.1, low=0),
    "line_search_shrinking_factor": Parameter(
        "float", "factor of the line search", 0.8, low=0, above=True, high=1
    ),
    "line_search_max_iter": Parameter("int", "tries of the line search", 10, low=1),
    "n_critic_updates": Parameter("int", "passes of the value network over each batch", 10, low=1),
    "target_kl": Parameter("float", "trust region (delta)", 0.01, **_POSITIVE),
    "sub_sampling_factor": Parameter("int", "use every n-th transition for the Hessian", 1, low=1),
}

#: Class of a study's algorithm -> the parameters that it has whatever its surrogate is.
CLASSES: dict[str, Parameters] = {"sppo": {**_SHARED, **_PPO}, "trpo": {**_SHARED, **_TRPO}}

SURROGATE = Parameter("name", "another surrogate: its name, or package.module:Class")
_USE_SOFTMAX = Parameter("bool", "linearise the log-ratio (sPPO) instead of the ratio (PPO)", True)


def surrogate_settings(name: str | None) -> Parameters:
    """What chooses a surrogate and its parameters: of one by name, which has to exist, or of the family's."""
    kinds: tuple[type[Surrogate], ...] = (SPPO, PPO, SMDPO, MDPO)
    found: Parameters = {"use_softmax": _USE_SOFTMAX}
    if name is not None:
        kinds = (chosen({"surrogate": name}),)
        found = {"surrogate": replace(SURROGATE, default=name)}
    for kind in kinds:
        values = kind.defaults()
        for key, parameter in kind.parameters().items():
            found.setdefault(key, replace(parameter, default=values[key]))
    return found


def algorithm_settings(cls: str, surrogate: str | None = None) -> Parameters:
    """Everything that can be said about an algorithm; ``ValueError`` if there is no such surrogate."""
    return {**CLASSES[cls], **(surrogate_settings(surrogate) if cls == "sppo" else {})}


def surrogate_of(values: Values, progress: float = 1.0) -> Surrogate:
    """The surrogate of a run, at a remaining progress of its schedules, if its parameters go together."""
    kind = chosen(values)

    def number(value: object) -> object:
        if isinstance(value, str) and value.startswith(LINEAR):
            return float(value[len(LINEAR) :]) * progress
        return 1.0 if value == AUTO else value

    return kind(**{name: number(values[name]) for name in kind.parameters() if name in values})


def check_together(cls: str, values: Values, sizes: Mapping[str, int]) -> None:
    """Refuse values that are possible one by one, but not together, saying what to change."""
    batch = values["n_steps"] * sizes["n_envs"]
    if sizes["evaluations"] * batch > sizes["total_timesteps"]:
        raise ValueError(
            f"{sizes['evaluations']} evaluations need at least as many batches of {batch} transitions, "
            f"but total_timesteps = {sizes['total_timesteps']}"
        )
    size = values["batch_size"]
    if size > batch:
        raise ValueError(f"batch_size = {size} is more than n_steps x n_envs = {batch} transitions")
    if batch % size:
        raise ValueError(f"batch_size = {size} does not divide n_steps x n_envs = {batch} transitions")
    if cls == "sppo":
        for progress in (1.0, 0.0):
            check_proximity(surrogate_of(values, progress), values.get("eta"), values.get("kl_budget"))
