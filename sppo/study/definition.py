"""Study files: TOML in, frozen configurations out, every mistake named with its line.

``docs/studies.md`` has one that says everything; what a file does not say is the baseline's
(:mod:`sppo.records.parameters`).
"""

from __future__ import annotations

import importlib
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from sppo.parameters import Parameter, checked, unknown
from sppo.records.config import RunConfig
from sppo.records.parameters import (
    CLASSES,
    NORMALIZE,
    SURROGATE,
    Parameters,
    Values,
    algorithm_settings,
    check_together,
    defaults,
)
from sppo.records.subset import parse_seeds

#: Of every run, and how often it is checkpointed; how many steps there are has to be said.
NUMBERS: Parameters = {
    "total_timesteps": Parameter("int", "steps per run", low=1),
    "n_envs": Parameter("int", "environments per run", 8, low=1),
    "evaluations": Parameter("int", "evaluations over training", 18, low=1),
    "eval_episodes": Parameter("int", "episodes per evaluation", 10, low=1),
    "checkpoint_every": Parameter("int", "iterations between two checkpoints", 25, low=1),
}
SEED = Parameter("int", "seed of everything", 0, low=0, high=2**32 - 1)
_OTHERS = ("name", "description", "environments", "seeds")
_TABLES = ("normalize", "parameters", "grid", "algorithms", "environment")
#: The table that turns a study's file into one for ``python -m sppo tune`` (:mod:`sppo.study.tuning`).
TUNE = "tune"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Key = tuple[str, ...]


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
    """Read a study file; :class:`StudyError` lists every mistake with its line."""
    return parse_plan(read_text(path), str(path))


def read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise StudyError(f"cannot read the study {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StudyError(f"{path} is not a text file in UTF-8: {error}") from error


def parse_plan(text: str, source: str, content: Values | None = None) -> StudyPlan:
    """A study from the text of its file; ``source`` names it in messages.

    :param content: what the study is, if that is not what the text says
    """
    reader = Reader(text, source, content)
    plan = reader.plan()
    reader.conclude()
    return plan


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


class _Said(NamedTuple):
    """What a file says of a parameter: where, which values, and whether they make a grid."""

    where: Key
    options: list[object]
    varies: bool


class Reader:
    """Reads one study file, collecting its mistakes instead of stopping at the first."""

    def __init__(self, text: str, source: str, content: Values | None = None) -> None:
        try:
            self.content = tomllib.loads(text) if content is None else content
        except tomllib.TOMLDecodeError as error:
            raise StudyError(f"{source} is not valid TOML: {error}") from error
        self.text = text
        self.source = source
        self.lines = dict(_key_lines(text))
        self.problems: list[str] = []
        self.varied: dict[str, None] = {}

    def problem(self, key: Key, message: str) -> None:
        line = next((self.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.lines), None)
        where = self.source if line is None else f"{self.source}, line {line}"
        text = f"{where}: {'.'.join(key)}: {message}"
        if text not in self.problems:
            self.problems.append(text)

    def conclude(self) -> None:
        """:raises StudyError: if there are mistakes"""
        if self.problems:
            raise StudyError("\n".join(self.problems))

    def value(self, key: Key, value: object, parameter: Parameter) -> object:
        """The value, checked; a table is filled up with what it does not say."""
        try:
            found = checked(key[-1], value, parameter)
        except ValueError as error:
            self.problem(key, str(error))
            return None
        return found if parameter.table is None else {**defaults(parameter.table), **found}

    def values(self, where: Key, allowed: Mapping[str, Parameter], *others: str) -> Values:
        """The values in a table, checked, and the defaults; the others are read by somebody else."""
        table = self.table(*where)
        for key in table:
            if key not in allowed and key not in others:
                self.problem((*where, key), unknown(key, (*allowed, *others)))
        given = {key: self.value((*where, key), table[key], allowed[key]) for key in allowed if key in table}
        return {**defaults(allowed), **given}

    def plan(self) -> StudyPlan:
        numbers = self.values((), NUMBERS, *_OTHERS, *_TABLES, TUNE)
        if TUNE in self.content:
            self.problem((TUNE,), "is not for a study: python -m sppo tune reads it")
        name = self.content.get("name", "")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self.problem(("name",), "a study needs a name of letters, digits, dots, dashes and underscores")
        if "total_timesteps" not in self.content:
            self.problem(("total_timesteps",), "missing: how many steps is each run?")
        seeds, environments = self.seeds("seeds"), list(self.environments(numbers))
        normalize = self.values(("normalize",), NORMALIZE)
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

    def seeds(self, *where: str) -> list[int]:
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

    def environments(self, numbers: Values) -> Iterator[tuple[str, Values, Values]]:
        """Name, sizes and arguments of each environment."""
        names = self.content.get("environments")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            self.problem(("environments",), 'write a list of environment ids, e.g. ["Hopper-v5"]')
            return
        if len(set(names)) < len(names):
            self.problem(("environments",), "an environment appears twice")
        for where in ((), *(("algorithms", label) for label in self.table("algorithms"))):
            for name in self.table(*where, "environment"):
                if name not in names:
                    self.problem((*where, "environment", name), "is not in the list of environments")
        sizes = {
            key: replace(NUMBERS[key], default=numbers[key]) for key in numbers if key != "checkpoint_every"
        }
        for name in names:
            if (problem := environment_problem(name)) is not None:
                self.problem(("environments",), problem)
            where = ("environment", name)
            yield name, self.values(where, sizes, "kwargs"), self.table(*where, "kwargs")

    def algorithms(self, env: str) -> Iterator[tuple[str, str, Values, list[Values]]]:
        """Label, class, own sizes and settings of each algorithm in one environment."""
        if not self.table("algorithms"):
            self.problem(("algorithms",), "name at least one, e.g. [algorithms.sppo]")
        # Nothing that some class or surrogate of the study knows is a mistake in what is common to all.
        known = {key for cls in CLASSES for key in algorithm_settings(cls)} | {"surrogate"}
        for label in self.table("algorithms"):
            cls = self.table("algorithms", label).get("class", "sppo")
            if cls not in CLASSES or not _NAME.fullmatch(label):
                self.problem(("algorithms", label, "class"), f"{cls!r} is none of {', '.join(CLASSES)}")
                continue
            said = self.said(label, env)
            surrogate = said.get("surrogate") if cls == "sppo" else None
            try:
                name = None if surrogate is None else checked("surrogate", surrogate.options[0], SURROGATE)
                settings = algorithm_settings(cls, name)
            except ValueError as error:
                self.problem(said["surrogate"].where, str(error))
                continue
            known |= settings.keys()
            # An algorithm may have its own number of environments, which make its batch.
            allowed = {**settings, "n_envs": NUMBERS["n_envs"]}
            points = self.points(said, allowed)
            sizes = {"n_envs": points[0]["n_envs"]} if "n_envs" in said else {}
            yield label, cls, sizes, [{key: point[key] for key in settings} for point in points]
        for table in ("parameters", "grid"):
            for key in self.table(table):
                if key not in known:
                    self.problem((table, key), unknown(key, known))

    def said(self, label: str, env: str) -> dict[str, _Said]:
        """What is said of one algorithm in one environment; what a later place says replaces it."""
        own = ("algorithms", label)
        grids = (("grid",), (*own, "grid"))
        found: dict[str, _Said] = {}
        for where in (("parameters",), grids[0], own, grids[1], (*own, "environment", env)):
            for key, value in self.table(*where).items():
                if where == own and key in ("class", "grid", "environment"):
                    continue
                varies = where in grids
                if varies and not (isinstance(value, list) and value):
                    self.problem((*where, key), f"{value!r} is not a list of values")
                    continue
                found[key] = _Said((*where, key), value if varies else [value], varies)
        return found

    def points(self, said: Mapping[str, _Said], allowed: Parameters) -> list[Values]:
        """One algorithm's settings: the defaults, with each combination of what is said."""
        axes: dict[str, list[object]] = {}
        for key, (where, options, varies) in said.items():
            if varies and key in ("surrogate", "n_envs"):
                self.problem(where, "cannot vary: write an [algorithms.NAME] for each")
            elif key in allowed:
                axes[key] = [self.value(where, option, allowed[key]) for option in options]
                self.varied.update({key: None} if varies else {})
            elif where[0] == "algorithms" and key == "class":
                self.problem(where, "is the same in all environments: write an [algorithms.NAME] for each")
            # What is common to the study holds where the algorithm knows it; TRPO has no clip, say.
            elif where[0] == "algorithms" and key != "surrogate":
                self.problem(where, unknown(key, allowed))
        product = itertools.product(*axes.values())
        return [{**defaults(allowed), **dict(zip(axes, point, strict=True))} for point in product]

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
