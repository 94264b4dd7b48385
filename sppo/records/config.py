"""A run's configuration, and its identity: the same on every machine and in every version.

A run is known by the hash of what it differs in from a frozen baseline. Adding a parameter whose default
changes nothing therefore leaves every run that was ever made where it can be found:

* a key of :data:`BASELINE_V1` enters the hash with its value;
* a later key enters only if its value is not the default. To change such a default, write the former one
  into the frozen baseline first;
* a surrogate's parameter that the run's own surrogate does not have, or that makes no difference to it,
  counts as the frozen baseline's value: PPO's ``clip_mode`` may be one-sided or two-sided;
* ``divergence`` counts where there is an ``eta`` and it is exact: it was sampled before one could say so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from sppo.records.parameters import NORMALIZE, POLICY_KWARGS, Values, algorithm_settings, defaults
from sppo.surrogates import chosen

_SHARED_V1: Values = {
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
#: What configurations said when the first runs were published; never to be edited, only added to.
BASELINE_V1: dict[str, Values] = {
    "sppo": {
        **_SHARED_V1,
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
        **_SHARED_V1,
        "cg_max_steps": 15,
        "cg_damping": 0.1,
        "line_search_shrinking_factor": 0.8,
        "line_search_max_iter": 10,
        "n_critic_updates": 10,
        "target_kl": 0.01,
        "sub_sampling_factor": 1,
    },
    "normalize": {"observations": True, "rewards": True, "clip_obs": 10.0, "clip_reward": 10.0},
}
#: what comes of a configuration in a file of somebody else's
_NOT_OURS = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class RunConfig:
    """Everything that the result of one training depends on, apart from the versions of the software.

    :param env: id of a registered environment
    :param algorithm: the label that the report groups by (``"ppo"``, ``"sppo"``, ...)
    :param cls: which class trains: ``"sppo"`` (with ``use_softmax=False`` also PPO) or ``"trpo"``
    :param evaluations: how many evaluations are spread evenly over the training, the last at its end
    :param eval_episodes: episodes per evaluation
    :param normalize: see :data:`sppo.records.parameters.NORMALIZE`
    :param parameters: the algorithm's parameters by Stable-Baselines3's names
    """

    env: str
    algorithm: str
    seed: int
    total_timesteps: int
    n_envs: int
    evaluations: int
    eval_episodes: int
    normalize: Values
    parameters: Values
    cls: str = "sppo"
    env_kwargs: Values = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The configuration as ``config.json`` holds it."""
        values = asdict(self)
        values["class"] = values.pop("cls")
        return values

    @classmethod
    def from_dict(cls, config: Values) -> RunConfig:
        """The inverse of :meth:`as_dict`."""
        values = dict(settled(config))
        return cls(cls=values.pop("class", "sppo"), **values)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the identity's canonical JSON, in hexadecimal digits."""
        known = identity(self.as_dict())
        text = json.dumps(known, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def directory_name(self) -> str:
        """The run's directory within its study."""
        return self.hash[:16]

    @property
    def batch(self) -> int:
        """Transitions per iteration."""
        return int(self.parameters["n_steps"]) * self.n_envs

    def describe(self, varied: tuple[str, ...] = ()) -> str:
        """One line for people: environment, algorithm, the parameters that vary in the study, seed."""
        settings = [f"{name}={self.parameters[name]}" for name in varied if name in self.parameters]
        return " ".join([self.env, self.algorithm, *settings, f"seed={self.seed}"])


def identity(config: Values) -> dict[str, Any]:
    """What a configuration is known by, see above; ``ValueError`` if its surrogate is not to be found."""
    cls, values = config.get("class", "sppo"), config["parameters"]
    frozen = BASELINE_V1[cls]
    counted = _counted(values, frozen, defaults(algorithm_settings(cls, values.get("surrogate"))))
    if isinstance(values.get("policy_kwargs"), Mapping):
        shape = _counted(values["policy_kwargs"], frozen["policy_kwargs"], defaults(POLICY_KWARGS))
        counted["policy_kwargs"] = shape
    counted.pop("divergence", None)
    if values.get("eta") is not None and values.get("divergence") == "exact":
        counted["divergence"] = "exact"
    if "clip_mode" in counted and not _matters(values):
        counted["clip_mode"] = frozen["clip_mode"]
    normalize = _counted(config.get("normalize", {}), BASELINE_V1["normalize"], defaults(NORMALIZE))
    return {**config, "parameters": counted, "normalize": normalize}


def settled(config: Values) -> Values:
    """The configuration with what it leaves out, because there was no such parameter when it was written.

    The same for all configurations of one run; one that is not ours is left as it is.
    """
    try:
        known = identity(config)
        cls, values = str(config.get("class", "sppo")), known["parameters"]
        surrogate = config["parameters"].get("surrogate")
        frozen, later = BASELINE_V1[cls], dict(defaults(algorithm_settings(cls, surrogate)))
        if "divergence" in later and values.get("eta") is not None:
            later["divergence"] = "sampled"
        parameters = _completed(values, frozen, later)
        if isinstance(values.get("policy_kwargs"), Mapping):
            shape = values["policy_kwargs"], frozen["policy_kwargs"], defaults(POLICY_KWARGS)
            parameters["policy_kwargs"] = _completed(*shape)
        normalize = _completed(known["normalize"], BASELINE_V1["normalize"], defaults(NORMALIZE))
        return {**known, "parameters": parameters, "normalize": normalize}
    except _NOT_OURS:
        return config


def same_run(first: Values, second: Values) -> bool:
    """Whether two configurations, as ``config.json`` holds them, are of one run."""
    try:
        return first == second or identity(first) == identity(second)
    except _NOT_OURS:
        return False


def differences(first: Values, second: Values, prefix: str = "") -> list[str]:
    """Where two configurations differ: ``"parameters.clip_range: 0.2 and 0.3"``."""
    found = []
    for key in sorted({*first, *second}):
        a, b = first.get(key), second.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}: {a!r} and {b!r}")
    return found


def _counted(values: Values, frozen: Values, neutral: Values) -> dict[str, object]:
    return {
        name: value
        for name, value in values.items()
        if name in frozen or name not in neutral or value != neutral[name]
    }


def _completed(values: Values, frozen: Values, later: Values) -> dict[str, object]:
    return {**{name: value for name, value in later.items() if name not in frozen}, **values}


def _matters(values: Values) -> bool:
    """Whether the family's surrogate is another variant with this clip than with the frozen baseline's."""
    surrogate = chosen(values)
    if values.get("surrogate") is not None:
        return True
    if "clip_mode" not in surrogate.parameters():
        return False
    modes = (values["clip_mode"], BASELINE_V1["sppo"]["clip_mode"])
    return len({surrogate(clip_mode=mode).label for mode in modes}) > 1  # type: ignore[call-arg]
