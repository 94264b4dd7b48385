"""What a configuration can say, by Stable-Baselines3's names: values, ranges, defaults.

The only table of the parameters that are the algorithms' own; those of surrogates are their classes'
(:mod:`sppo.surrogates`). The schema of study files and the flags of ``python -m sppo train`` follow from
both. A test ties the table to the signatures of the algorithms, which are not imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Unpack

from sppo.parameters import LINEAR, Parameter, Ranges
from sppo.surrogates import (
    AUTO,
    MDPO,
    PPO,
    SMDPO,
    SPPO,
    TRAINING,
    Surrogate,
    check_proximity,
    chosen,
)

#: Names and values, as JSON and TOML hold them.
Values = Mapping[str, Any]


class Setting(NamedTuple):
    """A parameter and its value if nothing is said: the MuJoCo baseline's, else upstream's default."""

    default: object
    parameter: Parameter


Settings = dict[str, Setting]


def _setting(default: object, kind: str, help: str, **ranges: Unpack[Ranges]) -> Setting:
    return Setting(default, Parameter(kind, help, **ranges))


def defaults(settings: Settings) -> Values:
    """The values if nothing is said."""
    return {name: setting.default for name, setting in settings.items()}


POLICY_KWARGS: Settings = {
    "net_arch": _setting(
        [64, 64], "numbers", "widths of the hidden layers, of policy and value network each"
    ),
    "activation_fn": _setting("tanh", "choice", "activation of the hidden layers", choices=("tanh", "relu")),
    "ortho_init": _setting(True, "bool", "orthogonal initialisation (gains sqrt(2), 0.01 and 1)"),
    "log_std_init": _setting(0.0, "float", "logarithm of the initial standard deviation"),
}

#: Of VecNormalize.
NORMALIZE: Settings = {
    "observations": _setting(True, "bool", "normalise observations by running mean and deviation"),
    "rewards": _setting(True, "bool", "normalise rewards by the running deviation of the return"),
    "clip_obs": _setting(10.0, "float", "clip of normalised observations", low=0, above=True),
    "clip_reward": _setting(10.0, "float", "clip of normalised rewards", low=0, above=True),
}

_POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
_POSITIVE: Ranges = {"low": 0, "above": True}
_OFF: Ranges = {**_POSITIVE, "nullable": True}
_SHAPE = {name: setting.parameter for name, setting in POLICY_KWARGS.items()}

# 8 x 256 transitions per batch rather than 1 x 2048, because eight environments share one pass through the
# policy: the same batch in half the collection time.
_SHARED: Settings = {
    "policy": _setting("MlpPolicy", "choice", "kind of policy", choices=_POLICIES),
    "learning_rate": _setting(
        "lin_0.0003", "schedule", "Adam's step size; lin_3e-4 decays linearly to 0", low=0
    ),
    "n_steps": _setting(256, "int", "transitions per environment and batch", low=1),
    "batch_size": _setting(64, "int", "transitions per minibatch", low=2),
    "gamma": _setting(0.99, "float", "discount factor", low=0, high=1),
    "gae_lambda": _setting(0.95, "float", "lambda of generalised advantage estimation", low=0, high=1),
    "normalize_advantage": _setting(True, "bool", "normalise the advantages of each minibatch"),
    "use_sde": _setting(False, "bool", "state-dependent exploration"),
    "sde_sample_freq": _setting(
        -1, "int", "steps between two samples of its noise, -1: once per batch", low=-1
    ),
    "stats_window_size": _setting(100, "int", "episodes that the logged means are taken over", low=1),
    "policy_kwargs": _setting(defaults(POLICY_KWARGS), "table", "shape of the networks", table=_SHAPE),
}

_PPO: Settings = {
    "n_epochs": _setting(10, "int", "passes over each batch (m)", low=1),
    "clip_range_vf": _setting(None, "schedule", "clip of the value function", **_OFF),
    "ent_coef": _setting(0.0, "float", "weight of the entropy bonus"),
    "vf_coef": _setting(0.5, "float", "weight of the value loss", low=0),
    "max_grad_norm": _setting(0.5, "float", "largest norm of a gradient; none: no limit", **_OFF),
    "target_kl": _setting(None, "float", "stop an update beyond this divergence", **_OFF),
    "engine": _setting("auto", "choice", "update loop", choices=("auto", "reference", "fast")),
    **{name: Setting(None if one.nullable else False, one) for name, one in TRAINING.items()},
}

_TRPO: Settings = {
    "cg_max_steps": _setting(15, "int", "steps of the conjugate gradient method", low=1),
    "cg_damping": _setting(0.1, "float", "damping of the Hessian", low=0),
    "line_search_shrinking_factor": _setting(
        0.8, "float", "factor of the line search", low=0, above=True, high=1
    ),
    "line_search_max_iter": _setting(10, "int", "tries of the line search", low=1),
    "n_critic_updates": _setting(10, "int", "passes of the value network over each batch", low=1),
    "target_kl": _setting(0.01, "float", "trust region (delta)", **_POSITIVE),
    "sub_sampling_factor": _setting(1, "int", "use every n-th transition for the Hessian", low=1),
}

#: Class of a study's algorithm -> the parameters that it has whatever its surrogate is.
CLASSES: dict[str, Settings] = {"sppo": {**_SHARED, **_PPO}, "trpo": {**_SHARED, **_TRPO}}

SURROGATE = Parameter("name", "another surrogate: its name, or package.module:Class")
_USE_SOFTMAX = _setting(True, "bool", "linearise the log-ratio (sPPO) instead of the ratio (PPO)")


def surrogate_settings(name: str | None) -> Settings:
    """What chooses a surrogate and its parameters: of one by name, or of the family's.

    :raises ValueError: if there is none of this name
    """
    kinds: tuple[type[Surrogate], ...] = (SPPO, PPO, SMDPO, MDPO)
    found: Settings = {"use_softmax": _USE_SOFTMAX}
    if name is not None:
        kinds = (chosen({"surrogate": name}),)
        found = {"surrogate": Setting(name, SURROGATE)}
    for kind in kinds:
        values = kind.defaults()
        for key, parameter in kind.parameters().items():
            found.setdefault(key, Setting(values[key], parameter))
    return found


def algorithm_settings(cls: str, surrogate: str | None = None) -> Settings:
    """Everything that can be said about an algorithm.

    :raises ValueError: if there is no surrogate of this name
    """
    return {**CLASSES[cls], **(surrogate_settings(surrogate) if cls == "sppo" else {})}


def surrogate_of(values: Values, progress: float = 1.0) -> Surrogate:
    """The surrogate of a run with these parameters, at a remaining progress of its schedules.

    :raises ValueError: if they are possible one by one, but not together
    """
    kind = chosen(values)

    def number(value: object) -> object:
        if isinstance(value, str) and value.startswith(LINEAR):
            return float(value[len(LINEAR) :]) * progress
        return 1.0 if value == AUTO else value

    return kind(**{name: number(values[name]) for name in kind.parameters() if name in values})


def check_together(cls: str, values: Values, sizes: Mapping[str, int]) -> None:
    """Refuse values that are possible one by one, but not together.

    :raises ValueError: saying what to change
    """
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
