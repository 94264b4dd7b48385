"""Policies and rollout buffers with action masks and LSTM states: sb3-contrib has each without the other."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from sb3_contrib.common.recurrent.type_aliases import RecurrentRolloutBufferSamples
from stable_baselines3.common.distributions import BernoulliDistribution, Distribution

from sppo.loading.allowlist import admit

#: the logit of a forbidden action, as in sb3-contrib: its probability is zero, and nothing becomes infinite
FORBIDDEN = -1e8

Masks = np.ndarray | th.Tensor


@admit
class MaskableRecurrentActorCriticPolicy(RecurrentActorCriticPolicy):
    """sb3-contrib's recurrent policy, with masks.

    They are true where an action is allowed, as for :class:`sb3_contrib.MaskablePPO`, and are applied to the
    logits before a distribution is made, so that masks which allow everything change no bit. ``predict``
    takes them as a parameter; the other methods are called within :meth:`masked`.
    """

    _masks: Masks | None = None

    @contextmanager
    def masked(self, action_masks: Masks | None) -> Iterator[None]:
        """Apply masks to every distribution that is made inside."""
        before, self._masks = self._masks, action_masks
        try:
            yield
        finally:
            self._masks = before

    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Distribution:
        logits = self.action_net(latent_pi)
        if self._masks is not None:
            allowed = th.as_tensor(self._masks, dtype=th.bool, device=logits.device)
            if isinstance(self.action_dist, BernoulliDistribution):
                # One logit for two outcomes: 0 and 1.
                zero, one = allowed.reshape(*logits.shape, 2).unbind(-1)
                logits = th.where(zero, th.where(one, logits, FORBIDDEN), -FORBIDDEN)
            else:
                logits = th.where(allowed.reshape(logits.shape), logits, FORBIDDEN)
        return self.action_dist.proba_distribution(action_logits=logits)

    def _predict(  # type: ignore[override]
        self,
        observation: th.Tensor,
        lstm_states: tuple[th.Tensor, th.Tensor],
        episode_starts: th.Tensor,
        deterministic: bool = False,
        action_masks: Masks | None = None,
    ) -> tuple[th.Tensor, tuple[th.Tensor, ...]]:
        with self.masked(self._masks if action_masks is None else action_masks):
            return super()._predict(observation, lstm_states, episode_starts, deterministic)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: Masks | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        if state is None and episode_start is not None and not np.all(episode_start):
            raise ValueError(
                "predict() without a state in the middle of an episode: pass on the one that it returned. "
                "(sb3-contrib's evaluate_policy and MaskableEvalCallback do not: write evaluate_policy and "
                "MaskableRecurrentEvalCallback of sppo.algorithms.maskable_recurrent)"
            )
        with self.masked(action_masks):
            return super().predict(observation, state, episode_start, deterministic)


@admit
class MaskableRecurrentActorCriticCnnPolicy(
    MaskableRecurrentActorCriticPolicy, RecurrentActorCriticCnnPolicy
):
    """The same for images."""


@admit
class MaskableRecurrentMultiInputActorCriticPolicy(
    MaskableRecurrentActorCriticPolicy, RecurrentMultiInputActorCriticPolicy
):
    """The same for dictionaries."""


#: sequences padded to one length; padding allows every action
MaskableRecurrentSamples = namedtuple(  # type: ignore[misc]
    "MaskableRecurrentSamples", (*RecurrentRolloutBufferSamples._fields, "action_masks")
)


class _Minibatches:
    """Mix-in for a recurrent buffer: minibatches with the masks of their transitions."""

    action_masks: np.ndarray

    def _get_samples(self: Any, batch_inds: np.ndarray, *args: Any) -> MaskableRecurrentSamples:
        samples = super()._get_samples(batch_inds, *args)  # type: ignore[misc]
        if self.action_masks.ndim == 3:
            self.action_masks = self.swap_and_flatten(self.action_masks)
        masks = self.pad(self.action_masks[batch_inds], padding_value=1.0).flatten(0, 1)
        return MaskableRecurrentSamples(*samples, masks)  # type: ignore[call-arg]


class MaskableRecurrentRolloutBuffer(_Minibatches, RecurrentRolloutBuffer, MaskableRolloutBuffer):  # type: ignore[misc]
    """A rollout with masks and LSTM states."""


class MaskableRecurrentDictRolloutBuffer(  # type: ignore[misc]
    _Minibatches, RecurrentDictRolloutBuffer, MaskableDictRolloutBuffer
):
    """The same for dictionaries."""
