"""A training in compiled code starts without PyTorch's compiler, and leaves PyTorch as it found it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch as th

from sppo.engine.lean import optimizers_without_compiler

ROOT = Path(__file__).parents[2]
TRAIN = """
import sys
import torch
from tests.engine.engine_models import make_model
model = make_model(engine=sys.argv[1], n_epochs=2).learn(288)
loaded = "torch._dynamo" in sys.modules
model.policy.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
print(loaded, "torch._dynamo" in sys.modules, len(model.policy.optimizer.param_groups))
"""


@pytest.mark.parametrize(("engine", "loaded"), [("fast", "False"), ("reference", "True")])
def test_the_compiler_is_loaded_only_where_it_was_before(engine: str, loaded: str) -> None:
    """Not by the fast engine; by upstream's loop as ever; and by the first use of an optimizer's method."""
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, engine],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [loaded, "True", "2"]


def test_nothing_is_left_behind() -> None:
    function = th.optim.Optimizer.add_param_group.__wrapped__
    before = dict(vars(function))
    with pytest.raises(ValueError, match="learning rate"), optimizers_without_compiler():
        th.optim.Adam([th.nn.Parameter(th.zeros(2))], lr=-1.0)
    assert vars(function) == before
