"""Both engines for the tests that ask for it."""

from __future__ import annotations

import pytest

from tests.algorithms.small import SMALL


@pytest.fixture(params=["reference", "auto"])
def either_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small trainings run on the one and on the other."""
    monkeypatch.setitem(SMALL, "engine", request.param)
