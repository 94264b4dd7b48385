"""Study files: TOML in, frozen configurations out, every mistake named with its line.

What a file does not say is the baseline's (:mod:`sppo.records.parameters`)::

    name = "example"                     # records go to runs/example
    environments = ["Hopper-v5", "Ant-v5"]
    seeds = "0:5"                        # or a list
    total_timesteps = 1_000_000
    n_envs = 8
    evaluations = 18                     # evenly over training, the last at its end
    eval_episodes = 10                   # of each evaluation, with deterministic actions
    checkpoint_every = 25                # iterations

    [normalize]                          # VecNormalize
    observations = true

    [parameters]                         # of all algorithms that know them, by upstream's names
    learning_rate = "lin_3e-4"           # decays linearly to 0; a number stays
    max_grad_norm = "none"               # TOML has no null

    [grid]                               # every combination, for each algorithm
    n_epochs = [10, 100]

    [algorithms.ppo]                     # the label is what reports show
    use_softmax = false

    [algorithms.smdpo]                   # what is set here replaces the study's grid
    clip_range = "none"
    n_epochs = 10
    [algorithms.smdpo.grid]
    eta = [0.1, 1.0, 10.0]

    [algorithms.spo]
    surrogate = "my_module:SPO"          # any sppo.surrogates.Surrogate, with its own parameters

    [algorithms.trpo]
    class = "trpo"                       # sb3-contrib's; "sppo" unless said otherwise
    n_envs = 2                           # of this algorithm's runs

    [algorithms.trpo.environment."Ant-v5"]   # replaces what is said above, in this environment
    target_kl = 0.02

    [environment."Ant-v5"]               # exceptions for one environment
    total_timesteps = 500_000
    kwargs = { terminate_when_unhealthy = false }
"""

from __future__ import annotations

import importlib
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sppo.parameters import Parameter, checked, unknown
from sppo.records.config import RunConfig
from sppo.records.parameters import (
    CLASSES,
    NORMALIZE,
    SURROGATE,
    Setting,
    Settings,
    Values,
    algorithm_settings,
    check_together,
    defaults,
)
from sppo.records.subset import parse_seeds

#: Of every run, and how often it is checkpointed; how many steps there are has to be said.
NUMBERS: Settings = {
    "total_timesteps": Setting(None, Parameter("int", "steps per run", low=1)),
    "n_envs": Setting(8, Parameter("int", "environments per run", low=1)),
    "evaluations": Setting(18, Parameter("int", "evaluations over training", low=1)),
    "eval_episodes": Setting(10, Parameter("int", "episodes per evaluation", low=1)),
    "checkpoint_every": Setting(25, Parameter("int", "iterations between two checkpoints", low=1)),
}
SEED = Parameter("int", "seed of everything", low=0, high=2**32 - 1)
_SIZES = {name: setting for name, setting in NUMBERS.items() if name != "checkpoint_every"}
# An algorithm may have its own number of environments, which make its batch; lengths are the same for all.
_OWN_SIZES = {"n_envs": NUMBERS["n_envs"]}
_OTHERS = ("name", "description", "environments", "seeds")
_TABLES = ("normalize", "parameters", "grid", "algorithms", "environment")
#: The table that turns a study's file into one for ``python -m sppo tune`` (:mod:`sppo.study.tuning`).
TUNE = "tune"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class StudyError(ValueError):
    """A study file, or a selection from it, that makes no sense; the message lists why."""


@dataclass(frozen=True)
class StudyPlan:
    """A study: its name, its runs in the order of execution, and what varies between them.

    One seed of every setting comes before the second of any: breadth before depth.
    """

    name: str
    text: str
    runs: tuple[RunConfig, ...]
    varied: tuple[str, ...]
    checkpoint_every: int


def read_plan(path: str | Path) -> StudyPlan:
    """Read a study file.

    :raises StudyError: listing every mistake with its line
    """
    return parse_plan(read_text(path), str(path))


def read_text(path: str | Path) -> str:
    """The text of a study file.

    :raises StudyError: if it cannot be read
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise StudyError(f"cannot read the study {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StudyError(f"{path} is not a text file in UTF-8: {error}") from error


def parse_toml(text: str, source: str) -> Values:
    """What the text of a study file says, unchecked."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{source} is not valid TOML: {error}") from error


def parse_plan(text: str, source: str) -> StudyPlan:
    """A study from the text of its file; ``source`` names it in messages."""
    return plan_of(parse_toml(text, source), text, source)


def plan_of(content: Values, text: str, source: str) -> StudyPlan:
    """A study from the content of its file, and the text for the lines of mistakes in it."""
    reader = Reader(content, text, source)
    study = reader.study()
    if reader.problems:
        raise StudyError("\n".join(reader.problems))
    return study


def environment_problem(name: str) -> str | None:
    """Why there is no environment of this name (``"Hopper-v5"`` or ``"module:Env-v0"``), if so."""
    import gymnasium

    module, separator, env_id = name.rpartition(":")
    try:
        if separator:
            importlib.import_module(module)
        gymnasium.spec(env_id)
    except Exception as error:  # importing a module may raise anything
        return f"{name!r} is no environment: {error}"
    return None


class Reader:
    """Reads one study file, collecting its mistakes instead of stopping at the first."""

    def __init__(self, content: Values, text: str, source: str) -> None:
        self.content = content
        self.source = source
        self.lines = dict(_key_lines(text))
        self.text = text
        self.problems: list[str] = []
        self.varied: dict[str, None] = {}

    def problem(self, key: tuple[str, ...], message: str) -> None:
        line = next((self.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.lines), None)
        where = self.source if line is None else f"{self.source}, line {line}"
        text = f"{where}: {'.'.join(key)}: {message}"
        if text not in self.problems:
            self.problems.append(text)

    def value(self, key: tuple[str, ...], value: object, parameter: Parameter) -> object:
        try:
            return checked(key[-1], value, parameter)
        except ValueError as error:
            self.problem(key, str(error))
            return None

    def values(self, where: tuple[str, ...], table: Values, allowed: Settings, *others: str) -> Values:
        """The checked values in a table; what is neither allowed nor one of the others is a mistake."""
        for key in table:
            if key not in allowed and key not in others:
                self.problem((*where, key), unknown(key, (*allowed, *others)))
        given = {key: setting.parameter for key, setting in allowed.items() if key in table}
        return {key: self.value((*where, key), table[key], parameter) for key, parameter in given.items()}

    def study(self) -> StudyPlan:
        content = self.content
        numbers = {**defaults(NUMBERS), **self.values((), content, NUMBERS, *_OTHERS, *_TABLES, TUNE)}
        if TUNE in content:
            self.problem((TUNE,), "is not for a study: python -m sppo tune reads it")
        name = content.get("name", "")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self.problem(("name",), "a study needs a name of letters, digits, dots, dashes and underscores")
        if "total_timesteps" not in content:
            self.problem(("total_timesteps",), "missing: how many steps is each run?")
        seeds, environments = self.seeds(), self.environments(numbers)
        normalize = {**defaults(NORMALIZE), **self.values(("normalize",), self.table("normalize"), NORMALIZE)}
        # Without any environment the algorithms are read all the same, for their own mistakes.
        settings = [
            (env, kwargs, label, cls, {**sizes, **own}, setting)
            for env, sizes, kwargs in environments or [("", numbers, {})]
            for label, cls, own, points in self.algorithms(env)
            for setting in points
        ]
        for _, _, label, cls, sizes, setting in settings:
            if self.problems:
                break
            try:
                check_together(cls, setting, sizes)
            except ValueError as error:
                self.problem(("algorithms", label), str(error))
        grid = [] if self.problems else itertools.product(seeds, settings)
        runs = tuple(
            RunConfig(
                env=env, env_kwargs=kwargs, algorithm=label, cls=cls, seed=seed,
                normalize=normalize, parameters=setting, **sizes,
            )
            for seed, (env, kwargs, label, cls, sizes, setting) in grid
        )  # fmt: skip
        if len({run.hash for run in runs}) < len(runs):
            self.problem(("grid",), "two runs have the same configuration")
        return StudyPlan(str(name), self.text, runs, tuple(self.varied), numbers["checkpoint_every"])

    def seeds(self, where: tuple[str, ...] = ("seeds",)) -> list[int]:
        seeds = self.table(*where[:-1]).get(where[-1], [0])
        try:
            if isinstance(seeds, str):
                seeds = parse_seeds(seeds)
            if not isinstance(seeds, list) or not seeds:
                raise ValueError(f'{seeds!r} is not a list of seeds: write "0:5" or [0, 1, 2]')
            seeds = [checked("seed", seed, SEED) for seed in seeds]
            if len(set(seeds)) < len(seeds):
                raise ValueError("a seed appears twice")
        except ValueError as error:
            self.problem(where, str(error))
            return []
        return seeds

    def environments(self, numbers: Values) -> list[tuple[str, Values, Values]]:
        """Name, sizes and arguments of each environment."""
        names = self.content.get("environments")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            self.problem(("environments",), 'write a list of environment ids, e.g. ["Hopper-v5"]')
            return []
        if len(set(names)) < len(names):
            self.problem(("environments",), "an environment appears twice")
        for name in self.table("environment"):
            if name not in names:
                self.problem(("environment", name), "is not in the list of environments")
        found: list[tuple[str, Values, Values]] = []
        for name in names:
            if (problem := environment_problem(name)) is not None:
                self.problem(("environments",), problem)
            table = self.table("environment", name)
            own = self.values(("environment", name), table, _SIZES, "kwargs")
            sizes = {key: own.get(key, numbers[key]) for key in _SIZES}
            found.append((name, sizes, self.table("environment", name, "kwargs")))
        return found

    def algorithms(self, env: str) -> Iterator[tuple[str, str, Values, list[Values]]]:
        """Label, class, own sizes and settings of each algorithm in one environment."""
        common, grid = self.table("parameters"), self.grid("grid")
        if not self.table("algorithms"):
            self.problem(("algorithms",), "name at least one, e.g. [algorithms.sppo]")
        # Nothing that some class or surrogate of the study knows is a mistake in what is common to all.
        known = {key for cls in CLASSES for key in algorithm_settings(cls)} | {"surrogate"}
        for label in self.table("algorithms"):
            own, own_grid = self.own(label, env)
            cls = own.pop("class", "sppo")
            if cls not in CLASSES or not _NAME.fullmatch(label):
                self.problem(("algorithms", label, "class"), f"{cls!r} is none of {', '.join(CLASSES)}")
                continue
            surrogate = {**common, **own}.get("surrogate") if cls == "sppo" else None
            try:
                name = None if surrogate is None else checked("surrogate", surrogate, SURROGATE)
                settings = algorithm_settings(cls, name)
            except ValueError as error:
                self.problem(self.home(label, env, "surrogate"), str(error))
                continue
            known |= settings.keys()
            for keys, allowed in ((own, (*settings, *_OWN_SIZES)), (own_grid, tuple(settings))):
                for key in keys:
                    if key not in (*allowed, "surrogate"):
                        self.problem(self.home(label, env, key), unknown(key, allowed))
            if "surrogate" in {**grid, **own_grid}:
                reason = "cannot vary: write an [algorithms.NAME] for each"
                self.problem(self.home(label, env, "surrogate"), reason)
            sizes = {
                key: self.value(self.home(label, env, key), own[key], setting.parameter)
                for key, setting in _OWN_SIZES.items()
                if key in own
            }
            varied = {key: values for key, values in grid.items() if key not in own} | own_grid
            axes = {key: [value] for key, value in {**common, **own}.items()} | varied
            # What is common to the study holds where the algorithm knows it; TRPO has no clip, say.
            axes = {key: values for key, values in axes.items() if key in settings}
            self.varied.update(dict.fromkeys(key for key in varied if key in axes))
            yield label, cls, sizes, self.points(label, env, axes, settings)
        for name, shared in (("parameters", common), ("grid", grid)):
            for key in shared:
                if key not in known:
                    self.problem((name, key), unknown(key, known))

    def own(self, label: str, env: str) -> tuple[dict[str, object], dict[str, list[object]]]:
        """What is written of one algorithm, and what of it varies; what is said for the environment wins."""
        where = ("algorithms", label)
        names = self.content.get("environments")
        for name in self.table(*where, "environment"):
            if isinstance(names, list) and name not in names:
                self.problem((*where, "environment", name), "is not in the list of environments")
        here = self.table(*where, "environment", env)
        if "class" in here:
            reason = "is the same in all environments: write an [algorithms.NAME] for each"
            self.problem((*where, "environment", env, "class"), reason)
        own = {key: value for key, value in self.table(*where).items() if key not in ("grid", "environment")}
        grid = {key: values for key, values in self.grid(*where, "grid").items() if key not in here}
        return {**own, **{key: value for key, value in here.items() if key != "class"}}, grid

    def points(
        self, label: str, env: str, axes: Mapping[str, list[object]], settings: Settings
    ) -> list[Values]:
        """One algorithm's settings: the defaults, with each combination of the values of its axes."""
        base = defaults(settings)

        def read(key: str, value: object) -> object:
            found = self.value(self.home(label, env, key), value, settings[key].parameter)
            return {**base[key], **found} if isinstance(found, dict) else found

        points = itertools.product(*([read(key, one) for one in options] for key, options in axes.items()))
        return [{**base, **dict(zip(axes, point, strict=True))} for point in points]

    def home(self, label: str, env: str, key: str) -> tuple[str, ...]:
        """Where a parameter of an algorithm in an environment was written."""
        own = ("algorithms", label)
        places = [(*own, "environment", env, key), (*own, "grid", key), (*own, key), ("grid", key)]
        return next((place for place in places if place in self.lines), ("parameters", key))

    def grid(self, *where: str) -> dict[str, list[object]]:
        axes = self.table(*where)
        for key, options in axes.items():
            if not isinstance(options, list) or not options:
                self.problem((*where, key), f"{options!r} is not a list of values")
        return {key: options for key, options in axes.items() if isinstance(options, list)}

    def table(self, *where: str) -> Values:
        """The table of this name; empty if there is none."""
        found: Values = self.content
        for depth, key in enumerate(where, start=1):
            found = found.get(key, {})
            if not isinstance(found, dict):
                self.problem(where[:depth], "must be a table")
                return {}
        return found


def _key_lines(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """The line of each key of a TOML text; the parser does not tell."""
    part = r"""(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)"""
    dotted = rf"{part}(?:\s*\.\s*{part})*"
    table: tuple[str, ...] = ()

    def split(key: str) -> tuple[str, ...]:
        return tuple(found.strip("\"'") for found in re.findall(part, key))

    for number, line in enumerate(text.splitlines(), start=1):
        if match := re.match(rf"\s*\[\s*({dotted})\s*\]", line):
            table = split(match[1])
            yield table, number
        elif match := re.match(rf"\s*({dotted})\s*=", line):
            yield (*table, *split(match[1])), number
