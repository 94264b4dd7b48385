"""The trials of the searches for a setting, from their journals: the table of ``benchmarks/README.md``.

    python -m benchmarks.searches

A score is a return, the mean of the last three evaluations of each of two seeds (four of ``hopper-falls``),
over Tianshou's after a million steps, as the tuning files say. A trial that was given up has none where it
did not get to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.million import ENVIRONMENTS
from benchmarks.pages import ROOT, Table, fill_readmes, page_of
from sppo.study.tune_command import open_journal, scores_of
from sppo.study.tuning import Tuning, read_tuning

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

SCRIPT = "searches"
STUDIES, RESULTS = ROOT / "benchmarks" / "studies", ROOT / "benchmarks" / "results"
#: file, and the environments of a search that is one of several in its journal
SEARCHES: tuple[tuple[str, tuple[str, ...] | None], ...] = (
    ("tune-mujoco", None),
    ("tune-mujoco-screen", None),
    ("tune-mujoco-bodies", None),
    ("tune-mujoco-bodies-2", None),
    ("tune-mujoco-legs", None),
    ("tune-mujoco-long", ("Hopper-v5",)),
    ("tune-mujoco-long", ("Walker2d-v5",)),
    ("tune-mujoco-long-cheetah", None),
    ("tune-mujoco-long-walker", None),
    ("tune-mujoco-long-hopper", None),
    ("tune-mujoco-hopper-falls", None),
    ("tune-mujoco-hopper-falls-2", None),
)
#: columns that all trials are told apart by
COLUMNS = ("learning_rate", "batch_size", "n_steps", "n_epochs", "gamma", "gae_lambda", "clip_range",
           "kl_budget", "n_critic_epochs", "normalize_advantage", "log_std_init", "net_arch")  # fmt: skip


def trials_of(name: str, tuning: Tuning) -> list[FrozenTrial]:
    """The trials of a search that have ended, in their order."""
    trials = open_journal(tuning, RESULTS / name, begin=False).get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state.is_finished()]


def rows_of(name: str, tuning: Tuning) -> Iterator[tuple[str, ...]]:
    for trial in trials_of(name, tuning):
        scores = scores_of(tuning, trial)
        parameters = tuning.plan(trial.params).runs[0].parameters
        values = {**parameters["policy_kwargs"], **parameters}
        yield (
            f"{name.removeprefix('tune-mujoco').lstrip('-') or 'all'} {trial.number}",
            *(f"{scores[env]:.2f}" if env in scores else "" for env in ENVIRONMENTS),
            *(_brief(values[column]) for column in COLUMNS),
        )


def _brief(value: object) -> str:
    if isinstance(value, list):
        return str(value[0])
    return "" if value is None else str(value).removeprefix("lin_")


def all_tables() -> dict[str, Table]:
    rows = [
        row for name, envs in SEARCHES for row in rows_of(name, read_tuning(STUDIES / f"{name}.toml", envs))
    ]
    return {"Trials": (("trial", *ENVIRONMENTS, *(f"`{column}`" for column in COLUMNS)), rows)}


def main() -> None:
    tables = all_tables()
    fill_readmes(SCRIPT, tables)
    print(page_of("The searches for a setting", SCRIPT, tables))


if __name__ == "__main__":
    main()
