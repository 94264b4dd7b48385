"""``python -m sppo train --env Hopper-v5 --steps 1000000 --seed 0 --out DIR``: a study of one run.

The same code and the same files as a study's run; the final model is DIR/model.zip. Run again on a DIR
that was interrupted, it goes on from there. The parameters have Stable-Baselines3's names; the defaults
are the MuJoCo baseline's (see benchmarks/studies/mujoco.toml).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sppo.records import run_files
from sppo.records.config import RunConfig
from sppo.study.definition import DEFAULT_CHECKPOINT_EVERY, StudyError, environment_problem
from sppo.study.execution import Options, Outcome, execute
from sppo.study.local import single_threaded
from sppo.study.overview import duration
from sppo.study.parameters import (
    BASELINE_NORMALIZE,
    BASELINES,
    LINEAR,
    NONE,
    NORMALIZE,
    POLICY_KWARGS,
    SPPO_PARAMETERS,
    Parameter,
    check_together,
    checked,
)
from sppo.study.stopping import Stopper

_EVALUATIONS = 18


def main(argv: Sequence[str] | None = None) -> int:
    args = vars(_parser().parse_args(argv))
    try:
        config = configuration(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    directory = args["out"] or Path("runs", "train", config.directory_name)
    single_threaded()
    options = Options(args["checkpoint_every"], args["retry_failed"])
    try:
        with Stopper(at_once=True) as stopper:
            outcome = execute(
                config, directory, options, lambda: bool(stopper.requests), watch=_Progress(config, directory)
            )
    except KeyboardInterrupt:
        outcome = Outcome("interrupted", "at once; it goes on from the last checkpoint")
    return _conclude(outcome, directory)


def configuration(args: Mapping[str, Any]) -> RunConfig:
    """The run that the command line describes.

    :raises ValueError: if it is impossible, naming the flag
    """
    baseline = BASELINES["sppo"]
    parameters = {**baseline, **_given(args, SPPO_PARAMETERS, "")}
    parameters["policy_kwargs"] = {**baseline["policy_kwargs"], **_given(args, POLICY_KWARGS, "")}
    normalize = {**BASELINE_NORMALIZE, **_given(args, NORMALIZE, "normalize_")}
    batch = parameters["n_steps"] * args["n_envs"]
    sizes = {
        "total_timesteps": args["steps"],
        "n_envs": args["n_envs"],
        "evaluations": args["evaluations"] or max(1, min(_EVALUATIONS, args["steps"] // batch)),
        "eval_episodes": args["eval_episodes"],
    }
    if (problem := environment_problem(args["env"])) is not None:
        raise StudyError(f"--env: {problem}")
    if args["steps"] < batch:
        raise StudyError(f"--steps {args['steps']} is less than one batch of n_steps x n_envs = {batch}")
    check_together("sppo", parameters, sizes)
    return RunConfig(
        env=args["env"],
        algorithm=args["algorithm"] or label(parameters),
        seed=args["seed"],
        normalize=normalize,
        parameters=parameters,
        **sizes,
    )


def label(parameters: Mapping[str, Any]) -> str:
    """The usual name of the algorithm with these parameters: ppo, sppo, sppo-one-sided, mdpo, smdpo, ..."""
    name = ("s" if parameters["use_softmax"] else "") + (
        "mdpo" if parameters.get("clip_range") is None else "ppo"
    )
    modes = {"sppo": "one-sided", "ppo": "symmetric"}
    mode = parameters.get("clip_mode")
    return name + (f"-{mode}" if mode == modes.get(name) else "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sppo train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", required=True, metavar="ID", help="environment")
    parser.add_argument(
        "--steps", type=_whole(0), default=1_000_000, help="total timesteps (default: %(default)s)"
    )
    parser.add_argument("--seed", type=_whole(0), default=0, help="seed of everything (default: 0)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: runs/train/HASH)")
    parser.add_argument(
        "--algorithm", metavar="LABEL", help="name in reports (default: sppo, ppo, smdpo, ...)"
    )
    parser.add_argument("--n-envs", type=_whole(1), default=8, help="environments (default: 8)")
    parser.add_argument(
        "--evaluations", type=_whole(1), help=f"evaluations over training (default: {_EVALUATIONS})"
    )
    parser.add_argument("--eval-episodes", type=_whole(1), default=10, help="episodes of each (default: 10)")
    every = DEFAULT_CHECKPOINT_EVERY
    parser.add_argument(
        "--checkpoint-every",
        type=_whole(1),
        default=every,
        metavar="N",
        help=f"iterations (default: {every})",
    )
    parser.add_argument("--retry-failed", action="store_true", help="try again where DIR holds a failed run")
    baseline = BASELINES["sppo"]
    algorithm = {name: one for name, one in SPPO_PARAMETERS.items() if one.kind != "table"}
    _add_parameters(parser.add_argument_group("algorithm"), algorithm, "", baseline)
    _add_parameters(parser.add_argument_group("networks"), POLICY_KWARGS, "", baseline["policy_kwargs"])
    _add_parameters(parser.add_argument_group("normalisation"), NORMALIZE, "normalize_", BASELINE_NORMALIZE)
    return parser


def _add_parameters(
    group: Any, table: Mapping[str, Parameter], prefix: str, defaults: Mapping[str, Any]
) -> None:
    """A flag per parameter; not given, it is ``None`` and the default holds."""
    for name, parameter in table.items():
        flag = "--" + (prefix + name).replace("_", "-")
        default = defaults.get(name)
        shown = "" if name not in defaults else f" (default: {NONE if default is None else default})"
        options: dict[str, Any] = {"dest": prefix + name, "help": parameter.help + shown, "default": None}
        if parameter.kind == "bool":
            options["action"] = argparse.BooleanOptionalAction
        elif parameter.kind == "choice":
            options["choices"] = parameter.choices
        elif parameter.kind == "numbers":
            options.update(type=int, nargs="+", metavar="WIDTH")
        else:
            options["metavar"] = "N" if parameter.kind == "int" else "X"
        group.add_argument(flag, **options)


def _given(args: Mapping[str, Any], table: Mapping[str, Parameter], prefix: str) -> dict[str, Any]:
    """The parameters that were given on the command line, checked."""
    found = {}
    for name, parameter in table.items():
        value = args.get(prefix + name)
        if value is None:
            continue
        try:
            found[name] = checked(name, _number(value, parameter), parameter)
        except ValueError as error:
            raise StudyError(f"--{(prefix + name).replace('_', '-')}: {error}") from error
    return found


def _number(value: Any, parameter: Parameter) -> Any:
    if not isinstance(value, str) or parameter.kind not in ("int", "float", "schedule"):
        return value
    if value == NONE or value.startswith(LINEAR):
        return value
    try:
        return int(value) if parameter.kind == "int" else float(value)
    except ValueError:
        return value


def _whole(low: int) -> Callable[[str], int]:
    """Reads whole numbers from ``low`` on; ``1e6`` is one."""

    def read(text: str) -> int:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not number.is_integer() or number < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} on")
        return int(text) if text.isdigit() else int(number)

    return read


class _Progress:
    """Prints a line every ten seconds."""

    SECONDS = 10.0

    def __init__(self, config: RunConfig, directory: Path) -> None:
        self._config = config
        self._directory = directory
        self._first: tuple[float, int] | None = None
        self._shown = 0.0

    def __call__(self, timesteps: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = (now, timesteps)
            begun = "going on" if timesteps else "beginning"
            print(f"{self._config.describe()}: {begun} at step {timesteps} in {self._directory}", flush=True)
        elif now - self._shown < self.SECONDS and timesteps < self._config.total_timesteps:
            return
        self._shown = now
        began, first = self._first
        if timesteps == first:
            return
        rate = (timesteps - first) / (now - began)
        left = max(0, self._config.total_timesteps - timesteps) / rate
        _, returns = run_files.read_evaluations(self._directory).curve()
        evaluated = f", return {returns[-1]:.4g}" if len(returns) else ""
        total = self._config.total_timesteps
        print(f"{timesteps}/{total} steps, {rate:.0f}/s, ETA {duration(left)}{evaluated}", flush=True)


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
