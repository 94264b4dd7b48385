"""The live view of a study being executed: in place on a terminal, line by line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from sppo.records import run_files
from sppo.records.config import RunConfig
from sppo.study.execution import Outcome
from sppo.study.overview import aligned, duration, predicted_seconds


class Display:
    """Counts what happens and shows it; plain lines, one per event.

    :param runs: all selected runs
    :param found: their statuses at the beginning
    :param varied: parameters that tell runs apart
    """

    #: seconds between two lines that only say that all is well
    QUIET = 60.0
    ROWS = 16

    def __init__(
        self, runs: Sequence[RunConfig], found: Sequence[str], varied: tuple[str, ...], directory: Path
    ) -> None:
        self.total = len(runs)
        self.done = sum(status == "completed" for status in found)
        self.failed = sum(status == "failed" for status in found)
        self.elsewhere = 0
        self.running: dict[str, RunConfig] = {}
        self._varied = varied
        self._directory = directory
        self._began = self._shown = time.monotonic()
        self._left = {
            run.hash: predicted_seconds(run)
            for run, status in zip(runs, found, strict=True)
            if status not in ("completed", "failed")
        }
        self._work = 0.0
        # Work that an earlier session did on a run must not count as this session's speed.
        self._credit: dict[str, float] = {}

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def expect(self, run: RunConfig) -> None:
        """A failed run will be tried again."""
        self.failed -= 1
        self._left[run.hash] = predicted_seconds(run)

    def started(self, run: RunConfig) -> None:
        """A training process has taken up a run."""
        self.running[run.hash] = run
        self._credit[run.hash] = self._fraction(run)

    def ended(self, run: RunConfig, outcome: Outcome) -> None:
        """A training process has given up a run, done or not."""
        self.running.pop(run.hash, None)
        if outcome.status == "completed":
            self.done += 1
            self._work += self._left.get(run.hash, 0.0) * (1.0 - self._credit.get(run.hash, 0.0))
        if outcome.status == "failed":
            self.failed += 1
        if outcome.status == "busy":
            self.elsewhere += 1
        if outcome.status in ("completed", "failed"):
            self._left.pop(run.hash, None)
        text = f"{outcome.status}: {run.describe(self._varied)}"
        self.message(text + (f": {outcome.message}" if outcome.message else ""))

    def message(self, text: str) -> None:
        """Something the user should read."""
        self._shown = time.monotonic()
        print(f"[{self.summary()}] {text}", flush=True)

    def tick(self) -> None:
        """Called about twice a second."""
        if time.monotonic() - self._shown > self.QUIET:
            self._shown = time.monotonic()
            print(f"[{self.summary()}]", flush=True)

    def summary(self) -> str:
        """Counts and remaining time in one line."""
        parts = [f"{self.done}/{self.total} done", f"{len(self.running)} running"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.elsewhere:
            parts.append(f"{self.elsewhere} in other runners")
        eta = self.eta()
        parts.append("ETA " + ("unknown" if eta is None else duration(eta)))
        return ", ".join(parts)

    def eta(self) -> float | None:
        """Seconds until everything is done, at this session's speed; ``None`` before there is one."""
        partial = {key: self._fraction(run) for key, run in self.running.items()}
        work = self._work + sum(
            (fraction - self._credit[key]) * self._left.get(key, 0.0) for key, fraction in partial.items()
        )
        left = sum(cost * (1.0 - partial.get(key, 0.0)) for key, cost in self._left.items())
        elapsed = time.monotonic() - self._began
        if left == 0.0:
            return 0.0
        return left * elapsed / work if work > 0.0 and elapsed > 1.0 else None

    def rows(self) -> list[list[str]]:
        """One row per running training: what, how far, in per cent."""
        return [
            [run.describe(self._varied), f"{self._fraction(run) * 100:.0f} %"]
            for run in self.running.values()
        ]

    def _fraction(self, run: RunConfig) -> float:
        directory = self._directory / run.directory_name
        progress = run_files.read_json(directory / run_files.PROGRESS)
        if progress is None:
            return float((directory / run_files.RESULT).exists())
        return min(1.0, float(progress.get("timesteps", 0)) / run.total_timesteps)


class TerminalDisplay(Display):
    """The same, redrawn in place by ``rich``; failures and messages stay above as lines."""

    def __enter__(self) -> TerminalDisplay:
        from rich.live import Live

        self._live = Live(self._render(), refresh_per_second=4, transient=True)
        self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._live.__exit__(*details)
        print(self.summary())

    def message(self, text: str) -> None:
        if not text.startswith("completed"):
            self._live.console.print(text, markup=False, highlight=False)

    def tick(self) -> None:
        self._live.update(self._render())

    def _render(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 1))
        line.add_row(
            ProgressBar(total=max(1, self.total), completed=self.done, width=40), Text(self.summary())
        )
        rows = self.rows()
        return Group(line, Text(aligned(rows, left=1) if rows else ""))


def make_display(
    runs: Sequence[RunConfig], found: Sequence[str], varied: tuple[str, ...], directory: Path
) -> Display:
    """The display that suits where the output goes."""
    kind = Display
    if sys.stdout.isatty():
        try:
            import rich  # noqa: F401

            kind = TerminalDisplay
        except ImportError:
            pass
    return kind(runs, found, varied, directory)
