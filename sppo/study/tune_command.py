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
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sppo.checkpoint.files import write_atomically
from sppo.envs.cores import cores
from sppo.parameters import LINEAR, NONE
from sppo.records.config import RunConfig, differences
from sppo.records.parameters import Values
from sppo.records.run_files import BOOKKEEPING
from sppo.records.runs import read_run
from sppo.study.command import keep_file, positive
from sppo.study.definition import StudyError
from sppo.study.display import Display
from sppo.study.execution import Options
from sppo.study.local import LocalPool
from sppo.study.lock import BusyError, RunLock
from sppo.study.overview import duration, statuses
from sppo.study.runner import Stopper, run_all
from sppo.study.tuning import Tuning, read_tuning

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

JOURNAL = "tune.journal"
#: Attributes in the journal: of the search, what it is and how long it took; of a trial, why it failed.
_IDENTITY, _SECONDS, NAME, REASON = "identity", "seconds", "name", "reason"
#: If so many trials fail and none succeeds, it is not the settings.
_HOPELESS = 3
_SETTLED = ("completed", "failed")


class FailedRun(Exception):
    """A run of a trial that did not come to a score."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the process's exit code: 130 if the search was interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m sppo tune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    jobs = cores()
    parser.add_argument("file", metavar="FILE", help="the study with its [tune] table, a TOML file")
    parser.add_argument("--out", type=Path, help="study directory (default: runs/NAME)")
    parser.add_argument("--env", action="append", metavar="ID", help="only this environment; may be repeated")
    parser.add_argument("--trials", type=positive, metavar="N", help="in place of the file's number")
    parser.add_argument("--jobs", type=positive, default=jobs, help=f"processes (default: {jobs} cores)")
    parser.add_argument(
        "--show",
        type=positive,
        nargs="?",
        const=10,
        metavar="N",
        help="print the N best trials (default: 10)",
    )
    args = parser.parse_args(argv)
    try:
        tuning = read_tuning(args.file, args.env)
        directory = args.out if args.out is not None else Path("runs", tuning.name)
        if args.show is not None:
            from sppo.study.best_trials import show

            print(show(tuning, open_journal(tuning, directory, begin=False), args.show))
            return 0
        keep_file(tuning.text, directory)
        with RunLock(directory / BOOKKEEPING), Stopper() as stopper:
            study = open_journal(tuning, directory)
            return Search(tuning, study, directory, args.jobs, stopper).run(args.trials or tuning.trials)
    except BusyError as error:
        print(f"error: another search is at work in {directory}: {error}", file=sys.stderr)
    except (StudyError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 2


def open_journal(tuning: Tuning, directory: Path, begin: bool = True) -> Study:
    """The search in the journal of a directory.

    :param begin: whether it may be a new one
    :raises StudyError: if it was begun with another file
    """
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalStorage
    except ImportError as error:
        raise RuntimeError('tuning needs the extra "tune": pip install ".[tune]"') from error
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
    study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    known = study.user_attrs.get(_IDENTITY)
    if known is None:
        for first, entries in list(tuning.first.items())[len(study.trials) :]:
            study.enqueue_trial(dict(entries), user_attrs={NAME: first})
        study.set_user_attr(_IDENTITY, tuning.identity)
    elif changed := differences(known, json.loads(json.dumps(tuning.identity))):
        raise StudyError(f"{path} was begun with another file ({'; '.join(changed)}): choose another --out")
    return study


class Search:
    """A search under way, alone in its directory."""

    def __init__(self, tuning: Tuning, study: Study, directory: Path, jobs: int, stopper: Stopper) -> None:
        self._tuning = tuning
        self._study = study
        self._directory = directory
        self._jobs = jobs
        self._stopper = stopper
        self._began = time.monotonic() - float(study.user_attrs.get(_SECONDS, 0.0))

    def run(self, most: int | None) -> int:
        """Trials until the budget is spent; returns the process's exit code."""
        seconds = math.inf if self._tuning.seconds is None else self._tuning.seconds
        while not self._stopper.requests:
            trials = self._study.get_trials(deepcopy=False)
            done = [trial for trial in trials if trial.state.is_finished()]
            failed = [trial.user_attrs[REASON] for trial in done if REASON in trial.user_attrs]
            if len(failed) == len(done) >= _HOPELESS:
                reason = f"all {len(done)} trials failed, the last because of {failed[-1]}"
                raise StudyError(f"{reason} (when that is mended, begin again with another --out)")
            under_way = [trial for trial in trials if trial.state.name == "RUNNING"]
            if not under_way and (len(done) >= (most or math.inf) or self._spent() >= seconds):
                print(
                    f"{len(done)} trials in {duration(self._spent())}: the budget is spent; --show shows them"
                )
                return 0
            self._one(self._next(under_way, len(trials)))
        print("interrupted: run the same command again to go on")
        return 130

    def _next(self, under_way: list[FrozenTrial], number: int) -> Trial:
        """The trial that was under way, or the next one."""
        from optuna.samplers import TPESampler
        from optuna.trial import Trial

        number = under_way[0].number if under_way else number
        seed = int(np.random.SeedSequence([self._tuning.seed, number]).generate_state(1)[0])
        self._study.sampler = TPESampler(multivariate=True, constant_liar=False, seed=seed)
        trial = Trial(self._study, under_way[0]._trial_id) if under_way else self._study.ask()
        for dimension in self._tuning.dimensions:
            dimension.draw(trial)
        return trial

    def _one(self, trial: Trial) -> None:
        """Bring a trial to its end, unless somebody asks to stop."""
        from optuna.trial import TrialState

        tuning, study, scores = self._tuning, self._study, dict[int, float]()
        print(f"trial {trial.number}: {describe(tuning, trial.params)}", flush=True)
        reported = study.get_trials(deepcopy=False)[trial.number].intermediate_values
        best = max(scored(study), key=lambda one: one.value or 0.0, default=None)
        try:
            for rung in tuning.rungs(trial.params):
                if best and scores and is_worse(scores, best.intermediate_values, tuning.pruning):
                    study.tell(trial, state=TrialState.PRUNED)
                    print(f"trial {trial.number}: given up, worse than trial {best.number}", flush=True)
                    return
                self._execute(rung)
                if self._stopper.requests:
                    return
                for step, run in enumerate(rung, start=len(scores)):
                    scores[step] = self._score(run)
                    if step not in reported:
                        trial.report(scores[step], step)
        except (FailedRun, StudyError) as error:
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
        found = statuses(runs, self._directory)
        todo = [run for run, status in zip(runs, found, strict=True) if status not in _SETTLED]
        if not todo:
            return
        display = Display([status for status in found if status in _SETTLED], todo, (), self._directory)
        options = Options(self._tuning.checkpoint_every)
        pool = LocalPool(self._directory, options, self._jobs, display)
        for outcome in run_all(todo, pool, display, self._stopper):
            if outcome.status == "busy":
                raise RuntimeError(f"a run of this trial is not free: {outcome.message}")
        self._study.set_user_attr(_SECONDS, self._spent())

    def _score(self, run: RunConfig) -> float:
        found = read_run(self._directory / run.directory_name, run.as_dict())
        if found.status != "completed":
            raise FailedRun(f"{run.describe()}: {found.error}")
        return float(found.returns[-self._tuning.last :].mean()) / self._tuning.reference[run.env]

    def _spent(self) -> float:
        return time.monotonic() - self._began


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


def describe(tuning: Tuning, drawn: Values) -> str:
    """A trial's setting in one line."""
    return ", ".join(f"{one.name}={brief(one.value(drawn))}" for one in tuning.dimensions)


def brief(value: object) -> str:
    """A value of a parameter, for people."""
    if isinstance(value, str) and value.startswith(LINEAR):
        return LINEAR + brief(float(value[len(LINEAR) :]))
    return f"{value:.3g}" if isinstance(value, float) else NONE if value is None else str(value)
