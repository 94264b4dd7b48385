"""Test-wide settings: tiny networks are fastest on one thread, and workers share the cores."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    # Imported here: the process that hands the tests to the workers does without it.
    import torch as th

    th.set_num_threads(1)
