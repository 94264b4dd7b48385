"""MaskableRecurrentSPPO: masks and an LSTM together, with the surrogates of functional mirror ascent."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

import numpy.typing as npt
import torch as th
from gymnasium import spaces
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy as evaluate_unmasked
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from sppo.algorithms.maskable import mask_source
from sppo.algorithms.maskable_lstm import (
    MaskableRecurrentActorCriticCnnPolicy,
    MaskableRecurrentActorCriticPolicy,
    MaskableRecurrentDictRolloutBuffer,
    MaskableRecurrentMultiInputActorCriticPolicy,
    MaskableRecurrentRolloutBuffer,
)
from sppo.algorithms.recurrent import RecurrentSPPO
from sppo.algorithms.surrogate_algorithm import Minibatch
from sppo.envs.group import timed_out


class MaskableRecurrentPPO(RecurrentPPO):
    """RecurrentPPO that collects with masks; :class:`MaskableRecurrentSPPO` trains it."""

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": MaskableRecurrentActorCriticPolicy,
        "CnnLstmPolicy": MaskableRecurrentActorCriticCnnPolicy,
        "MultiInputLstmPolicy": MaskableRecurrentMultiInputActorCriticPolicy,
    }
    _last_obs: Any
    _last_lstm_states: Any
    learn: Any = MaskablePPO.learn
    predict: Any = MaskablePPO.predict

    def _setup_model(self) -> None:
        if isinstance(self.action_space, spaces.Box):
            raise ValueError("masks forbid discrete actions: for a Box of them write RecurrentSPPO")
        if not issubclass(self.policy_class, MaskableRecurrentActorCriticPolicy):
            raise ValueError(
                f"the policy {self.policy_class.__name__} takes no masks: write one of "
                f"{', '.join(self.policy_aliases)}, or derive yours from "
                f"{MaskableRecurrentActorCriticPolicy.__module__}.{MaskableRecurrentActorCriticPolicy.__name__}"
            )
        super()._setup_model()
        in_dicts = isinstance(self.observation_space, spaces.Dict)
        buffer_class = MaskableRecurrentDictRolloutBuffer if in_dicts else MaskableRecurrentRolloutBuffer
        self.rollout_buffer = buffer_class(
            self.n_steps,
            self.observation_space,
            self.action_space,
            self.rollout_buffer.hidden_state_shape,  # type: ignore[attr-defined]
            self.device,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            n_envs=self.n_envs,
        )

    def collect_rollouts(  # type: ignore[override]
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: MaskableRecurrentRolloutBuffer,
        n_rollout_steps: int,
        use_masking: bool = True,
    ) -> bool:
        """RecurrentPPO's, with masks from the environments."""
        masks_of = mask_source(env, use_masking)
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        lstm_states = deepcopy(self._last_lstm_states)
        for _ in range(n_rollout_steps):
            action_masks = None if masks_of is None else masks_of(env)
            with th.no_grad(), self.policy.masked(action_masks):  # type: ignore[operator]
                obs_tensor = obs_as_tensor(self._last_obs, self.device)
                episode_starts = th.tensor(self._last_episode_starts, dtype=th.float32, device=self.device)
                actions, values, log_probs, lstm_states = self.policy(obs_tensor, lstm_states, episode_starts)
            actions = actions.cpu().numpy()
            new_obs, rewards, dones, infos = env.step(actions)
            self.num_timesteps += env.num_envs

            callback.update_locals(locals())
            if not callback.on_step():
                return False

            self._update_info_buffer(infos, dones)
            if isinstance(self.action_space, spaces.Discrete):
                actions = actions.reshape(-1, 1)
            for idx, seen in timed_out(dones, infos):
                memory = tuple(part[:, idx : idx + 1].contiguous() for part in lstm_states.vf)
                value = self._value(self.policy.obs_to_tensor(seen)[0], memory, [False])[0]
                rewards[idx] += self.gamma * value
            rollout_buffer.add(
                *(self._last_obs, actions, rewards, self._last_episode_starts, values, log_probs),
                lstm_states=self._last_lstm_states,
                action_masks=action_masks,
            )
            self._last_obs, self._last_episode_starts, self._last_lstm_states = new_obs, dones, lstm_states
        values = self._value(obs_as_tensor(self._last_obs, self.device), lstm_states.vf, dones)
        rollout_buffer.compute_returns_and_advantage(last_values=values, dones=dones)
        callback.on_rollout_end()
        return True

    @th.no_grad()
    def _value(self, seen: PyTorchObs, memory: tuple[th.Tensor, ...], begins: npt.ArrayLike) -> th.Tensor:
        starts = th.tensor(begins, dtype=th.float32, device=self.device)
        return self.policy.predict_values(seen, memory, starts)  # type: ignore[call-arg]


class MaskableRecurrentSPPO(RecurrentSPPO, MaskableRecurrentPPO):
    """sPPO and its relatives for LSTM policies in environments that forbid actions.

    :class:`sppo.RecurrentSPPO`'s parameters and policies (``MlpLstmPolicy``, ``CnnLstmPolicy``,
    ``MultiInputLstmPolicy``), and :class:`sb3_contrib.MaskablePPO`'s masks: ``learn`` asks the environments'
    ``action_masks()`` unless ``use_masking=False``, and ``predict`` takes ``action_masks``, beside the state
    that it returned last::

        action, state = model.predict(obs, state, episode_start, action_masks=get_action_masks(env))

    With masks that allow everything the trained weights equal RecurrentSPPO's bit for bit. To evaluate, use
    :func:`evaluate_policy` and :class:`MaskableRecurrentEvalCallback` of this module: sb3-contrib's forget
    the state.
    """

    run_prefix = "MaskableRecurrent"

    def _evaluate_actions(
        self, policy: Any, rollout_data: Minibatch
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        with policy.masked(rollout_data.action_masks):
            return super()._evaluate_actions(policy, rollout_data)


class _Masked:
    """A model whose ``predict`` asks an environment for the masks."""

    def __init__(self, model: Any, env: GymEnv) -> None:
        self._model, self._env = model, env

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        return self._model.predict(*args, **kwargs, action_masks=get_action_masks(self._env))

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)


def evaluate_policy(
    model: MaskableRecurrentSPPO, env: GymEnv, *args: Any, **kwargs: Any
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """Stable-Baselines3's ``evaluate_policy``, with its parameters, under the environment's masks."""
    mask_source(env)
    return evaluate_unmasked(_Masked(model, env), env, *args, **kwargs)


class MaskableRecurrentEvalCallback(EvalCallback):
    """Stable-Baselines3's ``EvalCallback``, with its parameters, under the environment's masks."""

    def _on_step(self) -> bool:
        model = self.model
        self.model = _Masked(model, self.eval_env)  # type: ignore[assignment]
        try:
            return super()._on_step()
        finally:
            self.model = model
