"""Test-wide settings: tiny networks are fastest on one thread, and workers share the cores."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    # Imported here: the process that hands the tests to the workers does without it.
    import torch as th

    th.set_num_threads(1)


@pytest.fixture(autouse=True)
def _gymnasium_as_it_is() -> Iterator[None]:
    yield
    assert "rl_zoo3" not in sys.modules, "importing it changes Gymnasium for the tests that follow: not here"
