"""What can be set in a study, by Stable-Baselines3's names, and which values are possible.

A plain table, so that a study can be planned without importing torch; a test ties it to the
signatures of the algorithms.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: The word for "no value" in TOML, which has no null: ``clip_range = "none"``.
NONE = "none"
LINEAR = "lin_"


@dataclass(frozen=True)
class Parameter:
    """One parameter: its type, its range, and a line of help.

    :param kind: ``int``, ``float``, ``schedule`` (a number, or ``"lin_3e-4"``: linearly to 0), ``bool``,
        ``choice``, ``numbers`` (a list of positive integers) or ``table``
    :param low: smallest value
    :param above: whether ``low`` itself is impossible
    """

    kind: str
    help: str
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    nullable: bool = False
    choices: tuple[str, ...] = ()


POLICY_KWARGS = {
    "net_arch": Parameter("numbers", "widths of the hidden layers, of policy and value network each"),
    "activation_fn": Parameter("choice", "activation of the hidden layers", choices=("tanh", "relu")),
    "ortho_init": Parameter("bool", "orthogonal initialisation (gains sqrt(2), 0.01 and 1)"),
    "log_std_init": Parameter("float", "logarithm of the initial standard deviation"),
}

_SHARED = {
    "policy": Parameter("choice", "kind of policy", choices=("MlpPolicy", "CnnPolicy", "MultiInputPolicy")),
    "learning_rate": Parameter("schedule", "Adam's step size; lin_3e-4 decays linearly to 0", low=0),
    "n_steps": Parameter("int", "transitions per environment and batch", low=1),
    "batch_size": Parameter("int", "transitions per minibatch", low=2),
    "gamma": Parameter("float", "discount factor", low=0, high=1),
    "gae_lambda": Parameter("float", "lambda of generalised advantage estimation", low=0, high=1),
    "normalize_advantage": Parameter("bool", "normalise the advantages of each minibatch"),
    "use_sde": Parameter("bool", "state-dependent exploration"),
    "sde_sample_freq": Parameter("int", "steps between two samples of its noise, -1: once per batch", low=-1),
    "stats_window_size": Parameter("int", "episodes that the logged means are taken over", low=1),
    "policy_kwargs": Parameter("table", "shape of the networks"),
}

SPPO_PARAMETERS = {
    **_SHARED,
    "n_epochs": Parameter("int", "passes over each batch (m)", low=1),
    "clip_range": Parameter(
        "schedule", "clip (epsilon); none switches it off", low=0, above=True, nullable=True
    ),
    "clip_range_vf": Parameter("schedule", "clip of the value function", low=0, above=True, nullable=True),
    "ent_coef": Parameter("float", "weight of the entropy bonus"),
    "vf_coef": Parameter("float", "weight of the value loss", low=0),
    "max_grad_norm": Parameter(
        "float", "largest norm of a gradient; none: no limit", low=0, above=True, nullable=True
    ),
    "target_kl": Parameter(
        "float", "stop an update beyond this divergence", low=0, above=True, nullable=True
    ),
    "use_softmax": Parameter("bool", "linearise the log-ratio (sPPO) instead of the ratio (PPO)"),
    "eta": Parameter(
        "schedule", "step size of the divergence from the old policy", low=0, above=True, nullable=True
    ),
    "clip_mode": Parameter(
        "choice",
        "which samples sPPO's clip cuts; symmetric: PPO with sPPO's interval",
        choices=("two-sided", "one-sided", "symmetric"),
    ),
    "engine": Parameter("choice", "update loop", choices=("auto", "reference", "fast")),
}

TRPO_PARAMETERS = {
    **_SHARED,
    "cg_max_steps": Parameter("int", "steps of the conjugate gradient method", low=1),
    "cg_damping": Parameter("float", "damping of the Hessian", low=0),
    "line_search_shrinking_factor": Parameter(
        "float", "factor of the line search", low=0, high=1, above=True
    ),
    "line_search_max_iter": Parameter("int", "tries of the line search", low=1),
    "n_critic_updates": Parameter("int", "passes of the value network over each batch", low=1),
    "target_kl": Parameter("float", "trust region (delta)", low=0, above=True),
    "sub_sampling_factor": Parameter("int", "use every n-th transition for the Hessian", low=1),
}

#: class of a study's algorithm -> its parameters
CLASSES: dict[str, dict[str, Parameter]] = {"sppo": SPPO_PARAMETERS, "trpo": TRPO_PARAMETERS}

NORMALIZE = {
    "observations": Parameter("bool", "normalise observations by running mean and deviation"),
    "rewards": Parameter("bool", "normalise rewards by the running deviation of the return"),
    "clip_obs": Parameter("float", "clip of normalised observations", low=0, above=True),
    "clip_reward": Parameter("float", "clip of normalised rewards", low=0, above=True),
}

#: What a study does not say, for all classes. 8 x 256 transitions per batch rather than 1 x 2048, because
#: eight environments share one pass through the policy: the same batch in half the collection time.
_BASELINE: dict[str, Any] = {
    "policy": "MlpPolicy",
    "learning_rate": "lin_0.0003",
    "n_steps": 256,
    "batch_size": 64,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "normalize_advantage": True,
    "use_sde": False,
    "sde_sample_freq": -1,
    "stats_window_size": 100,
    "policy_kwargs": {"net_arch": [64, 64], "activation_fn": "tanh", "ortho_init": True, "log_std_init": 0.0},
}

#: class -> all its parameters: the MuJoCo baseline's values, and upstream's defaults where that is silent.
#: Written out, so that a configuration stays what it was when defaults change.
BASELINES: dict[str, dict[str, Any]] = {
    "sppo": {
        **_BASELINE,
        "n_epochs": 10,
        "clip_range": 0.2,
        "clip_range_vf": None,
        "ent_coef": 0.0,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
        "target_kl": None,
        "use_softmax": True,
        "eta": None,
        "clip_mode": "two-sided",
        "engine": "auto",
    },
    "trpo": {
        **_BASELINE,
        "cg_max_steps": 15,
        "cg_damping": 0.1,
        "line_search_shrinking_factor": 0.8,
        "line_search_max_iter": 10,
        "n_critic_updates": 10,
        "target_kl": 0.01,
        "sub_sampling_factor": 1,
    },
}
BASELINE_NORMALIZE: dict[str, Any] = {
    "observations": True,
    "rewards": True,
    "clip_obs": 10.0,
    "clip_reward": 10.0,
}


def checked(name: str, value: Any, parameter: Parameter) -> Any:
    """The value in its canonical form (so that equal configurations have equal hashes).

    :raises ValueError: if it is impossible; the message begins with what was found
    """
    if parameter.nullable and value in (None, NONE):
        return None
    if parameter.kind == "bool":
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is neither true nor false")
        return value
    if parameter.kind == "choice":
        if value not in parameter.choices:
            raise ValueError(
                f"{value!r} is none of {', '.join(parameter.choices)}{_close(value, parameter.choices)}"
            )
        return value
    if parameter.kind == "numbers":
        if not isinstance(value, (list, tuple)) or not all(_is_int(width) and width > 0 for width in value):
            raise ValueError(f"{value!r} is not a list of positive whole numbers")
        return list(value)
    if parameter.kind == "table":
        return checked_table(name, value, POLICY_KWARGS)
    return _checked_number(value, parameter)


def checked_table(name: str, value: Any, allowed: Mapping[str, Parameter]) -> dict[str, Any]:
    """A table of parameters, each :func:`checked`."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a table")
    for key in value:
        if key not in allowed:
            raise ValueError(f"unknown key {key!r}{_close(key, allowed)}")
    try:
        return {key: checked(key, item, allowed[key]) for key, item in value.items()}
    except ValueError as error:
        raise ValueError(f"in {name}: {error}") from error


def unknown(key: str, allowed: Iterable[str]) -> str:
    """The message for a key that does not exist."""
    return f"unknown key{_close(key, allowed)}"


def check_together(cls: str, parameters: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Refuse values that are possible one by one, but not together.

    :raises ValueError: saying what to change
    """
    batch = parameters["n_steps"] * sizes["n_envs"]
    if sizes["evaluations"] * batch > sizes["total_timesteps"]:
        raise ValueError(
            f"{sizes['evaluations']} evaluations need at least as many batches of {batch} transitions, "
            f"but total_timesteps = {sizes['total_timesteps']}"
        )
    if parameters["batch_size"] > batch:
        raise ValueError(
            f"batch_size = {parameters['batch_size']} is more than n_steps x n_envs = {batch} transitions"
        )
    if batch % parameters["batch_size"]:
        raise ValueError(
            f"batch_size = {parameters['batch_size']} does not divide n_steps x n_envs = {batch} transitions"
        )
    if cls == "sppo" and parameters["use_softmax"] and parameters["clip_mode"] == "symmetric":
        raise ValueError('clip_mode = "symmetric" is an option of PPO: set use_softmax = false')
    if cls == "sppo" and parameters.get("clip_range") is None and parameters.get("eta") is None:
        raise ValueError(
            'with clip_range = "none", set eta: nothing else keeps the policy close to the old one'
        )


def _checked_number(value: Any, parameter: Parameter) -> Any:
    number, text = value, None
    if parameter.kind == "schedule" and isinstance(value, str):
        if not value.startswith(LINEAR):
            raise ValueError(f'{value!r} is neither a number nor of the form "lin_3e-4"')
        try:
            number = float(value[len(LINEAR) :])
        except ValueError:
            raise ValueError(f"{value!r}: no number after {LINEAR}") from None
        text = f"{LINEAR}{number!r}"
    if parameter.kind == "int":
        if not _is_int(number):
            raise ValueError(f"{value!r} is not a whole number")
    elif isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        raise ValueError(
            f"{value!r} is not a number" + (f' (write "{NONE}" for none)' if parameter.nullable else "")
        )
    if number < parameter.low or (parameter.above and number == parameter.low):
        raise ValueError(
            f"{value!r} is too small: must be {'above' if parameter.above else 'at least'} {parameter.low:g}"
        )
    if number > parameter.high:
        raise ValueError(f"{value!r} is too large: must be at most {parameter.high:g}")
    if text is not None:
        return text
    return number if parameter.kind == "int" else float(number)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _close(word: Any, options: Iterable[str]) -> str:
    found = difflib.get_close_matches(str(word), list(options), n=1)
    return f" (did you mean {found[0]}?)" if found else ""
