"""Shared by the tests of reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from sppo.report.plots import Plot


@pytest.fixture
def _sheets_left_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Printing is most of a report: where page and tables are looked at, empty files stand for sheets."""

    def blank(plot: Plot, out: Path, footer: str) -> list[Path]:
        sheets = [out / f"{plot.name}.{ending}" for ending in ("png", "pdf")]
        for sheet in sheets:
            sheet.touch()
        return sheets

    monkeypatch.setattr("sppo.report.command.write_sheet", blank)
