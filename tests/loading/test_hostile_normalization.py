"""Statistics of ``VecNormalize`` in a model's file that are not what they should be."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sppo import SPPO, load_vec_normalize
from sppo.loading import LoadError
from sppo.loading.inspection import main as inspect
from tests.loading.filecraft import members, packed, witnessed
from tests.loading.normalized import MEMBER, SMALL, raw_env, trained


def statistics(**changes: Any) -> dict[str, Any]:
    return {"mean": [0.0] * 5, "var": [1.0] * 5, "count": 10.0, **changes}


#: what replaces parts of an honest member
HOSTILE: dict[str, dict[str, Any]] = {
    "other shape": {"observations": {"": statistics(mean=[0.0] * 4, var=[1.0] * 4)}},
    "more dimensions": {"observations": {"": statistics(mean=[[0.0] * 5], var=[[1.0] * 5])}},
    "no dimensions": {"observations": {"": statistics(mean=0.0, var=1.0)}},
    "shapes that differ": {"observations": {"": statistics(var=1.0)}},
    "ragged": {"observations": {"": statistics(mean=[[1.0], [1.0, 2.0]])}},
    "deep": {"observations": {"": statistics(mean=json.loads("[" * 100 + "]" * 100))}},
    "unknown key": {"observations": {"elsewhere": statistics()}},
    "nan": {"observations": {"": statistics(mean=[math.nan] * 5)}},
    "infinite": {"observations": {"": statistics(var=[math.inf] * 5)}},
    "null": {"observations": {"": statistics(mean=[None] * 5)}},
    "texts": {"observations": {"": statistics(mean=["a"] * 5)}},
    "objects": {"observations": {"": statistics(mean=[{}] * 5)}},
    "huge integers": {"observations": {"": statistics(mean=[10**400] * 5)}},
    "negative variance": {"observations": {"": statistics(var=[-1.0] * 5)}},
    "division by zero": {"observations": {"": statistics(var=[0.0] * 5)}, "epsilon": 0},
    "negative count": {"observations": {"": statistics(count=-1)}},
    "infinite count": {"observations": {"": statistics(count=math.inf)}},
    "no count": {"observations": {"": {"mean": [0.0] * 5, "var": [1.0] * 5}}},
    "more attributes": {"observations": {"": statistics(update="evil")}},
    "no statistics": {"observations": {"": 3}},
    "list of statistics": {"observations": [statistics()]},
    "no observations": {"observations": None},
    "returns of several": {"returns": statistics()},
    "no returns": {"returns": None},
    "nan returns": {"returns": {"mean": 0.0, "var": math.nan, "count": 1}},
    "text as clip": {"clip_obs": "10"},
    "list as clip": {"clip_obs": [10]},
    "huge clip": {"clip_obs": 10**400},
    "negative clip": {"clip_obs": -1.0},
    "nan clip": {"clip_reward": math.nan},
    "gamma": {"gamma": 2.0},
    "infinite epsilon": {"epsilon": math.inf},
    "negative epsilon": {"epsilon": -1.0},
    "number as flag": {"norm_reward": 1},
    "another setting": {"venv": None},
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("honest")
    trained(path)
    return members(path / "model.zip")


def assert_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with witnessed() as seen:
        for load in (SPPO.load, lambda path: load_vec_normalize(path, raw_env())):
            with pytest.raises(LoadError, match=r"hostile\.zip: .*"):
                load(path)
        assert inspect([str(path)]) == 1
    assert "hostile.zip" in capsys.readouterr().out
    assert not seen


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_members_are_refused(
    kind: str, honest: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = json.dumps({**json.loads(honest[MEMBER]), **HOSTILE[kind]}).encode()
    (tmp_path / "hostile.zip").write_bytes(packed({**honest, MEMBER: member}))
    assert_refused(tmp_path / "hostile.zip", capsys)


@pytest.mark.parametrize(
    "member",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"observations": {"": {"mean": [' + b"1," * 700_000 + b"1]}}}",
    ],
    ids=range(8),
)
def test_members_of_another_kind_are_refused(
    member: bytes, honest: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hostile.zip").write_bytes(packed({**honest, MEMBER: member}))
    assert_refused(tmp_path / "hostile.zip", capsys)


def test_statistics_in_the_file_of_another_model(honest: dict[str, bytes], tmp_path: Path) -> None:
    """Those of a dictionary, of a choice among some, and of an image."""

    class Choice(gym.Env):
        observation_space = spaces.Discrete(5)
        action_space = spaces.Discrete(2)

    for env, policy in (
        (raw_env("dict"), "MultiInputPolicy"),
        (raw_env("image"), "CnnPolicy"),
        (Choice(), "MlpPolicy"),
    ):
        SPPO(policy, env, **SMALL).save(tmp_path / "other")
        raw = packed({**members(tmp_path / "other.zip"), MEMBER: honest[MEMBER]})
        with pytest.raises(LoadError, match="do not fit the observation space"):
            SPPO.load(io.BytesIO(raw), device="cpu")


def test_large_observations_are_not_carried(tmp_path: Path) -> None:
    """Their statistics as text would be larger than the weights; the model loads nevertheless."""

    class Large(gym.Env):
        observation_space = spaces.Box(-1.0, 1.0, (100_000,), np.float32)
        action_space = spaces.Discrete(2)

    model = SPPO("MlpPolicy", VecNormalize(DummyVecEnv([Large])), policy_kwargs={"net_arch": [1]}, **SMALL)
    model.save(tmp_path / "model")
    assert MEMBER not in members(tmp_path / "model.zip")


def test_broken_statistics_are_not_carried(tmp_path: Path) -> None:
    model, env = trained(tmp_path)
    env.obs_rms.mean[0] = np.nan
    model.save(tmp_path / "model")
    assert MEMBER not in members(tmp_path / "model.zip")
    SPPO.load(tmp_path / "model")
