"""Test-wide settings: tiny networks are fastest on one thread, and workers share the cores."""

import sys
from collections.abc import Iterator

import pytest

from tests.forks import Forks


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    # Imported here: the process that hands the tests to the workers does without it.
    import torch as th

    th.set_num_threads(1)


@pytest.fixture(autouse=True)
def _gymnasium_as_it_is() -> Iterator[None]:
    yield
    assert "rl_zoo3" not in sys.modules, "importing it changes Gymnasium for the tests that follow: not here"


@pytest.fixture(scope="session")
def fresh_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Programs of their own that train."""
    with Forks("from sppo import SPPO", tmp_path_factory.mktemp("forks")) as forks:
        yield forks


@pytest.fixture(scope="session")
def zoo_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Programs of their own that use the RL Zoo."""
    with Forks("import sppo.zoo, rl_zoo3.enjoy, rl_zoo3.train", tmp_path_factory.mktemp("zoo")) as forks:
        yield forks
