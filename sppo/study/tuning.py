"""Tuning files: a study's file with a table ``[tune]``, which says what is searched and how it is scored.

The rest is as in :mod:`sppo.study.definition`, with one algorithm, no grid, and at least two seeds::

    [tune]
    trials = 40                          # the budget: trials, or wall-clock time, or whichever ends first;
    seconds = 10_800                     # a trial that has begun by then is brought to its end
    report_seeds = "0:10"                # what will be reported is not tuned on: an overlap is a mistake
    last = 3                             # evaluations, from the end, that a run's return is the mean of
    pruning = 0.1                        # see sppo.study.tune_command; 0: every trial runs everywhere
    seed = 0                             # of the sampler

    [tune.reference]                     # returns are divided by these, so that those of several
    "Hopper-v5" = 3000                   # environments can be averaged
    "Ant-v5" = 4000

    [tune.space]                         # of the algorithm's parameters, and n_envs
    n_envs = [1, 8]                      # one of these
    kl_budget = ["none", 0.01, 0.03]
    clip_range = { low = 0.1, high = 0.8 }
    learning_rate = { low = 1e-4, high = 1e-3, log = true, linear = [true, false] }  # to 0, or constant

    [tune.space.policy_kwargs]
    log_std_init = { low = -2, high = 0 }

    [tune.first.paper]                   # tried before anything else; what is not said is the study's
    kl_budget = 0.03
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
from sppo.records.parameters import Setting, Settings, Values, algorithm_settings, defaults
from sppo.records.subset import format_seeds
from sppo.study.definition import (
    NUMBERS,
    TUNE,
    Reader,
    StudyError,
    StudyPlan,
    parse_toml,
    plan_of,
    read_text,
)

if TYPE_CHECKING:
    from optuna.trial import Trial

_SETTINGS: Settings = {
    "trials": Setting(None, Parameter("int", "trials at most", low=1)),
    "seconds": Setting(None, Parameter("float", "wall-clock time after which no trial begins", low=0)),
    "seed": Setting(0, Parameter("int", "seed of the sampler", low=0)),
    "last": Setting(3, Parameter("int", "evaluations that a run's return is the mean of", low=1)),
    "pruning": Setting(0.1, Parameter("float", "p-value at which a trial is given up", low=0, high=1)),
}
_OTHERS = ("report_seeds", "reference", "space", "first")
_BOOLEAN, _POSITIVE = Parameter("bool", ""), Parameter("float", "", low=0, above=True)
#: What may change while a search is under way: how far it goes, and how it is executed.
_FREE = ("name", "description", "checkpoint_every")


@dataclass(frozen=True)
class Dimension:
    """One parameter of the space: one of its options, or a number in a range.

    In the journal an option is its JSON text, since Optuna knows no lists.

    :param path: its name; of one in a table, the table's name and its own
    :param linear: whether a schedule decays linearly to 0; both, if that is searched as well
    """

    path: tuple[str, ...]
    options: tuple[object, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    linear: tuple[bool, ...] = (False,)

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def draw(self, trial: Trial) -> None:
        """Let the sampler choose."""
        if self.options:
            trial.suggest_categorical(self.name, [json.dumps(option) for option in self.options])
            return
        if self.whole:
            trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        else:
            trial.suggest_float(self.name, self.low, self.high, log=self.log)
        if len(self.linear) > 1:
            trial.suggest_categorical(f"{self.name}.linear", self.linear)

    def value(self, drawn: Values) -> object:
        """The parameter's value in a trial with these entries in the journal."""
        found = drawn[self.name]
        if self.options:
            return json.loads(found)
        return f"{LINEAR}{found!r}" if drawn.get(f"{self.name}.linear", self.linear[0]) else found

    def entries(self, value: object) -> dict[str, object]:
        """The inverse of :meth:`value`.

        :raises ValueError: if the value is not in the space
        """
        if value in self.options:
            return {self.name: json.dumps(value)}
        linear = isinstance(value, str) and value.startswith(LINEAR)
        number = float(value[len(LINEAR) :]) if linear else value  # type: ignore[index]
        inside = not self.options and isinstance(number, (int, float)) and self.low <= number <= self.high
        if not inside or linear not in self.linear:
            raise ValueError(f"{NONE if value is None else repr(value)} is not in the space of {self.name}")
        return {self.name: number} | ({f"{self.name}.linear": linear} if len(self.linear) > 1 else {})


@dataclass(frozen=True)
class Tuning:
    """A tuning file, checked.

    :param study: the file without its table ``[tune]``
    :param first: name -> entries in the journal of the trials to begin with
    """

    name: str
    text: str
    source: str
    study: Values
    environments: tuple[str, ...]
    seeds: int
    dimensions: tuple[Dimension, ...]
    reference: Mapping[str, float]
    first: Mapping[str, Values]
    search: Values
    checkpoint_every: int
    trials: int | None
    seconds: float | None
    seed: int
    last: int
    pruning: float

    def setting(self, drawn: Values) -> dict[str, Any]:
        """The algorithm's table in the study of one trial."""
        (own,) = self.study["algorithms"].values()
        common, own = self.study.get("parameters", {}), dict(own)
        for dimension in self.dimensions:
            name, *within = dimension.path
            value = dimension.value(drawn)
            if within:
                value = {**common.get(name, {}), **own.get(name, {}), within[0]: value}
            own[name] = value
        return own

    def plan(self, drawn: Values) -> StudyPlan:
        """The study of one trial.

        :raises StudyError: if its values are possible one by one, but not together
        """
        (label,) = self.study["algorithms"]
        content = {**self.study, "algorithms": {label: self.setting(drawn)}}
        return plan_of(content, self.text, self.source)

    def rungs(self, drawn: Values) -> list[list[RunConfig]]:
        """The runs of a trial, environment by environment; all at once if none can be spared."""
        runs = self.plan(drawn).runs
        found = [[run for run in runs if run.env == name] for name in self.environments]
        return found if self.pruning > 0 else [list(itertools.chain(*found))]

    @property
    def identity(self) -> Values:
        """What the sequence of trials depends on, as JSON holds it."""
        study = {key: value for key, value in self.study.items() if key not in _FREE}
        return {"study": study, "search": self.search}


def read_tuning(path: str | Path, environments: Sequence[str] | None = None) -> Tuning:
    """Read a tuning file.

    :param environments: tune for these of the file's only
    :raises StudyError: listing every mistake with its line
    """
    text, source = read_text(path), str(path)
    content = parse_toml(text, source)
    if TUNE not in content:
        raise StudyError(f"{source}: there is no [tune] table (python -m sppo study runs a study)")
    study = {key: value for key, value in content.items() if key != TUNE}
    plan = plan_of(study, text, source)
    reader = _TuneReader(content, text, source, plan)
    tuning = reader.tuning(study)
    if reader.problems:
        raise StudyError("\n".join(reader.problems))
    for name in environments or ():
        if name not in tuning.environments:
            raise StudyError(f"--env {name}: the study has {', '.join(tuning.environments)}")
    return replace(
        tuning, environments=tuple(name for name in tuning.environments if name in (environments or [name]))
    )


class _TuneReader(Reader):
    """Reads the table ``[tune]``; the study beside it has been found to make sense."""

    def __init__(self, content: Values, text: str, source: str, plan: StudyPlan) -> None:
        super().__init__(content, text, source)
        self.plan = plan
        self.run = plan.runs[0]

    def tuning(self, study: Values) -> Tuning:
        table = self.table(TUNE)
        numbers = {**defaults(_SETTINGS), **self.values((TUNE,), table, _SETTINGS, *_OTHERS)}
        if not {"trials", "seconds"} & table.keys():
            self.problem((TUNE,), "how long is the search? write trials = 40, or seconds = 10_800")
        if numbers["last"] is not None and numbers["last"] > min(run.evaluations for run in self.plan.runs):
            self.problem((TUNE, "last"), "more than there are evaluations in a run")
        many = len(study["algorithms"]) > 1 or self.plan.varied
        if many or any("environment" in own for own in study["algorithms"].values()):
            reason = "tune one algorithm, without a grid, and with one setting for all environments"
            self.problem(("algorithms",), reason)
        environments, seeds = tuple(study["environments"]), {run.seed for run in self.plan.runs}
        self.check_seeds(seeds, table)
        settings = algorithm_settings(self.run.cls, self.run.parameters.get("surrogate"))
        settings.pop("surrogate", None)
        settings["n_envs"] = NUMBERS["n_envs"]
        known = {name: setting.parameter for name, setting in settings.items()}
        dimensions = tuple(self.dimensions((TUNE, "space"), self.table(TUNE, "space"), known))
        if not self.table(TUNE, "space"):
            self.problem((TUNE, "space"), "missing: what is searched?")
        # Mistakes in the space would be told once more for each of these.
        first = {} if self.problems else self.table(TUNE, "first")
        return Tuning(
            self.plan.name, self.text, self.source, study, environments, len(seeds), dimensions,
            reference=self.reference(environments),
            first={name: self.first(name, dimensions, known) for name in first},
            search={key: value for key, value in table.items() if key not in ("trials", "seconds")},
            checkpoint_every=self.plan.checkpoint_every,
            **numbers,
        )  # fmt: skip

    def check_seeds(self, seeds: set[int], table: Values) -> None:
        if len(seeds) < 2:
            self.problem(("seeds",), "one seed decides nothing: a trial needs two or more")
        reported = {*self.seeds((TUNE, "report_seeds"))} if "report_seeds" in table else set()
        if seeds & reported:
            both = format_seeds(seeds & reported)
            self.problem(
                ("seeds",), f"{both} are in tune.report_seeds: report with seeds that were not tuned on"
            )

    def reference(self, environments: tuple[str, ...]) -> dict[str, float]:
        settings = {name: Setting(1.0, _POSITIVE) for name in environments}
        given = self.table(TUNE, "reference")
        found = self.values((TUNE, "reference"), given, settings)
        if len(environments) > 1 and (missing := settings.keys() - given.keys()):
            self.problem((TUNE, "reference"), f"which return of {', '.join(sorted(missing))} counts as 1?")
        return {**defaults(settings), **found}

    def dimensions(
        self, where: tuple[str, ...], table: Values, known: Mapping[str, Parameter]
    ) -> Iterator[Dimension]:
        for name, given in table.items():
            key, parameter = (*where, name), known.get(name)
            if parameter is None:
                self.problem(key, unknown(name, known))
            elif parameter.table is not None:
                yield from self.dimensions(key, self.table(*key), parameter.table)
            elif isinstance(given, list) and given:
                options = tuple(self.value(key, option, parameter) for option in given)
                yield Dimension(key[2:], options=options)
            elif isinstance(given, dict) and parameter.kind in ("int", "float", "schedule"):
                yield self.range(key, given, parameter)
            else:
                self.problem(key, "is neither a list of values nor, for a number, { low = ..., high = ... }")

    def range(self, key: tuple[str, ...], table: Values, parameter: Parameter) -> Dimension:
        whole = parameter.kind == "int"
        number = replace(parameter, kind="int" if whole else "float", nullable=False, words=())
        ends = {"low": Setting(None, number), "high": Setting(None, number), "log": Setting(False, _BOOLEAN)}
        found = {
            **defaults(ends),
            **self.values(key, table, ends, *(["linear"] * (parameter.kind == "schedule"))),
        }
        linear = table.get("linear", False)
        choices = linear if isinstance(linear, list) and linear else [linear]
        chosen = tuple(bool(self.value((*key, "linear"), choice, _BOOLEAN)) for choice in choices)
        low, high = found["low"], found["high"]
        if low is None or high is None or not low < high:
            self.problem(key, "a range has a low and a higher high")
        elif found["log"] and low <= 0:
            self.problem(key, "log = true needs a low above 0")
        return Dimension(
            key[2:], low=low or 0, high=high or 0, log=bool(found["log"]), whole=whole, linear=chosen
        )

    def first(self, name: str, dimensions: Sequence[Dimension], known: Mapping[str, Parameter]) -> Values:
        """A trial to begin with: what is said, else the study's own values."""
        where = (TUNE, "first", name)
        own = {**self.run.parameters, "n_envs": self.run.n_envs}
        said = self.values(where, self.table(*where), {key: Setting(None, known[key]) for key in known})
        searched = {dimension.path for dimension in dimensions}
        for key, value in said.items():
            inner = [(key, one) for one in value] if isinstance(value, dict) else [(key,)]
            for path in {*inner} - searched:
                self.problem((*where, *path), "is not searched: set it in [parameters], for all trials")
        found: dict[str, object] = {}
        for dimension in dimensions:
            key, *within = dimension.path
            value = {**own, **said}[key]
            if within:
                value = {**own[key], **(said.get(key) or {})}[within[0]]
            try:
                found |= dimension.entries(value)
            except ValueError as error:
                self.problem((*where, *dimension.path), str(error))
        return found
