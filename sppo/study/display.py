"""What a study being executed says: a line per event, and one now and then while nothing happens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from sppo.records.config import RunConfig
from sppo.records.run_files import PROGRESS, read_json
from sppo.study.execution import Outcome
from sppo.study.overview import duration, predicted_seconds


class Display:
    """Counts what happens and prints it.

    :param settled: the statuses of the selected runs that are left alone
    :param todo: the runs that are to be executed
    :param varied: parameters that tell runs apart
    """

    #: seconds between two lines that only say that all is well
    QUIET = 60.0

    def __init__(
        self,
        settled: Sequence[str],
        todo: Sequence[RunConfig],
        varied: tuple[str, ...],
        directory: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.running: dict[str, RunConfig] = {}
        self._total = len(settled) + len(todo)
        self._settled = Counter(settled)
        self._cost = {run.hash: predicted_seconds(run) for run in todo}
        self._fraction = dict.fromkeys(self._cost, 0.0)
        # Work that an earlier session did on a run must not count as this session's speed.
        self._credit: dict[str, float] = {}
        self._varied = varied
        self._directory = directory
        self._clock = clock
        self._began = self._shown = clock()

    def started(self, run: RunConfig) -> None:
        """A training process has taken up a run."""
        self.running[run.hash] = run
        self._look()
        self._credit.setdefault(run.hash, self._fraction[run.hash])

    def ended(self, run: RunConfig, outcome: Outcome) -> None:
        """A training process has given up a run, done or not."""
        self._look()
        self.running.pop(run.hash, None)
        self._settled[outcome.status] += 1
        if outcome.status in ("completed", "failed"):
            self._fraction[run.hash] = 1.0
        words = (outcome.status, run.describe(self._varied), outcome.message)
        self._print(": ".join(filter(None, words)))

    def said(self, run: RunConfig, text: str) -> None:
        """Something about a run that the user should read."""
        self._print(f"{run.env} seed={run.seed}: {text}")

    def tick(self) -> None:
        """Called about twice a second."""
        if self._clock() - self._shown > self.QUIET:
            self._print("")

    def summary(self) -> str:
        """Counts and remaining time in one line."""
        parts = [f"{self._settled['completed']}/{self._total} done", f"{len(self.running)} running"]
        for status, text in (("failed", "failed"), ("busy", "in other runners")):
            parts += [f"{self._settled[status]} {text}"] if self._settled[status] else []
        eta = self.eta()
        return ", ".join([*parts, "ETA " + ("unknown" if eta is None else duration(eta))])

    def eta(self) -> float | None:
        """Seconds until everything is done, at this session's speed; ``None`` before there is one."""
        self._look()
        left = sum(cost * (1.0 - self._fraction[key]) for key, cost in self._cost.items())
        work = sum(self._cost[key] * (self._fraction[key] - begun) for key, begun in self._credit.items())
        elapsed = self._clock() - self._began
        if left == 0.0:
            return 0.0
        return left * elapsed / work if work > 0.0 and elapsed > 1.0 else None

    def _print(self, text: str) -> None:
        self._shown = self._clock()
        print(f"[{self.summary()}] {text}".rstrip(), flush=True)

    def _look(self) -> None:
        """How far the running trainings have come."""
        for key, run in self.running.items():
            progress = read_json(self._directory / run.directory_name / PROGRESS) or {}
            fraction = float(progress.get("timesteps", 0)) / run.total_timesteps
            self._fraction[key] = min(1.0, max(self._fraction[key], fraction))
