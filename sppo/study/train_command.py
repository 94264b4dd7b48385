"""``python -m sppo train --env Hopper-v5 --steps 1000000 --seed 0 --out DIR``: a study of one run.

The same code and the same files as a study's run; the final model is DIR/model.zip. Run again on a DIR
that was interrupted, it goes on from there. The parameters have Stable-Baselines3's names; the defaults
are the MuJoCo baseline's (see benchmarks/studies/mujoco.toml). With --surrogate NAME, the surrogate's own
parameters are flags, too.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sppo.parameters import COUNT, NONE, reader
from sppo.records import run_files
from sppo.records.config import RunConfig
from sppo.records.parameters import (
    CLASSES,
    NORMALIZE,
    POLICY_KWARGS,
    SURROGATE,
    Parameters,
    check_together,
    surrogate_of,
    surrogate_settings,
)
from sppo.study.definition import NUMBERS, SEED, StudyError, environment_problem
from sppo.study.execution import Options, Outcome, execute
from sppo.study.local import single_threaded
from sppo.study.overview import duration
from sppo.study.runner import Stopper

_METAVARS = {"int": "N", "name": "NAME", "numbers": "WIDTH"}


def main(argv: Sequence[str] | None = None) -> int:
    try:
        args, config = read_flags(argv)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    directory = args.out or Path("runs", "train", config.directory_name)
    single_threaded()
    options = Options(args.checkpoint_every, args.retry_failed)
    try:
        with Stopper(at_once=True) as stopper:
            watch = _progress(config, directory)
            outcome = execute(config, directory, options, lambda: bool(stopper.requests), watch=watch)
    except KeyboardInterrupt:
        outcome = Outcome("interrupted", "at once; it goes on from the last checkpoint")
    return _conclude(outcome, directory)


def read_flags(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, RunConfig]:
    """The flags, and the run that they describe; ``ValueError`` if it is impossible."""
    # Which flags there are depends on the surrogate.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--surrogate")
    surrogate = surrogate_settings(first.parse_known_args(argv)[0].surrogate)
    algorithm = {name: one for name, one in CLASSES["sppo"].items() if one.kind != "table"}
    parser = _parser()
    _add_flags(parser.add_argument_group("algorithm"), algorithm)
    _add_flags(parser.add_argument_group("surrogate"), {**surrogate, "surrogate": SURROGATE})
    _add_flags(parser.add_argument_group("networks"), POLICY_KWARGS)
    _add_flags(parser.add_argument_group("normalisation"), NORMALIZE, "normalize_")
    args = parser.parse_args(argv)
    values = {name: getattr(args, name) for name in (*algorithm, *surrogate)}
    values["policy_kwargs"] = {name: getattr(args, name) for name in POLICY_KWARGS}
    batch = values["n_steps"] * args.n_envs
    sizes = {
        "total_timesteps": args.steps,
        "n_envs": args.n_envs,
        "evaluations": args.evaluations or max(1, min(NUMBERS["evaluations"].default, args.steps // batch)),
        "eval_episodes": args.eval_episodes,
    }
    if (problem := environment_problem(args.env)) is not None:
        raise StudyError(f"--env: {problem}")
    if args.steps < batch:
        raise StudyError(f"--steps {args.steps} is less than one batch of n_steps x n_envs = {batch}")
    check_together("sppo", values, sizes)
    config = RunConfig(
        env=args.env,
        algorithm=args.algorithm or surrogate_of(values).label,
        seed=args.seed,
        normalize={name: getattr(args, f"normalize_{name}") for name in NORMALIZE},
        parameters=values,
        **sizes,
    )
    return args, config


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sppo train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", required=True, metavar="ID", help="environment")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: runs/train/HASH)")
    parser.add_argument(
        "--algorithm", metavar="LABEL", help="name in reports (default: sppo, ppo, smdpo, ...)"
    )
    parser.add_argument("--retry-failed", action="store_true", help="try again where DIR holds a failed run")
    others = dict(NUMBERS)
    steps = replace(others.pop("total_timesteps"), default=1_000_000)
    _add_flags(parser, {"steps": steps, "seed": SEED, **others})
    # Unless it is said, as many as there are batches are enough.
    parser.set_defaults(evaluations=None)
    return parser


def _add_flags(group: argparse._ActionsContainer, parameters: Parameters, prefix: str = "") -> None:
    for name, parameter in parameters.items():
        default = parameter.default
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        options: dict[str, Any] = {"default": default, "metavar": _METAVARS.get(parameter.kind, "X")}
        options["help"] = f"{parameter.help} (default: {NONE if default is None else shown})"
        if parameter.kind == "bool":
            del options["metavar"]
            options["action"] = argparse.BooleanOptionalAction
        elif parameter.kind == "choice":
            options.update(choices=parameter.choices, metavar=None)
        elif parameter.kind == "numbers":
            options.update(type=COUNT, nargs="+")
        else:
            options["type"] = reader(parameter)
        group.add_argument("--" + (prefix + name).replace("_", "-"), dest=prefix + name, **options)


def _progress(config: RunConfig, directory: Path) -> Callable[[int], None]:
    """Prints a line every ten seconds."""
    began, first, shown = 0.0, -1, 0.0

    def show(timesteps: int) -> None:
        nonlocal began, first, shown
        now, total = time.monotonic(), config.total_timesteps
        if first < 0:
            began, first, shown = now, timesteps, now
            begun = "going on" if timesteps else "beginning"
            print(f"{config.describe()}: {begun} at step {timesteps} in {directory}", flush=True)
        elif timesteps > first and (now - shown > 10.0 or timesteps >= total):
            shown, rate = now, (timesteps - first) / (now - began)
            left = duration(max(0, total - timesteps) / rate)
            returns = run_files.read_evaluations(directory).returns
            evaluated = f", return {returns[-1]:.4g}" if len(returns) else ""
            print(f"{timesteps}/{total} steps, {rate:.0f}/s, ETA {left}{evaluated}", flush=True)

    return show


def _conclude(outcome: Outcome, directory: Path) -> int:
    if outcome.status == "completed":
        result = run_files.read_json(directory / run_files.RESULT) or {}
        final = f"{result.get('final_return', 0):.4g}"
        print(f"completed: final return {final}, model in {directory / run_files.MODEL}")
        return 0
    if outcome.status == "interrupted":
        print(f"interrupted {outcome.message}: run the same command again to go on")
        return 130
    print(f"error: {outcome.message}", file=sys.stderr)
    if (directory / run_files.FAILURE).exists():
        print(f"see {directory / run_files.FAILURE}; --retry-failed tries again", file=sys.stderr)
    return 1
