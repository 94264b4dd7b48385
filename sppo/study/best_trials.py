"""What a search has found, for people: the best trials, and the best setting in a form that can be pasted."""

from __future__ import annotations

import inspect
import json
import math
from statistics import fmean
from typing import TYPE_CHECKING

from sppo.parameters import NONE
from sppo.records.parameters import Values
from sppo.study.overview import aligned
from sppo.study.tune_command import NAME, REASON, brief, scored
from sppo.study.tuning import Tuning

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial


def show(tuning: Tuning, study: Study, most: int) -> str:
    """A table of the best trials, why trials failed, and the best setting."""
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    complete = sorted(scored(study), key=lambda trial: -(trial.value or 0.0))
    failed = [trial for trial in done if REASON in trial.user_attrs]
    given_up = [trial for trial in done if trial not in complete and trial not in failed]
    # Of those that were given up, whoever got further comes first.
    given_up.sort(key=lambda trial: -len(trial.intermediate_values))
    names = [one.name for one in tuning.dimensions]
    rows = [["trial", "score", *tuning.environments, *names]]
    for trial in (*complete, *given_up)[:most]:
        scores = scores_by_environment(tuning, trial)
        values = [brief(one.value(trial.params)) for one in tuning.dimensions]
        score = f"{trial.value:.3f}" if trial in complete else "given up"
        returns = [f"{scores[name]:.3f}" if name in scores else "-" for name in tuning.environments]
        label = " ".join([str(trial.number), trial.user_attrs.get(NAME, "")]).strip()
        rows.append([label, score, *returns, *values])
    counts = (
        f"{len(done)} trials: {len(complete)} with a score, {len(given_up)} given up, {len(failed)} failed"
    )
    lines = [counts, aligned(rows, left=1)]
    lines += [f"trial {trial.number} failed: {trial.user_attrs[REASON]}" for trial in failed]
    if complete:
        best = complete[0].params
        lines += ["", f"# trial {complete[0].number} in a study:", as_toml(tuning, best)]
        lines += ["# and in the RL Zoo:", as_yaml(tuning, best)]
    return "\n".join(lines)


def scores_by_environment(tuning: Tuning, trial: FrozenTrial) -> dict[str, float]:
    """The mean over seeds for each environment that the trial was run in."""
    found: dict[str, list[float]] = {}
    for step, score in trial.intermediate_values.items():
        found.setdefault(tuning.environments[step // tuning.seeds], []).append(score)
    return {name: fmean(scores) for name, scores in found.items()}


def as_toml(tuning: Tuning, drawn: Values) -> str:
    """A trial's setting as the tables of a study's file."""
    (label,) = tuning.study["algorithms"]
    parameters = {**tuning.study.get("parameters", {}), **tuning.setting(drawn)}
    # What is no parameter: of the algorithm alone.
    own = {name: parameters.pop(name) for name in ("class", "n_envs") if name in parameters}
    lines = []
    for table, values in (("parameters", parameters), (f"algorithms.{label}", own)):
        lines += [f"[{table}]", *(f"{name} = {_toml(value)}" for name, value in values.items()), ""]
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + " }"
    return json.dumps(NONE if value is None else value)


def as_yaml(tuning: Tuning, drawn: Values) -> str:
    """A trial's setting as the zoo's hyperparameters: whatever is not the class's own default."""
    import yaml

    from sppo.study.training import algorithm_class

    entries: dict[str, dict[str, object]] = {}
    for config in {
        run.env: run for run in tuning.plan(drawn).runs if run.env in tuning.environments
    }.values():
        signature = inspect.signature(algorithm_class(config)).parameters
        given: dict[str, object] = {"n_envs": config.n_envs, "n_timesteps": config.total_timesteps}
        if config.normalize["observations"] or config.normalize["rewards"]:
            names = {"observations": "norm_obs", "rewards": "norm_reward"}
            given["normalize"] = str({names.get(key, key): one for key, one in config.normalize.items()})
        for name, value in config.parameters.items():
            if name not in signature or value != signature[name].default:
                given[name] = _zoo(name, value)
        # The same one, so that it is written once and the others refer to it.
        entries[config.env] = next((one for one in entries.values() if one == given), given)
    return yaml.safe_dump(entries, sort_keys=False, width=math.inf)


def _zoo(name: str, value: object) -> object:
    """A parameter's value as the zoo reads it: of tables, the text of an expression."""
    if name == "max_grad_norm" and value is None:
        return math.inf
    if not isinstance(value, dict):
        return value
    layers = {"tanh": "nn.Tanh", "relu": "nn.ReLU"}
    words = (f"{key}={layers.get(str(one), repr(one))}" for key, one in value.items())
    return f"dict({', '.join(words)})"
