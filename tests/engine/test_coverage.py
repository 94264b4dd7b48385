"""What the fast engine does not cover falls back to the reference loop, or says why it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from sppo import SPPO, RecurrentSPPO
from sppo.engine.layout import Unsupported, describe
from tests.engine.engine_models import make_env, make_model


class OwnPolicy(ActorCriticPolicy):
    def forward(self, obs: Any, deterministic: bool = False) -> Any:
        return super().forward(obs, deterministic)


class OwnBuffer(RolloutBuffer):
    pass


class Doubling(BaseFeaturesExtractor):
    """Looks like a stack of layers, but computes something else."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, 4)
        self.net = nn.Sequential(nn.Linear(5, 4), nn.Tanh())

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return 2 * self.net(observations)


class OwnLoss(SPPO):
    def _loss(self, *args: Any) -> Any:
        return super()._loss(*args)


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "gsde": ({"use_sde": True}, "use_sde"),
    "activation": ({"policy_kwargs": {"activation_fn": nn.ELU}}, "ELU"),
    "optimizer": ({"policy_kwargs": {"optimizer_class": th.optim.RMSprop}}, "RMSprop"),
    "amsgrad": ({"policy_kwargs": {"optimizer_kwargs": {"amsgrad": True}}}, "amsgrad"),
    "policy": ({"policy": OwnPolicy}, "OwnPolicy"),
    "extractor": ({"policy_kwargs": {"features_extractor_class": Doubling}}, "Doubling"),
    "buffer": ({"rollout_buffer_class": OwnBuffer}, "OwnBuffer"),
    "dict": ({"policy": "MultiInputPolicy", "observation": "dict"}, "MultiInputActorCriticPolicy"),
}


def build(engine: str, **kwargs: Any) -> SPPO:
    env = make_env(kwargs.pop("observation", "vector"))
    policy = kwargs.pop("policy", "MlpPolicy")
    return SPPO(policy, env, n_steps=16, batch_size=16, device="cpu", verbose=1, engine=engine, **kwargs)


@pytest.mark.parametrize("case", CASES)
def test_auto_falls_back_and_says_so_once(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    kwargs, reason = CASES[case]
    model = build("auto", **kwargs).learn(4 * 48)
    said = [line for line in capsys.readouterr().out.splitlines() if "reference engine" in line]
    assert len(said) == 1
    assert reason in said[0]
    assert model._n_updates == 40


@pytest.mark.parametrize("case", CASES)
def test_fast_insists(case: str) -> None:
    kwargs, reason = CASES[case]
    with pytest.raises(ValueError, match=rf"does not cover .*{reason}.*engine='auto'"):
        build("fast", **kwargs).learn(48)


def test_own_loss_and_recurrent_policies_fall_back(capsys: pytest.CaptureFixture[str]) -> None:
    OwnLoss("MlpPolicy", make_env(), n_steps=16, batch_size=16, device="cpu", verbose=1).learn(48)
    assert "the method _loss of OwnLoss" in capsys.readouterr().out
    RecurrentSPPO("MlpLstmPolicy", make_env(), n_steps=16, batch_size=16, device="cpu", verbose=1).learn(48)
    assert "RecurrentActorCriticPolicy" in capsys.readouterr().out


def test_frozen_hooked_and_tied_parameters_are_noticed() -> None:
    policy = make_model().policy
    describe(policy)
    policy.log_std.requires_grad_(False)
    with pytest.raises(Unsupported, match="frozen"):
        describe(policy)
    policy.log_std.requires_grad_(True)
    handle = policy.action_net.register_forward_hook(lambda *_: None)
    with pytest.raises(Unsupported, match="hooks"):
        describe(policy)
    handle.remove()
    policy.mlp_extractor.value_net[2] = policy.mlp_extractor.policy_net[2]
    with pytest.raises(Unsupported, match="share"):
        describe(policy)


def test_a_numba_that_may_not_compile_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.DISABLE_JIT", True)
    assert make_model()._fast_engine(None) is None


def test_unknown_engine() -> None:
    with pytest.raises(ValueError, match='engine="reference"'):
        make_model(engine="quick")


def test_reference_needs_no_compiled_code() -> None:
    model = make_model(engine="reference").learn(144)
    assert model._fast is None


def test_auto_is_fast_where_it_applies() -> None:
    model = make_model(verbose=0).learn(144)
    assert model.engine == "auto"
    assert model._fast is not None
    assert model._fast._memory is not None
    assert np.shares_memory(model._fast._memory.parameters, model.policy.value_net.weight.detach().numpy())
