"""Shared by the tests of the exact solvers: small problems, and the plain NumPy implementation."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from sppo.exact import TabularMDP, cliff_world, random_mdp
from sppo.exact.mdp import Evaluation


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def plain() -> ModuleType:
    """The obvious NumPy implementation that the benchmark compares with."""
    return _load(Path(__file__).parents[2] / "benchmarks" / "exact_numpy.py")


@pytest.fixture(scope="session")
def cliff() -> TabularMDP:
    return cliff_world()


@pytest.fixture
def problem() -> tuple[TabularMDP, Evaluation, np.ndarray]:
    """A random MDP, the evaluation of a random policy, and the logits of another one near it."""
    mdp = random_mdp(7, 3, gamma=0.8, reward_range=(-1.0, 2.0), seed=3)
    rng = np.random.default_rng(0)
    policy = rng.dirichlet(np.ones(3), size=7)
    return mdp, mdp.evaluate(policy), np.log(policy) + 0.5 * rng.standard_normal((7, 3))
