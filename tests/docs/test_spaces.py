"""The "Can I use?" tables of the algorithms' pages are true, space by space."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import sppo

DOCS = Path(__file__).parents[2] / "docs"
ALGORITHMS = {
    "sppo": "SPPO",
    "maskable_sppo": "MaskableSPPO",
    "recurrent_sppo": "RecurrentSPPO",
    "maskable_recurrent_sppo": "MaskableRecurrentSPPO",
}
SPACES = {
    "Discrete": spaces.Discrete(3),
    "Box": spaces.Box(-1.0, 1.0, (2,)),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3),
    "Dict": spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,)), "b": spaces.Discrete(3)}),
}
#: (role, space): what is said if it cannot be used
UNSUPPORTED = (AssertionError, r"only supports .* as action spaces but {}\(")
REFUSALS = {
    ("action", "Box"): UNSUPPORTED,
    ("action", "Dict"): UNSUPPORTED,
    # PyTorch's: sb3-contrib hands its LSTM the NumPy integer that these observations' size is.
    ("observation", "MultiDiscrete"): (TypeError, "input_size should be of type int"),
}
OWN_REFUSALS = {
    ("maskable_recurrent_sppo", "action", "Box"): (ValueError, "masks forbid discrete actions"),
}


class OneSpace(gym.Env):
    def __init__(self, action: spaces.Space, observation: spaces.Space) -> None:
        self.action_space, self.observation_space = action, observation

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, bool(self.np_random.random() < 0.1), False, {}

    def action_masks(self) -> np.ndarray:
        space = self.action_space
        sizes = {spaces.Discrete: lambda: space.n, spaces.MultiDiscrete: lambda: space.nvec.sum()}
        return np.ones(int(sizes.get(type(space), lambda: 2 * space.n)()), dtype=bool)


def promises() -> list[tuple[str, str, str, bool]]:
    """(page, role, space, whether it can be used), as the pages say it."""
    row = re.compile(r"^\| `(\w+)` \| ([✔✘]) \| ([✔✘]) \|$", re.MULTILINE)
    return [
        (page, role, space, mark == "✔")
        for page in ALGORITHMS
        for space, *marks in row.findall((DOCS / f"{page}.md").read_text())
        for role, mark in zip(("action", "observation"), marks, strict=True)
    ]


def test_every_space_is_promised_or_refused() -> None:
    assert len(promises()) == len(ALGORITHMS) * len(SPACES) * 2


@pytest.mark.parametrize(("page", "role", "space", "usable"), promises())
def test_the_table_is_true(page: str, role: str, space: str, usable: bool) -> None:
    chosen = {"action": SPACES["Discrete"], "observation": SPACES["Box"], role: SPACES[space]}
    kind = "MultiInput" if isinstance(chosen["observation"], spaces.Dict) else "Mlp"
    policy = f"{kind}LstmPolicy" if "recurrent" in page else f"{kind}Policy"

    def train() -> None:
        model = getattr(sppo, ALGORITHMS[page])(
            *(policy, OneSpace(**chosen)), n_steps=8, batch_size=8, n_epochs=1, engine="reference"
        )
        model.learn(8)

    if usable:
        train()
    else:
        error, words = OWN_REFUSALS.get((page, role, space), REFUSALS[role, space])
        with pytest.raises(error, match=words.format(space)):
            train()
