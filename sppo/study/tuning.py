"""Tuning files: a study's file with a table ``[tune]``, which says what is searched and how it is scored.

``docs/studies.md`` shows one. Besides, ``seed`` is the sampler's, and ``linear = true`` lets a schedule decay
in all trials. The study has one algorithm, no grid, and at least two seeds.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sppo.parameters import LINEAR, NONE, Parameter, unknown
from sppo.records.config import RunConfig
from sppo.records.parameters import Parameters, Values, algorithm_settings
from sppo.records.subset import Subset, format_seeds
from sppo.study.definition import NUMBERS, TUNE, Key, Reader, StudyError, StudyPlan, parse_plan, read_text

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_NUMBERS: Parameters = {
    "trials": Parameter("int", "trials at most", low=1),
    "seconds": Parameter("float", "wall-clock time after which no trial begins", low=0),
    "seed": Parameter("int", "seed of the sampler", 0, low=0),
    "last": Parameter("int", "evaluations that a run's return is the mean of", 3, low=1),
    "pruning": Parameter("float", "p-value at which a trial is given up", 0.1, low=0, high=1),
}
_BOOLEAN = Parameter("bool", "", False)
#: What may change while a search is under way: how far it goes, and how it is executed.
_FREE = ("name", "description", "checkpoint_every", "trials", "seconds")


@dataclass(frozen=True)
class Tuning:
    """A tuning file, checked.

    A trial is what is drawn of the space. There an option is its JSON text, since Optuna knows no lists; a
    parameter in a table has the table's name before its own; ``learning_rate.linear`` says whether it decays.

    :param base: the study beside the table ``[tune]``, and ``study`` what its file says
    :param first: name -> trial to begin with
    :param identity: what the sequence of trials depends on
    """

    base: StudyPlan
    source: str
    study: Values
    environments: tuple[str, ...]
    space: Mapping[str, BaseDistribution]
    reference: Values
    first: Mapping[str, Values]
    identity: Values
    trials: int | None
    seconds: float | None
    seed: int
    last: int
    pruning: float

    def setting(self, drawn: Values) -> dict[str, Any]:
        """The algorithm's table in the study of one trial."""
        (own,) = self.study["algorithms"].values()
        common, found = self.study.get("parameters", {}), dict(own)
        for name, value in drawn.items():
            if isinstance(value, bool):
                continue
            linear = self.space.get(f"{name}.linear")
            if isinstance(value, str):
                value = json.loads(value)
            elif linear is not None and drawn.get(f"{name}.linear", linear.single()):
                value = f"{LINEAR}{value!r}"
            table, _, key = name.rpartition(".")
            if table:
                value = {**common.get(table, {}), **found.get(table, {}), key: value}
            found[table or key] = value
        return found

    def plan(self, drawn: Values) -> StudyPlan:
        """The study of one trial; :class:`StudyError` if its values do not go together."""
        (label,) = self.study["algorithms"]
        content = {**self.study, "algorithms": {label: self.setting(drawn)}}
        return parse_plan(self.base.text, self.source, content)

    def rungs(self, drawn: Values) -> list[list[RunConfig]]:
        """The runs of a trial, environment by environment; all at once if none can be spared."""
        runs = self.plan(drawn).runs
        found = [[run for run in runs if run.env == name] for name in self.environments]
        return found if self.pruning > 0 else [list(itertools.chain(*found))]


def read_tuning(path: str | Path, environments: Sequence[str] | None = None) -> Tuning:
    """Read a tuning file, for these of its environments; :class:`StudyError` lists every mistake."""
    reader = _TuneReader(read_text(path), str(path))
    tuning = reader.tuning()
    reader.conclude()
    try:
        chosen = {run.env for run in Subset(environments).choose(tuning.base.runs)}
    except ValueError as error:
        raise StudyError(str(error)) from error
    return replace(tuning, environments=tuple(name for name in tuning.environments if name in chosen))


class _TuneReader(Reader):
    """Reads the table ``[tune]``, once the study beside it has been found to make sense."""

    def tuning(self) -> Tuning:
        if TUNE not in self.content:
            raise StudyError(f"{self.source}: there is no [tune] table (python -m sppo study runs a study)")
        study = {key: value for key, value in self.content.items() if key != TUNE}
        base, search = parse_plan(self.text, self.source, study), self.table(TUNE)
        run, environments = base.runs[0], study["environments"]
        numbers = self.values((TUNE,), _NUMBERS, "report_seeds", "reference", "space", "first")
        if not {"trials", "seconds"} & search.keys():
            self.problem((TUNE,), "how long is the search? write trials = 40, or seconds = 10_800")
        if (numbers["last"] or 0) > min(run.evaluations for run in base.runs):
            self.problem((TUNE, "last"), "more than there are evaluations in a run")
        one, *others = study["algorithms"].values()
        if others or base.varied or "environment" in one:
            reason = "tune one algorithm, without a grid, and with one setting for all environments"
            self.problem(("algorithms",), reason)
        seeds = {run.seed for run in base.runs}
        if len(seeds) < 2:
            self.problem(("seeds",), "one seed decides nothing: a trial needs two or more")
        reported = self.seeds(TUNE, "report_seeds") if "report_seeds" in search else ()
        if both := seeds.intersection(reported):
            reason = (
                f"{format_seeds(both)} are in tune.report_seeds: report with seeds that were not tuned on"
            )
            self.problem(("seeds",), reason)
        known = algorithm_settings(run.cls, run.parameters.get("surrogate")) | {"n_envs": NUMBERS["n_envs"]}
        known.pop("surrogate", None)
        space = dict(self.space(known))
        if not space:
            self.problem((TUNE, "space"), "missing: what is searched?")
        own = {**run.parameters["policy_kwargs"], **run.parameters, "n_envs": run.n_envs}
        # Mistakes in the space would be told once more for each of these.
        first = {} if self.problems else self.table(TUNE, "first")
        return Tuning(
            base, self.source, study, tuple(environments), space,
            reference=self.reference(environments),
            first={name: self.first((TUNE, "first", name), known, space, own) for name in first},
            identity={"study": _fixed(study), "search": _fixed(search)},
            **numbers,
        )  # fmt: skip

    def reference(self, environments: Sequence[str]) -> Values:
        positive = Parameter("float", "", 1.0, low=0, above=True)
        found = self.values((TUNE, "reference"), dict.fromkeys(environments, positive))
        missing = set(environments) - self.table(TUNE, "reference").keys()
        if missing and len(environments) > 1:
            self.problem((TUNE, "reference"), f"which return of {', '.join(sorted(missing))} counts as 1?")
        return found

    def leaves(self, where: Key, known: Mapping[str, Parameter]) -> Iterator[tuple[Key, object, Parameter]]:
        """Place, content and parameter of all that a table, and the tables in it, say."""
        for name, given in self.table(*where).items():
            key, parameter = (*where, name), known.get(name)
            if parameter is None:
                self.problem(key, unknown(name, known))
            elif parameter.table is not None:
                yield from self.leaves(key, parameter.table)
            else:
                yield key, given, parameter

    def space(self, known: Parameters) -> Iterator[tuple[str, BaseDistribution]]:
        try:
            import optuna.distributions as kinds
        except ImportError as error:
            raise RuntimeError('tuning needs the extra "tune": pip install ".[tune]"') from error
        for key, given, parameter in self.leaves((TUNE, "space"), known):
            name, kind = ".".join(key[2:]), parameter.kind
            if isinstance(given, list) and given:
                options = (self.value(key, option, parameter) for option in given)
                yield name, kinds.CategoricalDistribution([json.dumps(option) for option in options])
                continue
            if not isinstance(given, dict) or kind not in ("int", "float", "schedule"):
                self.problem(key, "is neither a list of values nor, for a number, { low = ..., high = ... }")
                continue
            whole, others = kind == "int", ["linear"] if kind == "schedule" else []
            number = replace(
                parameter, kind="int" if whole else "float", default=None, nullable=False, words=()
            )
            ends = self.values(key, {"low": number, "high": number, "log": _BOOLEAN}, *others)
            ends = {end: value for end, value in ends.items() if value is not None}
            try:
                yield name, kinds.IntDistribution(**ends) if whole else kinds.FloatDistribution(**ends)
            except (TypeError, ValueError) as error:
                self.problem(key, f"is no range: {error}")
            linear = given.get("linear", False)
            choices = linear if isinstance(linear, list) else [linear]
            decays = [bool(self.value((*key, "linear"), choice, _BOOLEAN)) for choice in choices]
            if any(decays):
                yield f"{name}.linear", kinds.CategoricalDistribution(decays)

    def first(
        self, where: Key, known: Parameters, space: Mapping[str, BaseDistribution], own: Values
    ) -> Values:
        """A trial to begin with: what is said, else the study's own values."""
        from optuna.trial import TrialState, create_trial

        said = {key[3:]: self.value(key, given, one) for key, given, one in self.leaves(where, known)}
        for path in said:
            if ".".join(path) not in space:
                self.problem((*where, *path), "is not searched: set it in [parameters], for all trials")
        found: dict[str, object] = {}
        for name, distribution in space.items():
            path = tuple(name.split("."))
            if path[-1] == "linear":
                continue
            value = said.get(path, own[path[-1]])
            entries: dict[str, object] = {name: value}
            try:
                if hasattr(distribution, "choices"):
                    entries = {name: json.dumps(value)}
                elif f"{name}.linear" in space:
                    number = str(value).removeprefix(LINEAR)
                    entries = {name: float(number), f"{name}.linear": number != str(value)}
                part = {key: space[key] for key in entries}
                create_trial(state=TrialState.WAITING, params=entries, distributions=part)
            except ValueError:
                self.problem((*where, *path), f"{NONE if value is None else value} is not in the space")
            found |= entries
        return found


def _fixed(table: Values) -> Values:
    return {key: value for key, value in table.items() if key not in _FREE}
