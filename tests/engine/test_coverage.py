"""The fast engine stands in for nothing but what it knows: all else trains as the reference loop does."""

from __future__ import annotations

import re
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from sppo import SPPO, RecurrentSPPO
from sppo.surrogates import SPPO as SPPOSurrogate
from sppo.surrogates import Sample
from tests.engine.engine_models import flat, make_env, make_model

STEPS = 2 * 48


class OwnPolicy(ActorCriticPolicy):
    def forward(self, obs: Any, deterministic: bool = False) -> Any:
        return super().forward(obs, deterministic)


class OwnBuffer(RolloutBuffer):
    pass


class Stack(BaseFeaturesExtractor):
    """A stack of layers as a features extractor; its subclasses look the same on small inputs."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, 4)
        self.net = nn.Sequential(nn.Linear(5, 4), nn.Tanh())

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.net(observations)


class Clamping(Stack):
    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.net(observations.clamp(-1.5, 1.5))


class Detaching(Stack):
    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.net(observations).detach()


class Frozen(Stack):
    def forward(self, observations: th.Tensor) -> th.Tensor:
        with th.no_grad():
            return self.net(observations)


class Branching(Stack):
    def forward(self, observations: th.Tensor) -> th.Tensor:
        return 2 * self.net(observations) if observations.max() > 1.2 else self.net(observations)


class OwnEvaluation(SPPO):
    def _evaluate_actions(self, policy: Any, rollout_data: Any) -> Any:
        values, log_prob, entropy = super()._evaluate_actions(policy, rollout_data)
        return 0.5 * values, log_prob, entropy


class OwnPadding(SPPO):
    def _without_padding(self, rollout_data: Any) -> Any:
        return rollout_data._replace(advantages=2 * rollout_data.advantages + 1)


class OwnActions(SPPO):
    def _actions(self, rollout_data: Any) -> th.Tensor:
        return 0.5 * super()._actions(rollout_data)


@dataclass(frozen=True)
class Halved(SPPOSurrogate):
    """Inherits everything from a compiled surrogate but what it maximises."""

    name = "halved"

    def objective(self, sample: Sample) -> th.Tensor:
        return 0.5 * super().objective(sample)


@dataclass(frozen=True)
class Uncompiled(Halved):
    """Says itself that there are no numbers for compiled code."""

    name = "uncompiled"

    def compiled(self) -> None:
        return None


class UncompiledSurrogate(SPPO):
    def current_surrogate(self) -> Uncompiled:
        return Uncompiled(clip_range=0.2)


class OwnSurrogate(SPPO):
    def current_surrogate(self) -> Halved:
        return Halved(clip_range=0.2)


class Squashing(CombinedExtractor):
    """Has upstream's parts, and does more with them."""

    def forward(self, observations: Any) -> th.Tensor:
        return th.tanh(super().forward(observations))


class OwnDictBuffer(DictRolloutBuffer):
    pass


def extractor(cls: type[BaseFeaturesExtractor], **kwargs: Any) -> dict[str, Any]:
    return {"policy_kwargs": {"features_extractor_class": cls}, **kwargs}


MULTI = {"policy": "MultiInputPolicy", "observation": "dict"}


#: what is built -> what the message names
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "gsde": ({"use_sde": True}, "use_sde"),
    "activation": ({"policy_kwargs": {"activation_fn": nn.ELU}}, "ELU"),
    "optimizer": ({"policy_kwargs": {"optimizer_class": th.optim.RMSprop}}, "RMSprop"),
    "amsgrad": ({"policy_kwargs": {"optimizer_kwargs": {"amsgrad": True}}}, "amsgrad"),
    "policy": ({"policy": OwnPolicy}, "OwnPolicy"),
    "stack": (extractor(Stack), "Stack"),
    "clamp": (extractor(Clamping), "Clamping"),
    "detach": (extractor(Detaching), "Detaching"),
    "no_grad": (extractor(Frozen), "Frozen"),
    "branch": (extractor(Branching), "Branching"),
    "buffer": ({"rollout_buffer_class": OwnBuffer}, "OwnBuffer"),
    "image in a dictionary": ({**MULTI, "observation": "dict-image"}, "NatureCNN .*'seen'"),
    "extractor of a dictionary": (extractor(Squashing, **MULTI), "Squashing"),
    "buffer of dictionaries": ({**MULTI, "rollout_buffer_class": OwnDictBuffer}, "OwnDictBuffer"),
    "evaluation": ({"algorithm": OwnEvaluation}, "_evaluate_actions of OwnEvaluation"),
    "padding": ({"algorithm": OwnPadding}, "_without_padding of OwnPadding"),
    "actions": ({"algorithm": OwnActions}, "_actions of OwnActions"),
    "surrogate": ({"algorithm": OwnSurrogate}, "Halved"),
    "surrogate without numbers": ({"algorithm": UncompiledSurrogate}, "Uncompiled"),
}


def build(engine: str, observation: str = "vector", algorithm: type[SPPO] = SPPO, **kwargs: Any) -> SPPO:
    policy = kwargs.pop("policy", "MlpPolicy")
    settings = {"n_steps": 16, "batch_size": 16, "n_epochs": 3, "seed": 3, "device": "cpu", **kwargs}
    return algorithm(policy, make_env(observation), engine=engine, verbose=1, **settings)


def trained(engine: str, touch: Callable[[SPPO], None] | None = None, **kwargs: Any) -> SPPO:
    model = build(engine, **kwargs)
    if touch is not None:
        touch(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.learn(STEPS)


@pytest.mark.parametrize("case", CASES)
def test_what_the_user_wrote_is_what_is_trained(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bit for bit: with another optimizer or surrogate only the update falls back, so to rounding there.

    It is said once why: as a warning where the user's own code is the reason, at ``verbose=1`` elsewhere.
    """
    kwargs, reason = CASES[case]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        auto = build("auto", **kwargs).learn(STEPS)
    said = [line for line in capsys.readouterr().out.splitlines() if "reference engine" in line]
    said += [str(one.message) for one in caught if "reference engine" in str(one.message)]
    assert len(said) == 1
    assert re.search(reason, said[0])
    reference = trained("reference", **kwargs)
    tolerance = 1e-5 if case in ("optimizer", "amsgrad") or case.startswith("surrogate") else 0.0
    np.testing.assert_allclose(flat(auto.policy), flat(reference.policy), rtol=tolerance, atol=tolerance)
    assert auto.engine_in_use == "reference"
    assert auto.logger.name_to_value == {} or auto.logger.name_to_value["train/engine"] == "reference"


@pytest.mark.parametrize("case", CASES)
def test_fast_insists(case: str) -> None:
    kwargs, reason = CASES[case]
    with pytest.raises(ValueError, match=rf"does not cover .*{reason}.*engine='auto'"):
        build("fast", **kwargs).learn(48)


def _doubled_value(original: Callable[..., Any]) -> Callable[..., Any]:
    def evaluate_actions(self: Any, obs: Any, actions: Any) -> Any:
        values, log_prob, entropy = original(self, obs, actions)
        return 2 * values, log_prob, entropy

    return evaluate_actions


def patch_evaluation(model: SPPO) -> None:
    model.policy.evaluate_actions = types.MethodType(  # type: ignore[method-assign]
        _doubled_value(ActorCriticPolicy.evaluate_actions), model.policy
    )


def patch_forward(model: SPPO) -> None:
    forward = model.policy.forward
    model.policy.forward = lambda obs, deterministic=False: forward(obs, True)  # type: ignore[method-assign]


def patch_layer(model: SPPO) -> None:
    layer = model.policy.action_net
    layer.forward = lambda x: 0.5 * nn.Linear.forward(layer, x)


def patch_distribution(model: SPPO) -> None:
    distribution = model.policy.action_dist
    entropy = type(distribution).entropy
    distribution.entropy = lambda: 2 * entropy(distribution)  # type: ignore[method-assign]


def patch_buffer(model: SPPO) -> None:
    buffer = model.rollout_buffer
    add = buffer.add
    buffer.add = lambda obs, action, reward, *rest: add(obs, action, 2 * reward, *rest)  # type: ignore[method-assign]


def patch_method(model: SPPO) -> None:
    evaluate = SPPO._evaluate_actions
    model._evaluate_actions = lambda *args: evaluate(model, *args)  # type: ignore[method-assign]


def patch_optimizer(model: SPPO) -> None:
    step = model.policy.optimizer.step
    model.policy.optimizer.step = lambda closure=None: None  # type: ignore[method-assign]
    assert step is not None


def add_scheduler(model: SPPO) -> None:
    th.optim.lr_scheduler.ExponentialLR(model.policy.optimizer, 0.5)


def hook_layer(model: SPPO) -> None:
    model.policy.value_net.register_forward_hook(lambda module, inputs, output: 0.5 * output)


def hook_gradient(model: SPPO) -> None:
    model.policy.log_std.register_hook(lambda gradient: 0 * gradient)


def hook_optimizer(model: SPPO) -> None:
    model.policy.optimizer.register_step_pre_hook(
        lambda optimizer, *_: optimizer.param_groups[0]["params"][0].grad.zero_()[:0].numel() or None
    )


def patch_part(model: SPPO) -> None:
    part = model.policy.features_extractor.extractors["place"]
    part.forward = lambda x: 0.5 * nn.Flatten.forward(part, x)


def replace_part(model: SPPO) -> None:
    model.policy.features_extractor.extractors["place"] = nn.Sequential(nn.Flatten(), nn.Tanh())


def freeze(model: SPPO) -> None:
    model.policy.log_std.requires_grad_(False)


PATCHES = (
    *(patch_evaluation, patch_forward, patch_layer, patch_distribution, patch_buffer, patch_method),
    *(patch_optimizer, add_scheduler, hook_layer, hook_gradient, hook_optimizer, freeze),
)


@pytest.mark.parametrize("touch", PATCHES, ids=lambda touch: touch.__name__)
def test_what_is_patched_or_hooked_takes_effect(touch: Callable[[SPPO], None]) -> None:
    """On the model's own objects, after it was made."""
    auto, reference = (trained(engine, touch, ent_coef=0.01) for engine in ("auto", "reference"))
    np.testing.assert_allclose(flat(auto.policy), flat(reference.policy), rtol=1e-5, atol=1e-6)
    assert auto.engine_in_use == "reference"


@pytest.mark.parametrize("touch", [patch_part, replace_part], ids=lambda touch: touch.__name__)
def test_what_reads_a_part_of_a_dictionary_takes_effect(touch: Callable[[SPPO], None]) -> None:
    auto, reference = (trained(engine, touch, **MULTI) for engine in ("auto", "reference"))
    np.testing.assert_array_equal(flat(auto.policy), flat(reference.policy))
    assert auto.engine_in_use == "reference"
    assert not np.array_equal(flat(auto.policy), flat(trained("reference", **MULTI).policy))


def test_what_is_patched_on_upstreams_class_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    patched = _doubled_value(ActorCriticPolicy.evaluate_actions)
    monkeypatch.setattr(ActorCriticPolicy, "evaluate_actions", patched)
    auto, reference = trained("auto"), trained("reference")
    np.testing.assert_array_equal(flat(auto.policy), flat(reference.policy))
    assert auto.engine_in_use == "reference"


@pytest.mark.parametrize("where", ["instance", "class"])
def test_a_patched_normalisation_takes_effect(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the collection stays compiled."""
    normalize_obs = VecNormalize.normalize_obs

    def halved(self: VecNormalize, obs: Any) -> Any:
        return 0.5 * normalize_obs(self, obs)

    trained_weights = []
    for engine in ("auto", "reference"):
        env = VecNormalize(make_env())
        if where == "class":
            monkeypatch.setattr(VecNormalize, "normalize_obs", halved)
        else:
            env.normalize_obs = types.MethodType(halved, env)  # type: ignore[method-assign]
        model = SPPO(
            "MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=3, seed=3, device="cpu", engine=engine
        )
        trained_weights.append(flat(model.learn(STEPS).policy))
    np.testing.assert_allclose(*trained_weights, rtol=1e-3, atol=1e-4)


def test_recurrent_policies_fall_back_without_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    model = RecurrentSPPO("MlpLstmPolicy", make_env(), n_steps=16, batch_size=16, device="cpu", verbose=1)
    model.learn(48)
    assert "RecurrentActorCriticPolicy" in capsys.readouterr().out


def test_layers_that_share_parameters_fall_back() -> None:
    def tie(model: SPPO) -> None:
        model.policy.mlp_extractor.value_net[2] = model.policy.mlp_extractor.policy_net[2]
        model.policy.optimizer = th.optim.Adam(model.policy.parameters(), lr=1e-3)

    assert trained("auto", tie).engine_in_use == "reference"


def test_parameters_that_took_different_numbers_of_steps_fall_back() -> None:
    """As after freezing and unfreezing a layer, or a Ctrl-C in the middle of PyTorch's own step."""
    model = build("auto").learn(48)
    assert model.engine_in_use == "fast"
    model.policy.optimizer.state[model.policy.log_std]["step"] -= 1
    model.learn(48, reset_num_timesteps=False)
    assert model.engine_in_use == "reference"


def test_a_numba_that_may_not_compile_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.DISABLE_JIT", True)
    assert make_model().learn(144).engine_in_use == "reference"


def test_unknown_engine() -> None:
    with pytest.raises(ValueError, match="'quick' is none of auto, reference, fast"):
        make_model(engine="quick")


@pytest.mark.parametrize(("observation", "masked"), [("vector", False), ("dict", False), ("dict", True)])
def test_auto_is_fast_where_it_applies_and_the_log_says_so(observation: str, masked: bool) -> None:
    model = make_model(observation, "discrete", masked=masked, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(144)
    assert model.engine_in_use == "fast"
    model.train()
    assert model.logger.name_to_value["train/engine"] == "fast"
