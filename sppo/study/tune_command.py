"""``python -m sppo tune FILE``: search an algorithm's setting, trial by trial, with Optuna.

FILE is a study with a table ``[tune]`` (sppo.study.tuning). A trial is a study of one setting over all
environments and seeds, run and recorded like any other, so that a run that was made before is found by its
hash. Its score is the mean over environments of the mean over seeds of the run's last evaluations, divided by
the environment's reference. A failed run scores as the worst, and the reason is on record.

Trials are Optuna's (TPE, multivariate), in the journal tune.journal beside the records. One at a time, its
runs in parallel: nothing is sampled in ignorance of a trial under way. The sampler is seeded anew for every
trial, by its number, so that a search that was interrupted makes the trials that it would have made.

Environments are run in the file's order, the cheap ones first if it is well written. After each of them a
trial is given up if its runs so far are worse than those of the best trial, run by run, by Wilcoxon's
signed-rank test. Pruners that follow one curve per trial (median, successive halving) have nothing to compare
here: the next environment's return says nothing about the last one's, and half of the trials would end after
one environment. Optuna's WilcoxonPruner spares a trial whose mean so far exceeds the best trial's mean over
*all* environments, which is most of them if the first environments are the easy ones.

With --env only these environments of the file count: a setting of their own, in the same directory.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from sppo.checkpoint.files import write_atomically
from sppo.envs.cores import cores
from sppo.parameters import COUNT, NONE
from sppo.records.config import RunConfig, differences
from sppo.records.parameters import Values
from sppo.records.run_files import BOOKKEEPING
from sppo.records.runs import read_run
from sppo.study.command import keep_file
from sppo.study.definition import StudyError
from sppo.study.execution import Options
from sppo.study.local import LocalPool
from sppo.study.lock import BusyError, RunLock
from sppo.study.overview import aligned, duration, with_status
from sppo.study.runner import Stopper, run_all
from sppo.study.tuning import Tuning, read_tuning

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

JOURNAL = "tune.journal"
#: Attributes in the journal: of the search, what it is and how long it took; of a trial, why it failed.
_IDENTITY, _SECONDS, _NAME, REASON = "identity", "seconds", "name", "reason"
#: If so many trials fail and none succeeds, it is not the settings.
_HOPELESS = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the process's exit code: 130 if the search was interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m sppo tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    jobs = cores()
    parser.add_argument("file", metavar="FILE", help="the study with its [tune] table, a TOML file")
    parser.add_argument("--out", type=Path, help="study directory (default: runs/NAME)")
    parser.add_argument("--env", action="append", metavar="ID", help="only this environment; may be repeated")
    parser.add_argument("--trials", type=COUNT, metavar="N", help="in place of the file's number")
    parser.add_argument("--jobs", type=COUNT, default=jobs, help=f"processes (default: {jobs} cores)")
    shown = "print the N best trials (default: 10)"
    parser.add_argument("--show", type=COUNT, nargs="?", const=10, metavar="N", help=shown)
    args = parser.parse_args(argv)
    try:
        tuning = read_tuning(args.file, args.env)
        directory = args.out if args.out is not None else Path("runs", tuning.base.name)
        if args.show is not None:
            print(show(tuning, open_journal(tuning, directory, begin=False), args.show))
            return 0
        keep_file(tuning.base.text, directory)
        with RunLock(directory / BOOKKEEPING), Stopper() as stopper:
            study = open_journal(tuning, directory)
            return Search(tuning, study, directory, args.jobs, stopper).run(args.trials or tuning.trials)
    except BusyError as error:
        print(f"error: another search is at work in {directory}: {error}", file=sys.stderr)
    except (StudyError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 2


def open_journal(tuning: Tuning, directory: Path, begin: bool = True) -> Study:
    """The search in the journal of a directory, begun with this file; a new one, if it may ``begin``."""
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path, name = directory / JOURNAL, " ".join(tuning.environments)
    written = path.read_bytes() if path.exists() else b""
    if begin and not written.endswith(b"\n"):
        # Half a line, of a machine that lost power; Optuna would write on in it.
        write_atomically(path, written[: written.rfind(b"\n") + 1])
    if not (begin or written):
        raise StudyError(f"{path} does not exist: run the search first")
    storage = JournalStorage(JournalFileBackend(str(path)))
    if not begin and name not in optuna.get_all_study_names(storage):
        raise StudyError(f"{path} holds no search over {name}")
    if begin:
        optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    study = optuna.load_study(storage=storage, study_name=name)
    known = study.user_attrs.get(_IDENTITY)
    if known is None:
        for first, entries in list(tuning.first.items())[len(study.trials) :]:
            study.enqueue_trial(dict(entries), user_attrs={_NAME: first})
        study.set_user_attr(_IDENTITY, tuning.identity)
    elif changed := differences(known, json.loads(json.dumps(tuning.identity))):
        raise StudyError(f"{path} was begun with another file ({'; '.join(changed)}): choose another --out")
    return study


@dataclass
class Search:
    """A search under way, alone in its directory."""

    tuning: Tuning
    study: Study
    directory: Path
    jobs: int
    stopper: Stopper

    def __post_init__(self) -> None:
        self.began = time.monotonic() - float(self.study.user_attrs.get(_SECONDS, 0.0))

    def run(self, most: int | None) -> int:
        """Trials until the budget is spent; returns the process's exit code."""
        seconds = math.inf if self.tuning.seconds is None else self.tuning.seconds
        while not self.stopper.requests:
            trials = self.study.get_trials(deepcopy=False)
            done = [trial for trial in trials if trial.state.is_finished()]
            failed = [trial.user_attrs[REASON] for trial in done if REASON in trial.user_attrs]
            if len(failed) == len(done) >= _HOPELESS:
                reason = f"all {len(done)} trials failed, the last because of {failed[-1]}"
                raise StudyError(f"{reason} (when that is mended, begin again with another --out)")
            under_way = next((trial for trial in trials if trial.state.name == "RUNNING"), None)
            if under_way is None and (len(done) >= (most or math.inf) or self._spent() >= seconds):
                spent = duration(self._spent())
                print(f"{len(done)} trials in {spent}: the budget is spent; --show shows them")
                return 0
            self._one(self._drawn(under_way, len(trials)))
        print("interrupted: run the same command again to go on")
        return 130

    def _drawn(self, under_way: FrozenTrial | None, number: int) -> Trial:
        """The trial that was under way, or the next one, which has this number."""
        from optuna.samplers import TPESampler
        from optuna.trial import Trial

        number = number if under_way is None else under_way.number
        seed = int(np.random.SeedSequence([self.tuning.seed, number]).generate_state(1)[0])
        self.study.sampler = TPESampler(multivariate=True, constant_liar=False, seed=seed)
        trial = self.study.ask() if under_way is None else Trial(self.study, under_way._trial_id)
        for name, distribution in self.tuning.space.items():
            trial._suggest(name, distribution)
        return trial

    def _one(self, trial: Trial) -> None:
        """Bring a trial to its end, unless somebody asks to stop."""
        from optuna.trial import TrialState

        tuning, study, scores = self.tuning, self.study, dict[int, float]()
        drawn = ", ".join(f"{name}={_brief(value)}" for name, value in trial.params.items())
        print(f"trial {trial.number}: {drawn}", flush=True)
        reported = study.get_trials(deepcopy=False)[trial.number].intermediate_values
        best = max(scored(study), key=lambda one: one.value or 0.0, default=None)
        try:
            for rung in tuning.rungs(trial.params):
                if best and scores and is_worse(scores, best.intermediate_values, tuning.pruning):
                    study.tell(trial, state=TrialState.PRUNED)
                    print(f"trial {trial.number}: given up, worse than trial {best.number}", flush=True)
                    return
                self._execute(rung)
                if self.stopper.requests:
                    return
                for step, run in enumerate(rung, start=len(scores)):
                    scores[step] = self._score(run)
                    if step not in reported:
                        trial.report(scores[step], step)
        except StudyError as error:
            trial.set_user_attr(REASON, str(error))
            study.tell(trial, -math.inf)
            print(f"trial {trial.number}: failed: {error}", flush=True)
            return
        score = float(np.mean(list(scores.values())))
        study.tell(trial, score)
        rest = "the first" if best is None else f"the best so far was {best.value:.4g} of trial {best.number}"
        print(f"trial {trial.number}: {score:.4g}; {rest}; {duration(self._spent())} spent", flush=True)

    def _execute(self, runs: Sequence[RunConfig]) -> None:
        """The study's runner, for what is not done yet."""
        found = with_status(runs, self.directory)
        todo = [run for run, status in found if status not in ("completed", "failed")]
        if not todo:
            return
        pool = LocalPool(self.directory, Options(self.tuning.base.checkpoint_every), self.jobs)
        for outcome in run_all(todo, [], pool, self.stopper):
            if outcome.status == "busy":
                raise RuntimeError(f"a run of this trial is not free: {outcome.message}")
        self.study.set_user_attr(_SECONDS, self._spent())

    def _score(self, run: RunConfig) -> float:
        found = read_run(self.directory / run.directory_name, run.as_dict())
        if found.status != "completed":
            raise StudyError(f"{run.describe()}: {found.error}")
        return float(found.returns[-self.tuning.last :].mean()) / self.tuning.reference[run.env]

    def _spent(self) -> float:
        return time.monotonic() - self.began


def scored(study: Study) -> list[FrozenTrial]:
    """The trials that came to a score."""
    trials = study.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state.name == "COMPLETE" and REASON not in trial.user_attrs]


def is_worse(scores: Mapping[int, float], best: Mapping[int, float], p_value: float) -> bool:
    """Whether the runs of a trial, by number, are worse than the best trial's, as the module says."""
    from scipy.stats import wilcoxon

    gains = [score - best[step] for step, score in scores.items()]
    # A setting that is a little worse everywhere but much better somewhere goes on.
    return sum(gains) < 0 and bool(wilcoxon(gains, alternative="less", zero_method="zsplit").pvalue < p_value)


def _brief(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def show(tuning: Tuning, study: Study, most: int) -> str:
    """A table of the best trials, why trials failed, and the best setting."""
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    complete = sorted(scored(study), key=lambda trial: -(trial.value or 0.0))
    failed = [trial for trial in done if REASON in trial.user_attrs]
    # Of those that were given up, whoever got further comes first.
    given_up = [trial for trial in done if trial not in complete and trial not in failed]
    given_up.sort(key=lambda trial: -len(trial.intermediate_values))
    counts = f"{len(complete)} with a score, {len(given_up)} given up, {len(failed)} failed"
    rows = [["trial", "score", *tuning.environments, *tuning.space]]
    rows += [_row(tuning, trial) for trial in (*complete, *given_up)[:most]]
    lines = [f"{len(done)} trials: {counts}", aligned(rows, left=1)]
    lines += [f"trial {trial.number} failed: {trial.user_attrs[REASON]}" for trial in failed]
    if complete:
        best = complete[0].params
        lines += ["", f"# trial {complete[0].number} in a study:", as_toml(tuning, best)]
        lines += ["# and in the RL Zoo:", as_yaml(tuning, best)]
    return "\n".join(lines)


def scores_of(tuning: Tuning, trial: FrozenTrial) -> dict[str, float]:
    """A trial's mean over seeds in each environment that it got to."""
    seeds = len({run.seed for run in tuning.base.runs})
    scores: dict[str, list[float]] = defaultdict(list)
    for step, score in trial.intermediate_values.items():
        scores[tuning.environments[step // seeds]].append(score)
    return {name: fmean(found) for name, found in scores.items()}


def _row(tuning: Tuning, trial: FrozenTrial) -> list[str]:
    scores = scores_of(tuning, trial)
    returns = [f"{scores[name]:.3f}" if name in scores else "-" for name in tuning.environments]
    label = f"{trial.number} {trial.user_attrs.get(_NAME, '')}".strip()
    mean = "given up" if trial.state.name == "PRUNED" else f"{trial.value:.3f}"
    return [label, mean, *returns, *(_brief(trial.params.get(name, "-")) for name in tuning.space)]


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
    """A trial's setting as the zoo's hyperparameters."""
    import yaml

    runs = {run.env: run for run in tuning.plan(drawn).runs}
    return yaml.safe_dump(
        {name: _zoo_entry(runs[name]) for name in tuning.environments}, sort_keys=False, width=math.inf
    )


def _zoo_entry(config: RunConfig) -> dict[str, object]:
    """Whatever is not the class's own default; of tables, the text of an expression."""
    from sppo.study.training import algorithm_class

    signature = inspect.signature(algorithm_class(config)).parameters
    entry: dict[str, object] = {"n_envs": config.n_envs, "n_timesteps": config.total_timesteps}
    if config.normalize["observations"] or config.normalize["rewards"]:
        names = {"observations": "norm_obs", "rewards": "norm_reward"}
        entry["normalize"] = str({names.get(key, key): one for key, one in config.normalize.items()})
    for name, value in config.parameters.items():
        if name == "max_grad_norm" and value is None:
            value = math.inf
        if name == "policy_kwargs":
            layers = {"tanh": "nn.Tanh", "relu": "nn.ReLU"}
            value = (
                f"dict({', '.join(f'{key}={layers.get(str(one), repr(one))}' for key, one in value.items())})"
            )
        if name not in signature or value != signature[name].default:
            entry[name] = value
    return entry
