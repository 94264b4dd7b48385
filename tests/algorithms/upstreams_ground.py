"""What upstream's own tests cover, as functions of a class: what they return is compared."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from tests.algorithms.environments import SpaceEnv
from tests.algorithms.small import NET, SMALL

Scenario = Callable[[Any, Path], Any]


class AnySpaces(gym.Env):
    """Random observations of any space, short episodes that end or run out of time."""

    def __init__(self, observation: spaces.Space, action: spaces.Space | None = None) -> None:
        self.observation_space = copy.deepcopy(observation)
        self.observation_space.seed(1)
        self.action_space = action or spaces.Discrete(3)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(np.asarray(action)), "an action out of its space"
        self._steps += 1
        reward = float(np.sum(action))
        return self.observation_space.sample(), reward, self._steps % 7 == 0, self._steps >= 5, {}


def weights(model: Any) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in model.policy.state_dict().items()}


def env(n_envs: int = 2, **kwargs: Any) -> Any:
    return make_vec_env(SpaceEnv, n_envs=n_envs, seed=5, env_kwargs={"action": "discrete", **kwargs})


def trained_in(
    observation: spaces.Space, action: spaces.Space | None = None, policy: str = "MlpPolicy"
) -> Scenario:
    def scenario(cls: Any, directory: Path) -> Any:
        made = DummyVecEnv([lambda: AnySpaces(observation, action)])
        model = cls(policy, made, **SMALL, **NET).learn(64)
        return weights(model), model.predict(made.reset(), deterministic=True)[0]

    return scenario


def with_options(n_steps: int = 128, action: str = "discrete", **options: Any) -> Scenario:
    def scenario(cls: Any, directory: Path) -> Any:
        return weights(cls("MlpPolicy", env(action=action), **{**SMALL, **NET, **options}).learn(n_steps))

    return scenario


def callbacks(cls: Any, directory: Path) -> Any:
    """Evaluation, checkpoints, events and an early stop, in one list; a function as a callback, too."""
    steps: list[int] = []

    class Count(BaseCallback):
        def _on_step(self) -> bool:
            steps.append(self.num_timesteps)
            assert {"obs_tensor", "actions", "rewards", "new_obs", "infos"} <= self.locals.keys()
            return True

    best = StopTrainingOnRewardThreshold(reward_threshold=1e9)
    evaluation = EvalCallback(
        env(1), callback_on_new_best=best, log_path=str(directory), eval_freq=32, verbose=0
    )
    checkpoint = CheckpointCallback(save_freq=40, save_path=str(directory), name_prefix="model")
    some = [Count(), evaluation, checkpoint, EveryNTimesteps(48, Count()), StopTrainingOnMaxEpisodes(30)]
    model = cls("MlpPolicy", env(), **SMALL, **NET).learn(2000, CallbackList(some))
    model.learn(32, callback=lambda local, _: local["n_steps"] < 7, reset_num_timesteps=False)
    files = sorted(path.name for path in directory.iterdir())
    return steps, files, weights(model), np.load(directory / "evaluations.npz")["results"]


def saving(cls: Any, directory: Path) -> Any:
    """To a path and to a buffer, with and without an environment, and on with training."""
    model = cls("MlpPolicy", env(), **SMALL, **NET).learn(64)
    observations = env().reset()
    before = model.predict(observations, deterministic=True)[0]
    model.save(directory / "model")
    buffer = io.BytesIO()
    model.save(buffer, exclude=["learning_rate"])
    buffer.seek(0)
    found = []
    for source in (directory / "model", str(directory / "model.zip"), buffer):
        again = cls.load(source, learning_rate=1e-3)
        np.testing.assert_array_equal(again.predict(observations, deterministic=True)[0], before)
        assert again.learning_rate == 1e-3
        assert again.get_env() is None
        again.set_env(env())
        again.learn(64, reset_num_timesteps=False)
        found.append((again.num_timesteps, weights(again)))
    changed = cls.load(directory / "model", env=env(), n_epochs=1, device="cpu")
    found.append((changed.n_epochs, weights(changed.learn(64))))
    return found


def policies_alone(cls: Any, directory: Path) -> Any:
    model = cls("MlpPolicy", env(), **SMALL, **NET).learn(64)
    model.policy.save(directory / "policy")
    policy = type(model.policy).load(directory / "policy")
    observations = env().reset()
    actions = policy.predict(observations, deterministic=True)[0]
    np.testing.assert_array_equal(actions, model.predict(observations, deterministic=True)[0])
    return actions


def parameters(cls: Any, directory: Path) -> Any:
    """Get, set, and refusal of what does not fit."""
    model, other = (cls("MlpPolicy", env(), **{**SMALL, "seed": seed}, **NET) for seed in (1, 2))
    given = model.learn(64).get_parameters()
    assert set(given) == {"policy", "policy.optimizer"}
    other.set_parameters(given, exact_match=True)
    with pytest.raises(ValueError):
        other.set_parameters({"nothing of ours": {}})
    with pytest.raises(ValueError):
        other.set_parameters({"policy": given["policy"]}, exact_match=True)
    return weights(other)


def predicting(cls: Any, directory: Path) -> Any:
    """Single observations, several, after a seed, and with what no environment can have."""
    model = cls("MlpPolicy", env(), **SMALL, **NET)
    observations = env().reset()
    th.manual_seed(1)
    drawn = [model.predict(observations)[0], model.predict(observations[0])[0]]
    assert drawn[1].shape == ()
    with pytest.raises(ValueError):
        model.predict(np.zeros((3, 99), np.float32))
    with pytest.raises(ValueError):
        model.predict((observations, {}))
    return drawn


def normalizing(cls: Any, directory: Path) -> Any:
    made = VecNormalize(env(action="box"), clip_obs=5.0)
    model = cls("MlpPolicy", made, **SMALL, **NET).learn(128)
    made.save(str(directory / "statistics.pkl"))
    again = VecNormalize.load(str(directory / "statistics.pkl"), env(action="box"))
    assert model.get_vec_normalize_env() is made
    again.training = False
    score = evaluate_policy(model, again, n_eval_episodes=3)
    return weights(model), made.obs_rms.mean, made.obs_rms.var, made.ret_rms.var, np.array(score)


def stacked_wrappers(cls: Any, directory: Path) -> Any:
    stacked = VecFrameStack(DummyVecEnv([lambda: SpaceEnv(action="discrete")] * 2), 3)
    made = VecMonitor(VecCheckNan(stacked, raise_exception=True), str(directory / "log"))
    model = cls("MlpPolicy", made, **SMALL, **NET).learn(128)
    made.close()
    return weights(model), [episode["r"] for episode in model.ep_info_buffer]


def dictionaries(cls: Any, directory: Path) -> Any:
    parts = {"camera": IMAGE, "place": DOUBLES, "room": spaces.Discrete(3), "lamps": spaces.MultiBinary(2)}
    made = DummyVecEnv([lambda: AnySpaces(spaces.Dict(parts))])
    model = cls("MultiInputPolicy", made, **SMALL, policy_kwargs={"net_arch": [8]}).learn(64)
    with pytest.raises(ValueError, match="MultiInputPolicy"):
        cls("MlpPolicy", made, **SMALL)
    return weights(model), model.predict(made.reset(), deterministic=True)[0]


def custom_parts(cls: Any, directory: Path) -> Any:
    """A policy, a features extractor, an optimizer and batch normalisation of the user's own."""

    class Halves(BaseFeaturesExtractor):
        def __init__(self, observation_space: spaces.Box) -> None:
            super().__init__(observation_space, 4)
            self.layers = th.nn.Sequential(th.nn.Linear(5, 4), th.nn.BatchNorm1d(4), th.nn.ReLU())

        def forward(self, observations: th.Tensor) -> th.Tensor:
            return 0.5 * self.layers(observations)

    class Mine(ActorCriticPolicy):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            extractor = {"features_extractor_class": Halves, "share_features_extractor": False}
            optimizer = {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}}
            super().__init__(*args, **{**kwargs, **extractor, **optimizer, "activation_fn": th.nn.ELU})

    model = cls(Mine, env(), **SMALL, policy_kwargs={"net_arch": {"pi": [8], "vf": [4, 4]}}).learn(64)
    before = weights(model)
    model.predict(env().reset())
    assert_same(weights(model), before)
    return before


def schedules(cls: Any, directory: Path) -> Any:
    rates: list[float] = []

    class Look(BaseCallback):
        def _on_rollout_end(self) -> None:
            rates.append(self.model.policy.optimizer.param_groups[0]["lr"])

        def _on_step(self) -> bool:
            return True

    options = {"learning_rate": lambda progress: 1e-3 * progress, "clip_range": LinearSchedule(0.3, 0.1, 1.0)}
    model = cls("MlpPolicy", env(), **SMALL, **NET, clip_range_vf=0.2, **options).learn(256, Look())
    return rates, model.clip_range(0.5), weights(model)


def logging(cls: Any, directory: Path) -> Any:
    model = cls("MlpPolicy", env(), **SMALL, **NET, stats_window_size=7)
    model.set_logger(configure(str(directory), ["csv", "json"]))
    model.learn(192, log_interval=2)
    assert model.ep_info_buffer is not None
    assert model.ep_info_buffer.maxlen == 7
    model.logger.close()
    header = (directory / "progress.csv").read_text().splitlines()[0].split(",")
    wanted = ("train/loss", "train/approx_kl", "train/clip_fraction", "rollout/ep_rew_mean", "time/fps")
    return [name in header for name in wanted]


def bad_sizes(cls: Any, directory: Path) -> Any:
    with pytest.raises(AssertionError):
        cls("MlpPolicy", env(1), n_steps=1)
    with pytest.raises(AssertionError):
        cls("MlpPolicy", env(), batch_size=1)
    with pytest.warns(UserWarning, match="mini-batch size"):
        cls("MlpPolicy", env(), n_steps=33, batch_size=32)
    with pytest.raises(AssertionError, match="number of environments"):
        cls("MlpPolicy", env(), **SMALL).set_env(env(3))
    with pytest.raises(AssertionError, match="clip_range_vf"):
        cls("MlpPolicy", env(), **SMALL, clip_range_vf=-0.2)
    return True


def advantages(cls: Any, directory: Path) -> Any:
    model = cls("MlpPolicy", env(), **SMALL, **NET, gamma=0.9, gae_lambda=0.8)
    model.learn(64)
    buffer = model.rollout_buffer
    return buffer.advantages, buffer.returns, buffer.values


DOUBLES = spaces.Box(-1, 1, (3,), np.float64)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
SCENARIOS: dict[str, Scenario] = {
    "discrete observations": trained_in(spaces.Discrete(5)),
    "multidiscrete observations": trained_in(spaces.MultiDiscrete([3, 2])),
    "multibinary observations": trained_in(spaces.MultiBinary(4)),
    "float64 everywhere": trained_in(
        spaces.Box(-1, 1, (3,), np.float64), spaces.Box(-1, 1, (2,), np.float64)
    ),
    "actions of two axes": trained_in(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2, 2))),
    "one bounded action": trained_in(spaces.Box(-1, 1, (2, 2)), spaces.Box(0, 5, (1,))),
    "multidiscrete actions": trained_in(spaces.Box(-1, 1, (3,)), spaces.MultiDiscrete([3, 2])),
    "multibinary actions": trained_in(spaces.Box(-1, 1, (3,)), spaces.MultiBinary(3)),
    "images": trained_in(IMAGE, None, "CnnPolicy"),
    "no network": with_options(policy_kwargs={"net_arch": []}),
    "values only": with_options(policy_kwargs={"net_arch": {"pi": [], "vf": [8]}}),
    "adam's options": with_options(policy_kwargs={"optimizer_kwargs": {"weight_decay": 0.1}}),
    "raw advantages": with_options(normalize_advantage=False),
    "no gradient clipping": with_options(max_grad_norm=100.0, ent_coef=0.01),
    "early stops": with_options(target_kl=1e-4),
    "noise that depends on the state": with_options(action="box", use_sde=True, sde_sample_freq=4),
    "squashed noise": with_options(
        action="box", use_sde=True, policy_kwargs={"squash_output": True, "full_std": False}
    ),
    "callbacks": callbacks,
    "saving": saving,
    "policies alone": policies_alone,
    "parameters": parameters,
    "predicting": predicting,
    "normalizing": normalizing,
    "stacked wrappers": stacked_wrappers,
    "dictionaries": dictionaries,
    "custom parts": custom_parts,
    "schedules": schedules,
    "logging": logging,
    "bad sizes": bad_sizes,
    "advantages": advantages,
}


def masked(action: str) -> Scenario:
    def scenario(cls: Any, directory: Path) -> Any:
        model = cls("MlpPolicy", env(action=action), **SMALL, **NET).learn(128)
        observations, masks = env().reset(), np.zeros((2, 4), bool)
        masks[:, 2] = True
        if action == "discrete":
            assert (model.predict(observations, action_masks=masks)[0] == 2).all()
        model.save(directory / "model")
        again = cls.load(directory / "model", env=env(action=action))
        score = evaluate_masked(again, env(1, action=action), n_eval_episodes=3)
        return weights(model), np.array(score), weights(again.learn(64, use_masking=False))

    return scenario


def recurrent(**policy: Any) -> Scenario:
    def scenario(cls: Any, directory: Path) -> Any:
        options = {**SMALL, "policy_kwargs": {"net_arch": [8], "lstm_hidden_size": 4, **policy}}
        model = cls("MlpLstmPolicy", env(), **options).learn(128)
        observations, starts = env().reset(), np.ones(2, bool)
        first, states = model.predict(observations, episode_start=starts, deterministic=True)
        second, _ = model.predict(observations, states, ~starts, deterministic=True)
        model.save(directory / "model")
        again = cls.load(directory / "model", env=env())
        return weights(model), first, second, states, weights(again.learn(64))

    return scenario


def assert_same(first: Any, second: Any, numbers: bool = True) -> None:
    """Equal in kind: keys, lengths, shapes, types; and in every number, if asked."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        first, second = list(first.values()), list(second.values())
    if isinstance(first, (list, tuple)):
        assert numbers is False or len(first) == len(second)
        for one, other in zip(first, second, strict=numbers):
            assert_same(one, other, numbers)
        return
    assert type(first) is type(second)
    one, other = np.asarray(first), np.asarray(second)
    assert one.dtype.kind == other.dtype.kind
    assert one.shape == other.shape
    if one.dtype.kind == "f":
        assert np.isfinite(other).all()
    if numbers:
        np.testing.assert_array_equal(one, other)
