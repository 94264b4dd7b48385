"""MaskableRecurrentSPPO: RecurrentSPPO where everything is allowed, and nothing forbidden anywhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import make_masked_proba_distribution
from sb3_contrib.common.maskable.evaluation import evaluate_policy as contrib_evaluate_policy
from sb3_contrib.common.maskable.utils import get_action_masks
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy as evaluate_unmasked
from stable_baselines3.common.monitor import Monitor

from sppo import MaskableRecurrentSPPO, MaskableSPPO, RecurrentSPPO
from sppo.algorithms.maskable_recurrent import MaskableRecurrentEvalCallback, evaluate_policy
from sppo.surrogates import kl_divergence
from tests.algorithms.environments import ForbiddingEnv, SpaceEnv

LSTM: dict[str, Any] = {"policy_kwargs": {"net_arch": [16], "lstm_hidden_size": 8}}
# Minibatches that no sequence's length divides.
SMALL: dict[str, Any] = {"n_steps": 32, "batch_size": 24, "n_epochs": 2, "seed": 3, "device": "cpu", **LSTM}
POLICIES = {"vector": "MlpLstmPolicy", "image": "CnnLstmPolicy", "dict": "MultiInputLstmPolicy"}
ACTIONS = ["discrete", "multidiscrete", "multibinary"]


class Permissive(SpaceEnv):
    """All actions are allowed."""

    def action_masks(self) -> np.ndarray:
        return np.ones(
            spaces.flatdim(self.action_space) * (1 + isinstance(self.action_space, spaces.MultiBinary))
        )


def vec_env(cls: type[gym.Env] = SpaceEnv, n_envs: int = 2, **kwargs: Any) -> Any:
    return make_vec_env(cls, n_envs, seed=5, env_kwargs=kwargs)


def weights(model: Any) -> dict[str, th.Tensor]:
    return {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}


def assert_same_weights(first: Any, second: Any) -> None:
    ours, theirs = weights(first), weights(second)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not th.equal(ours[name], theirs[name])] == []


CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(("vector", action, {"ent_coef": 0.01}) for action in ACTIONS),
    ("dict", "multidiscrete", {}),
    ("image", "discrete", {}),
    ("vector", "discrete", {"use_softmax": False, "target_kl": 1e-2, "clip_range_vf": 0.2}),
    ("vector", "multidiscrete", {"clip_range": None, "eta": 0.3}),
    ("vector", "multibinary", {"clip_range": None, "eta": "auto", "kl_budget": 0.01}),
    ("vector", "discrete", {"recompute_advantages": True, "n_critic_epochs": 5}),
]


@pytest.mark.parametrize(("observation", "action", "settings"), CASES, ids=str)
def test_with_everything_allowed_it_is_recurrent_sppo(
    observation: str, action: str, settings: dict[str, Any]
) -> None:
    """To the last bit of every weight; also when it is told to ignore masks that forbid something."""
    policy, kwargs = POLICIES[observation], {"observation": observation, "action": action}
    plain = RecurrentSPPO(policy, vec_env(**kwargs), **{**SMALL, **settings})
    before = weights(plain)
    plain.learn(128)
    masked = MaskableRecurrentSPPO(policy, vec_env(Permissive, **kwargs), **{**SMALL, **settings}).learn(128)
    assert_same_weights(plain, masked)
    assert any(not th.equal(tensor, before[name]) for name, tensor in weights(plain).items())
    ignoring = MaskableRecurrentSPPO(policy, vec_env(**kwargs), **{**SMALL, **settings})
    assert_same_weights(plain, ignoring.learn(128, use_masking=False))


@pytest.mark.parametrize("action", ACTIONS)
def test_distributions_are_sb3_contribs(action: str) -> None:
    """Probabilities, entropies and divergences under the same logits and masks."""
    env = SpaceEnv(action=action)
    masks = np.stack([env.action_masks() for _ in range(50)])
    observations = th.as_tensor(np.stack([env.observation_space.sample() for _ in range(50)]))
    states, starts = (th.zeros(1, 50, 8), th.zeros(1, 50, 8)), th.ones(50)
    made: list[th.Tensor] = []

    def distributions(seed: int) -> tuple[Any, Any]:
        """Ours, and sb3-contrib's of the same logits, of a policy that tells states and actions apart."""
        model = MaskableRecurrentSPPO("MlpLstmPolicy", env, **{**SMALL, "seed": seed})
        model.policy.action_net.register_forward_hook(lambda _module, _input, output: made.append(output))
        with th.no_grad(), model.policy.masked(masks):
            model.policy.action_net.weight.mul_(300)
            ours, _ = model.policy.get_distribution(observations, states, starts)
        logits = made.pop()
        assert logits.std() > 0.1
        if action == "multibinary":
            # sb3-contrib has two logits for the two outcomes, which count by their difference.
            logits = th.stack([th.zeros_like(logits), logits], -1).flatten(1)
        theirs = make_masked_proba_distribution(env.action_space).proba_distribution(logits)
        theirs.apply_masking(masks)
        return ours, theirs

    (ours, theirs), (our_other, their_other) = distributions(3), distributions(4)
    actions = ours.sample()
    taken = theirs.log_prob(actions)
    th.testing.assert_close(ours.log_prob(actions), taken)
    assert (taken > -50).all(), "a forbidden action was drawn"
    th.testing.assert_close(ours.entropy(), theirs.entropy())
    divergence = kl_divergence(their_other, theirs)
    assert divergence.max() > 0.01
    th.testing.assert_close(kl_divergence(our_other, ours), divergence, atol=1e-5, rtol=1e-4)


def play(model: Any, env: Any, steps: int, deterministic: bool) -> None:
    observation, state, starts = env.reset(), None, np.ones(env.num_envs, bool)
    for _ in range(steps):
        masks = get_action_masks(env)
        action, state = model.predict(observation, state, starts, deterministic, action_masks=masks)
        observation, _, starts, _ = env.step(action)


def test_what_is_forbidden_is_never_done() -> None:
    """The environment raises at a forbidden action, and allows one of four, another one each step."""
    settings = {**SMALL, "learning_rate": 1e-2, "ent_coef": 0.05}
    evaluation = vec_env(ForbiddingEnv)
    callback = MaskableRecurrentEvalCallback(evaluation, n_eval_episodes=4, eval_freq=16, verbose=0)
    model = MaskableRecurrentSPPO("MlpLstmPolicy", vec_env(ForbiddingEnv), **settings).learn(256, callback)
    assert callback.last_mean_reward == 10
    assert callback.model is model
    for deterministic in (True, False):
        play(model, evaluation, 50, deterministic)
        for env in (evaluation, Monitor(ForbiddingEnv())):
            assert evaluate_policy(model, env, n_eval_episodes=3, deterministic=deterministic) == (10, 0)
    # One environment that is not vectorised.
    action, _ = model.predict(np.zeros(2, np.float32), action_masks=np.arange(4) == 2)
    assert action == 2
    with pytest.raises(RuntimeError, match="forbidden action"):
        evaluate_unmasked(model, evaluation)
    with pytest.raises(RuntimeError, match="forbidden action"):
        model.learn(64, use_masking=False)


class Recorder(BaseCallback):
    """What each step was allowed, and whether the callback's own forward passes disturb it."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[np.ndarray] = []

    def _on_step(self) -> bool:
        self.masks.append(self.locals["action_masks"].copy())
        self.model.predict(self.locals["new_obs"])
        return True


@pytest.mark.parametrize("observation", ["vector", "dict"])
@pytest.mark.parametrize("action", ["discrete", "multidiscrete"])
def test_minibatches_have_the_masks_of_their_transitions(observation: str, action: str) -> None:
    recorder = Recorder()
    env = vec_env(observation=observation, action=action)
    model = MaskableRecurrentSPPO(POLICIES[observation], env, **{**SMALL, "n_epochs": 1})
    model.learn(64, recorder)
    collected = np.stack(recorder.masks)
    assert not collected.all()
    buffer = model.rollout_buffer
    # A value tells its transition; after an update they lie environment after environment.
    place = {float(value): divmod(row, 32)[::-1] for row, value in enumerate(buffer.values.flatten())}
    assert len(place) == 64
    padded = seen = 0
    for _ in range(3):
        for data in buffer.get(24):
            assert data.action_masks.shape == (len(data.mask), collected.shape[-1])
            for value, real, masks in zip(data.old_values, data.mask, data.action_masks, strict=True):
                if real:
                    assert np.array_equal(masks, collected[place[float(value)]])
                    seen += 1
                else:
                    assert masks.all()
                    padded += 1
    assert seen == 3 * 64
    assert padded > 0


@pytest.mark.parametrize("observation", ["vector", "dict"])
def test_old_log_probabilities_are_found_again(observation: str) -> None:
    """Nothing is learnt, so the new policy is the old one: with the right masks and states in every place."""
    env = vec_env(observation=observation, action="multidiscrete")
    model = MaskableRecurrentSPPO(POLICIES[observation], env, **SMALL, learning_rate=0.0).learn(128)
    compared = 0
    with th.no_grad():
        for data in model.rollout_buffer.get(24):
            with model.policy.masked(data.action_masks):
                values, log_prob, _ = model.policy.evaluate_actions(
                    data.observations, data.actions, data.lstm_states, data.episode_starts
                )
            real = data.mask > 0
            compared += int(real.sum())
            th.testing.assert_close(log_prob[real], data.old_log_prob[real], atol=1e-5, rtol=1e-5)
            th.testing.assert_close(values.flatten()[real], data.old_values[real], atol=1e-5, rtol=1e-5)
    assert compared == 64


#: those that ask the distributions for a divergence, for every kind of them
DIVERGENCES: list[dict[str, Any]] = [
    {"clip_range": None, "eta": 0.3},
    {"clip_range": None, "eta": 0.3, "use_softmax": False},
    {"clip_range": None, "eta": "auto", "kl_budget": 0.01, "critic_learning_rate": 1e-3},
]


@pytest.mark.parametrize(
    ("settings", "action"),
    [
        *((settings, action) for settings in DIVERGENCES for action in ACTIONS),
        ({"clip_range": None, "eta": 0.3, "divergence": "sampled"}, "multidiscrete"),
        ({"recompute_advantages": True}, "discrete"),
        (
            {"policy_kwargs": {"shared_lstm": True, "enable_critic_lstm": False, "lstm_hidden_size": 8}},
            "multidiscrete",
        ),
        (
            {"policy_kwargs": {"enable_critic_lstm": False, "n_lstm_layers": 2, "lstm_hidden_size": 8}},
            "multibinary",
        ),
    ],
    ids=str,
)
def test_every_surrogate_trains(settings: dict[str, Any], action: str) -> None:
    model = MaskableRecurrentSPPO("MlpLstmPolicy", vec_env(action=action), **{**SMALL, **settings})
    before = weights(model)
    model.learn(128)
    for name, tensor in weights(model).items():
        assert th.isfinite(tensor).all()
        assert not th.equal(tensor, before[name]), name
    assert model.logger.name_to_value["train/skipped_updates"] == 0
    if "kl_budget" in settings:
        assert 0 < model.logger.name_to_value["train/kl"] <= 0.01


class Corridor(gym.Env):
    """A cue, three steps with nothing to see, and two doors: the one that was shown has the reward.

    On the way two of six actions are allowed, others each time, and nothing tells which; a forbidden one ends
    the episode. Chance finds the door in half of the episodes; without masks a sixteenth come that far.
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._step, self._door = 0, int(self.np_random.integers(2))
        self._allow()
        return np.array([2 * self._door - 1, 1], np.float32), {}

    def _allow(self) -> None:
        self._allowed = np.arange(6) < 2
        if self._step < 4:
            self._allowed = np.isin(np.arange(6), 2 + self.np_random.permutation(4)[:2])

    def action_masks(self) -> np.ndarray:
        return self._allowed

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._step += 1
        over = self._step == 5 or not self._allowed[action]
        reward = float(self._step == 5 and action == self._door)
        self._allow()
        return np.zeros(2, np.float32), reward, over, False, {}


def test_memory_and_masks_are_both_needed() -> None:
    env = lambda: make_vec_env(Corridor, 8, seed=1)  # noqa: E731
    settings: dict[str, Any] = {
        "n_steps": 40,
        "batch_size": 160,
        "n_epochs": 8,
        "learning_rate": 5e-3,
        "seed": 0,
    }
    lstm = {"lstm_hidden_size": 16, "net_arch": [16]}
    both = MaskableRecurrentSPPO("MlpLstmPolicy", env(), **settings, policy_kwargs=lstm).learn(4000)
    assert evaluate_policy(both, env(), n_eval_episodes=200)[0] > 0.95
    # The state is what does it: sb3-contrib's evaluation would drop it, and is told so.
    with pytest.raises(ValueError, match="pass on the one that it returned"):
        contrib_evaluate_policy(both, env())
    without_memory = MaskableSPPO("MlpPolicy", env(), **settings).learn(4000)
    assert 0.35 < contrib_evaluate_policy(without_memory, env(), n_eval_episodes=200)[0] < 0.65
    without_masks = RecurrentSPPO("MlpLstmPolicy", env(), **settings, policy_kwargs=lstm).learn(4000)
    assert evaluate_unmasked(without_masks, env(), n_eval_episodes=200)[0] < 0.3


@pytest.mark.parametrize("observation", POLICIES)
def test_saved_and_loaded_it_goes_on_as_it_was(observation: str, tmp_path: Path) -> None:
    """By the safe loader; warnings, such as of parts that were left out, are errors here."""
    make = lambda: vec_env(observation=observation, action="multidiscrete")  # noqa: E731
    model = MaskableRecurrentSPPO(POLICIES[observation], make(), **SMALL, eta=0.5).learn(64)
    model.save(tmp_path / "model")
    loaded, trusted = (
        MaskableRecurrentSPPO.load(tmp_path / "model", env=make(), device="cpu", trust=trust)
        for trust in (False, True)
    )
    assert type(loaded.policy) is type(model.policy)
    assert type(loaded.rollout_buffer) is type(model.rollout_buffer)
    assert_same_weights(model, loaded)
    env = make()
    observations, masks = env.reset(), get_action_masks(env)
    actions = [each.predict(observations, deterministic=True, action_masks=masks) for each in (model, loaded)]
    assert np.array_equal(actions[0][0], actions[1][0])
    assert np.array_equal(actions[0][1], actions[1][1])
    for each in (loaded, trusted):
        each.set_random_seed(7)
        each.learn(64, reset_num_timesteps=False)
    assert_same_weights(loaded, trusted)


def test_checkpoints_are_exact(tmp_path: Path) -> None:
    """Between two rollouts in the middle of episodes, whose memory goes on."""
    make = lambda: vec_env(action="multidiscrete")  # noqa: E731
    model = MaskableRecurrentSPPO("MlpLstmPolicy", make(), **SMALL).learn(128)
    assert not model.rollout_buffer.episode_starts[-1].all()
    assert model.rollout_buffer.hidden_states_pi[-1].any()
    model.save_checkpoint(tmp_path / "here")
    model.learn(128, reset_num_timesteps=False)
    resumed = MaskableRecurrentSPPO.resume(tmp_path / "here", env=make()).learn(
        128, reset_num_timesteps=False
    )
    assert_same_weights(model, resumed)


def test_errors_say_what_to_write() -> None:
    messages = []
    for cls, policy in ((MaskableSPPO, "MlpPolicy"), (MaskableRecurrentSPPO, "MlpLstmPolicy")):
        model = cls(policy, "CartPole-v1", n_steps=8, batch_size=8, device="cpu")
        with pytest.raises(ValueError, match="ActionMasker") as caught:
            model.learn(8)
        messages.append(str(caught.value))
        model.learn(8, use_masking=False)
    assert messages[0] == messages[1]
    with pytest.raises(ValueError, match="ActionMasker"):
        evaluate_policy(model, gym.make("CartPole-v1"))
    with pytest.raises(ValueError, match="write RecurrentSPPO"):
        MaskableRecurrentSPPO("MlpLstmPolicy", "Pendulum-v1")
    with pytest.raises(ValueError, match=r"takes no masks: write one of MlpLstmPolicy"):
        MaskableRecurrentSPPO(RecurrentActorCriticPolicy, "CartPole-v1")
    with pytest.raises(ValueError, match="fast engine does not cover"):
        MaskableRecurrentSPPO("MlpLstmPolicy", ForbiddingEnv(), engine="fast", **SMALL).learn(32)
