"""A model trained under ``VecNormalize`` carries the statistics in its file, and tells if they are missed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from sppo import SPPO, MaskableSPPO, RecurrentSPPO, load_vec_normalize
from sppo.loading import LoadError
from sppo.loading.inspection import main as inspect
from tests.algorithms.environments import SpaceEnv
from tests.loading.filecraft import FIXTURES, members
from tests.loading.normalized import MEMBER, OPTIONS, SMALL, raw_env, trained


def assert_same_statistics(one: Any, other: Any) -> None:
    ones, others = (each if isinstance(each, dict) else {"": each} for each in (one, other))
    assert ones.keys() == others.keys()
    for key, a in ones.items():
        assert np.array_equal(a.mean, others[key].mean)
        assert np.array_equal(a.var, others[key].var)
        assert a.count == others[key].count


@pytest.mark.parametrize(
    ("kind", "upstream", "policy"),
    [
        (SPPO, PPO, "MlpPolicy"),
        (MaskableSPPO, MaskablePPO, "MlpPolicy"),
        (RecurrentSPPO, RecurrentPPO, "MlpLstmPolicy"),
    ],
)
@pytest.mark.parametrize("trust", [False, True])
def test_the_same_predictions_on_raw_observations(
    kind: Any, upstream: Any, policy: str, trust: bool, tmp_path: Path
) -> None:
    """As with the wrapper that the model was trained under; upstream's loader sees nothing of it."""
    model, env = trained(tmp_path, kind, policy)
    loaded = kind.load(tmp_path / "model", device="cpu", trust=trust)
    again = loaded.normalized(raw_env())
    assert_same_statistics(again.obs_rms, env.obs_rms)
    assert_same_statistics(again.ret_rms, env.ret_rms)
    assert [getattr(again, name) for name in OPTIONS] == list(OPTIONS.values())
    assert (again.training, again.norm_reward) == (False, False)
    theirs = upstream.load(tmp_path / "model", device="cpu")
    for raw in np.random.default_rng(0).uniform(-3, 3, (50, 2, 5)):
        expected, _ = model.predict(env.normalize_obs(raw), deterministic=True)
        for one in (loaded, theirs):
            assert np.array_equal(one.predict(again.normalize_obs(raw), deterministic=True)[0], expected)
    assert "normalization" not in "".join(vars(theirs))


class Parts(gym.Env):
    """A dictionary with a part that cannot be normalised."""

    observation_space = spaces.Dict(
        {"map": spaces.Box(0, 9, (2, 2)), "gear": spaces.Discrete(3), "position": spaces.Box(-1, 5, (3,))}
    )
    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 1.0, False, False, {}


@pytest.mark.parametrize("keys", [["position"], ["position", "map"]])
def test_dictionaries(keys: list[str], tmp_path: Path) -> None:
    env = VecNormalize(DummyVecEnv([Parts, Parts]), norm_obs_keys=keys)
    model = SPPO("MultiInputPolicy", env, **SMALL).learn(32)
    model.save(tmp_path / "model")
    loaded = SPPO.load(tmp_path / "model")
    again = loaded.normalized(Parts())
    assert again.norm_obs_keys == keys
    assert_same_statistics(again.obs_rms, env.obs_rms)
    raw = DummyVecEnv([Parts, Parts]).reset()
    for key, ours in again.normalize_obs(raw).items():
        assert np.array_equal(ours, env.normalize_obs(raw)[key])
    actions = [
        one.predict(each.normalize_obs(raw), deterministic=True)[0]
        for one, each in ((model, env), (loaded, again))
    ]
    assert np.array_equal(*actions)
    with pytest.warns(UserWarning, match="normalises other observations"):
        SPPO.load(tmp_path / "model", env=VecNormalize(DummyVecEnv([Parts]), norm_obs_keys=["map"]))
    with pytest.raises(ValueError, match="the observations position"):
        loaded.normalized(raw_env())


def test_rewards_only(tmp_path: Path) -> None:
    """Predictions need nothing then, and there is no warning before training goes on with other rewards."""
    _, env = trained(tmp_path, norm_obs=False)
    loaded = SPPO.load(tmp_path / "model", env=raw_env())
    with pytest.warns(UserWarning, match="does not normalise rewards, unlike") as caught:
        loaded.learn(32)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    loaded.learn(32)
    assert loaded.normalization is None, "it was trained without from there on"
    again = SPPO.load(tmp_path / "model").normalized(raw_env(), training=True)
    assert (again.training, again.norm_obs, again.norm_reward) == (True, False, True)
    assert_same_statistics(again.ret_rms, env.ret_rms)
    with pytest.warns(UserWarning, match="normalises other observations"):
        SPPO.load(tmp_path / "model", env=VecNormalize(raw_env()))


def frozen(env: VecNormalize) -> VecNormalize:
    env.training = env.norm_reward = False
    return env


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: raw_env(), "does not normalise observations"),
        (lambda path: SpaceEnv("vector", "discrete"), "does not normalise observations"),
        (lambda path: VecNormalize(raw_env(), norm_obs=False), "does not normalise observations"),
        (lambda path: VecNormalize(raw_env()), "with other statistics"),
        (lambda path: frozen(VecNormalize(raw_env())), "with other statistics"),
        (lambda path: load_vec_normalize(path / "model.zip", raw_env()), None),
        (lambda path: load_vec_normalize(path / "statistics.pkl", raw_env()), None),
        (lambda path: frozen(load_vec_normalize(path / "statistics.pkl", raw_env())), None),
        (lambda path: SPPO.load(path / "model").normalized(raw_env(n_envs=3)), None),
    ],
)
@pytest.mark.parametrize("way", ["load", "trust", "set_env"])
def test_one_warning_where_it_helps(
    make: Callable[[Path], Any], said: str | None, way: str, tmp_path: Path
) -> None:
    _, env = trained(tmp_path)
    env.save(str(tmp_path / "statistics.pkl"))
    given = make(tmp_path)
    if way == "set_env":
        model = SPPO.load(tmp_path / "model")
        model.n_envs = getattr(given, "num_envs", 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if way == "set_env":
            model.set_env(given)
        else:
            model = SPPO.load(tmp_path / "model", env=given, trust=way == "trust")
    assert [said in str(one.message) for one in caught] == ([True] if said else [])
    assert [one.filename for one in caught] == ([__file__] if said else [])
    # Mended as the warning says.
    model.set_env(model.normalized(raw_env(n_envs=model.n_envs)))


def test_no_warning_without_an_environment_or_after_small_drift(tmp_path: Path) -> None:
    model, env = trained(tmp_path)
    SPPO.load(tmp_path / "model").set_parameters(tmp_path / "model.zip")
    model.learn(32)
    SPPO.load(tmp_path / "model", env=env)


def test_training_goes_on_in_the_given_environment(tmp_path: Path) -> None:
    """Whatever statistics it has are its own: nothing is put in their place; and they are saved next time."""
    trained(tmp_path)
    given = VecNormalize(raw_env(n_envs=4))
    statistics = given.obs_rms
    with pytest.warns(UserWarning, match="other statistics"):
        model = SPPO.load(tmp_path / "model", env=given)
    assert model.get_vec_normalize_env() is given
    assert given.obs_rms is statistics
    assert statistics.count < 1
    model.save(tmp_path / "untouched")
    assert members(tmp_path / "untouched.zip")[MEMBER] == members(tmp_path / "model.zip")[MEMBER]
    model.learn(64)
    model.save(tmp_path / "further")
    assert_same_statistics(SPPO.load(tmp_path / "further").normalized(raw_env()).obs_rms, given.obs_rms)

    goes_on = SPPO.load(tmp_path / "model").normalized(raw_env(n_envs=3), training=True)
    before = goes_on.obs_rms.count
    SPPO.load(tmp_path / "model", env=goes_on).learn(48)
    assert goes_on.obs_rms.count == before + 48 + 3
    assert goes_on.norm_reward


def test_copies_do_not_move_with_the_training(tmp_path: Path) -> None:
    model, env = trained(tmp_path)
    playing = model.normalized(SpaceEnv("vector", "discrete"))
    before = playing.obs_rms.mean.copy()
    env.step([0, 0])
    env.obs_rms.mean += 1
    assert np.array_equal(playing.obs_rms.mean, before)
    evaluate_policy(model, playing, n_eval_episodes=2)
    assert np.array_equal(playing.obs_rms.mean, before)


def test_loaded_and_saved_again_without_an_environment(tmp_path: Path) -> None:
    trained(tmp_path)
    SPPO.load(tmp_path / "model").save(tmp_path / "again")
    assert members(tmp_path / "again.zip")[MEMBER] == members(tmp_path / "model.zip")[MEMBER]
    SPPO.load(tmp_path / "model").save(tmp_path / "without", exclude=(name for name in ["normalization"]))
    assert MEMBER not in members(tmp_path / "without.zip")


def test_frames_stacked_above(tmp_path: Path) -> None:
    env = VecNormalize(raw_env(), **OPTIONS)
    SPPO("MlpPolicy", VecFrameStack(env, 3), **SMALL).learn(32).save(tmp_path / "model")
    loaded = SPPO.load(tmp_path / "model")
    again = VecFrameStack(loaded.normalized(raw_env()), 3)
    assert_same_statistics(again.venv.obs_rms, env.obs_rms)
    SPPO.load(tmp_path / "model", env=again)
    with pytest.raises(ValueError, match="before any VecFrameStack"):
        loaded.normalized(VecFrameStack(raw_env(), 3))
    with pytest.raises(ValueError, match="in a VecNormalize already"):
        loaded.normalized(again)


def test_the_best_model_has_the_statistics_of_its_own_time(tmp_path: Path) -> None:
    env = VecNormalize(raw_env())
    playing = VecNormalize(raw_env(n_envs=1), training=False, norm_reward=False)
    callback = EvalCallback(
        playing, eval_freq=8, n_eval_episodes=1, best_model_save_path=str(tmp_path), verbose=0, warn=False
    )
    SPPO("MlpPolicy", env, **SMALL).learn(16, callback).learn(64)
    best = SPPO.load(tmp_path / "best_model").normalization
    assert best.observations[""].count < env.obs_rms.count


def test_without_statistics_everything_is_as_before(tmp_path: Path) -> None:
    SPPO("MlpPolicy", raw_env(), **SMALL).learn(16).save(tmp_path / "plain")
    assert MEMBER not in members(tmp_path / "plain.zip")

    class Mine(VecNormalize):
        """Whatever it does otherwise would not be in the file."""

    SPPO("MlpPolicy", Mine(raw_env()), **SMALL).save(tmp_path / "mine")
    assert MEMBER not in members(tmp_path / "mine.zip")
    for path in (tmp_path / "plain.zip", FIXTURES / "sb3-2.9.2-discrete.zip"):
        model = SPPO.load(path, device="cpu")
        assert model.normalization is None
        with pytest.raises(ValueError, match="no statistics of VecNormalize"):
            model.normalized(raw_env())
        with pytest.raises(LoadError, match=f"{path.name}: it is a model that carries no statistics"):
            load_vec_normalize(path, raw_env())


def test_checkpoints_do_not_carry_it_twice(tmp_path: Path) -> None:
    """A fresh environment is given at resume, whose statistics come from the checkpoint: no warning."""
    model, env = trained(tmp_path)
    model.save_checkpoint(tmp_path / "c")
    assert MEMBER.encode() not in (tmp_path / "c").read_bytes()
    resumed = SPPO.resume(tmp_path / "c", env=VecNormalize(raw_env(), **OPTIONS))
    assert_same_statistics(resumed.get_vec_normalize_env().obs_rms, env.obs_rms)
    resumed.save(tmp_path / "again")
    assert members(tmp_path / "again.zip")[MEMBER] == members(tmp_path / "model.zip")[MEMBER]


def test_inspect_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path)
    assert inspect([str(tmp_path / "model.zip")]) == 0
    printed = capsys.readouterr().out
    assert "statistics of VecNormalize" in printed
    assert "(5,), of 66 samples" in printed
    assert "clip_obs                     1.5" in printed
