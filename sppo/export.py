"""The policy to take away: a trained model as one ONNX file, which runs without Python.

The graph holds all that ``model.predict(observation, deterministic=True)`` does, and the normalisation of
observations before it. ``python -m sppo export model.zip policy.onnx`` does the same for files.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import logging
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypedDict

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from sppo import SPPO, MaskableRecurrentSPPO, MaskableSPPO, RecurrentSPPO, __version__
from sppo.loading.errors import refused
from sppo.loading.model_file import read_model_file, settable
from sppo.loading.normalization import Normalization, parts_of, statistics_of
from sppo.loading.restore import read_bytes, read_vec_normalize

Tensors = dict[str, th.Tensor]
Normalizer = Callable[[th.Tensor], th.Tensor]


class Entry(TypedDict):
    """Of an input or an output; the batch's size is called ``"batch"``."""

    shape: list[int | str]
    dtype: str


#: ``inputs`` or ``outputs`` -> name -> its shape and type
Signature = dict[str, dict[str, Entry]]
_STATES = [f"{name}_{part}" for name in ("lstm", "lstm_critic") for part in ("hidden", "cell")]
#: What else is called something in the graph.
_TAKEN = {"action", "action_masks", "episode_start", "value", "mean", "std", "logits", *_STATES}
_TAKEN |= {f"next_{name}" for name in _STATES}


def export_onnx(
    model: OnPolicyAlgorithm,
    path: str | pathlib.Path,
    vec_normalize: VecNormalize | str | pathlib.Path | Literal[False] | None = None,
    *,
    value: bool = False,
    distribution: bool = False,
) -> Signature:
    """Write the policy as an ONNX file whose ``action`` is ``model.predict(..., deterministic=True)``.

    Inputs are batches of any size: ``observation``, or the keys of a dictionary, in float32 or the space's
    integers, images with channels first; ``action_masks`` of maskable policies; of recurrent ones
    ``episode_start``, ``lstm_hidden`` and ``lstm_cell``, which the outputs ``next_lstm_hidden`` and
    ``next_lstm_cell`` are for the next step.

    :param model: an algorithm with an actor and a critic: SPPO and its relatives, PPO
    :param path: the file to write
    :param vec_normalize: statistics to normalise observations with, inside the graph: a ``VecNormalize``, or
        the file that its ``save`` wrote; ``None`` takes those of the model's environment, or of its file,
        ``False`` none
    :param value: also give the critic's ``value``, in units of the rewards that it was trained with
    :param distribution: also give the distribution of actions: ``mean`` and ``std`` (before the limits of
        actions), or ``logits``
    :return: shapes and types of ``inputs`` and ``outputs`` by name; the file's metadata has the same, as JSON
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError('the export needs onnx and onnxscript: pip install ".[onnx]"') from error
    graph = _Graph(model, _normalizers(model, vec_normalize), value, distribution)
    with _exportable():
        inputs = graph.examples()
        outputs = graph(inputs)
        program = th.onnx.export(
            graph,
            kwargs={"inputs": inputs},
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes={"inputs": {name: {_batch_axis(name): "batch"} for name in inputs}},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    signature = {"inputs": _described(inputs), "outputs": _described(outputs)}
    texts = {"observation_space": str(model.observation_space), "action_space": str(model.action_space)}
    texts |= {kind: json.dumps(table) for kind, table in signature.items()}
    program.model.metadata_props.update({"sppo": __version__, **texts})
    program.save(str(path), external_data=False)
    return signature


class _Graph(th.nn.Module):
    """What is exported: named tensors to named tensors."""

    policy: Any

    def __init__(
        self, model: OnPolicyAlgorithm, normalizers: dict[str, Normalizer], value: bool, distribution: bool
    ) -> None:
        super().__init__()
        # Shallow: the weights are the model's own, what tracing leaves behind is not.
        self.policy = copy.copy(model.policy)
        self.policy.action_dist = copy.copy(model.policy.action_dist)
        self.normalizers, self.value, self.distribution = normalizers, value, distribution
        space = model.action_space
        ends = (space.low, space.high) if isinstance(space, spaces.Box) else ()
        self.bounds = [th.as_tensor(end, dtype=th.float32, device=model.device) for end in ends]
        taken = inspect.signature(self.policy._predict).parameters
        self.recurrent, self.maskable = "lstm_states" in taken, "action_masks" in taken
        #: the LSTM's name in the policy -> its states' names in the graph
        self.memories = {"lstm_actor": ("lstm_hidden", "lstm_cell")} if self.recurrent else {}
        if self.recurrent and value and self.policy.lstm_critic is not None:
            self.memories["lstm_critic"] = ("lstm_critic_hidden", "lstm_critic_cell")
        self.eval()

    def examples(self) -> Tensors:
        """Inputs for a batch of three."""
        found = {}
        for key, space in parts_of(self.policy.observation_space).items():
            real = key in self.normalizers or np.issubdtype(space.dtype, np.floating)
            shape, dtype = (3, *(space.shape or ())), np.float32 if real else space.dtype
            found[_name(key)] = th.as_tensor(np.zeros(shape, dtype))
        if self.maskable:
            space = self.policy.action_space
            width = spaces.flatdim(space) * (2 if isinstance(space, spaces.MultiBinary) else 1)
            found["action_masks"] = th.ones((3, width), dtype=th.bool)
        if self.recurrent:
            found["episode_start"] = th.zeros(3, dtype=th.bool)
            layers, _, width = self.policy.lstm_hidden_state_shape
            names = [name for pair in self.memories.values() for name in pair]
            found |= {name: th.zeros((layers, 3, width)) for name in names}
        return {name: tensor.to(self.policy.device) for name, tensor in found.items()}

    def forward(self, inputs: Tensors) -> Tensors:
        parts = {key: inputs[_name(key)] for key in parts_of(self.policy.observation_space)}
        parts |= {key: normalize(parts[key]) for key, normalize in self.normalizers.items()}
        observation = parts if isinstance(self.policy.observation_space, spaces.Dict) else parts[""]
        # In the order in which the LSTMs run: while it traces, torch.export gives a module another identity
        # each time it is looked up.
        after: list[tuple[th.Tensor, ...]] = []

        def one_step(features: th.Tensor, states: tuple, starts: th.Tensor, lstm: th.nn.LSTM) -> tuple:
            hidden, cell = (state * (1 - starts).view(1, -1, 1) for state in states)
            layers = []
            for layer, weights in enumerate(lstm.all_weights):
                layers.append(th.lstm_cell(features, (hidden[layer], cell[layer]), *weights))
                features = layers[-1][0]
            after.append(tuple(th.stack(parts) for parts in zip(*layers, strict=True)))
            return features, after[-1]

        memory, masks = {}, {}
        if self.maskable:
            masks = {"action_masks": inputs["action_masks"]}
        if self.recurrent:
            # The policy's own branches on whether an episode starts, which a graph cannot.
            self.policy._process_sequence = one_step
            states = {lstm: tuple(inputs[name] for name in pair) for lstm, pair in self.memories.items()}
            memory = {"lstm_states": states["lstm_actor"], "episode_starts": inputs["episode_start"].float()}
        action = self.policy._predict(observation, deterministic=True, **memory, **masks)
        outputs = {"action": self._limited(action[0] if self.recurrent else action)}
        if self.distribution:
            outputs |= _parameters(self.policy.action_dist)
        if self.value:
            if "lstm_critic" in self.memories:
                memory["lstm_states"] = states["lstm_critic"]
            outputs["value"] = self.policy.predict_values(observation, **memory).flatten()
        # The actor's LSTM runs a second time if the critic shares it.
        for pair, next_states in zip(self.memories.values(), after, strict=False):
            outputs |= {f"next_{name}": state for name, state in zip(pair, next_states, strict=True)}
        return outputs

    def _limited(self, action: th.Tensor) -> th.Tensor:
        """The action as ``predict`` returns it."""
        action = action.reshape(-1, *self.policy.action_space.shape)
        if not self.bounds:
            return action
        low, high = self.bounds
        if self.policy.squash_output:
            return low + 0.5 * (action + 1) * (high - low)
        return th.clamp(action, low, high)


def _normalizer(
    statistics: RunningMeanStd, env: VecNormalize | Normalization, device: th.device
) -> Normalizer:
    """VecNormalize's formula. The mean is in two parts: as exact in float32 as there in float64."""
    exact, deviation = th.as_tensor(statistics.mean), th.as_tensor(np.sqrt(statistics.var + env.epsilon))
    parts = exact.float(), exact - exact.float(), deviation
    mean, rest, std = (part.to(device, th.float32) for part in parts)
    clip = float(env.clip_obs)
    return lambda observation: th.clamp((observation - mean - rest) / std, -clip, clip)


def _normalizers(
    model: OnPolicyAlgorithm, source: VecNormalize | str | pathlib.Path | Literal[False] | None
) -> dict[str, Normalizer]:
    """How to normalise, by the observation's key."""
    statistics: VecNormalize | Normalization | None = source if isinstance(source, VecNormalize) else None
    if isinstance(source, (str, pathlib.Path)):
        statistics = read_vec_normalize(*read_bytes(source, "pkl"))
    elif source is None:
        statistics = model.get_vec_normalize_env() or getattr(model, "normalization", None)
        if statistics is None and model._last_original_obs is not None:
            warnings.warn(
                "the model was trained under VecNormalize: without its statistics the exported policy takes "
                "observations that are normalised already. Give them with vec_normalize=..., or on the "
                "command line with --vecnormalize FILE",
                stacklevel=3,
            )
    elif statistics is None and source is not False:
        raise TypeError(f"vec_normalize must be a VecNormalize, its file, None or False, not {source!r}")
    if statistics is None:
        return {}
    found = statistics.observations if isinstance(statistics, Normalization) else statistics_of(statistics)
    shapes = {key: space.shape for key, space in parts_of(model.observation_space).items()}
    for key, part in found.items():
        if shapes.get(key) != np.shape(part.mean):
            raise ValueError(
                f"the statistics are of other observations: {_name(key)} has the shape {np.shape(part.mean)} "
                f"there, and the policy takes {model.observation_space}"
            )
    return {key: _normalizer(part, statistics, model.device) for key, part in found.items()}


def _name(key: str) -> str:
    """Of an observation in the graph: its key, unless it has none or something else is called so."""
    return f"observation.{key}" if key in _TAKEN else key or "observation"


def _parameters(distribution: Distribution) -> Tensors:
    inner: Any = getattr(distribution, "distributions", distribution.distribution)
    if isinstance(inner, th.distributions.Normal):
        return {"mean": inner.mean, "std": inner.stddev}
    groups = inner if isinstance(inner, list) else [inner]
    return {"logits": th.cat([group.logits for group in groups], dim=1)}


def _batch_axis(name: str) -> int:
    return 1 if name in _TAKEN and "lstm" in name else 0


def _described(tensors: Tensors) -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for name, tensor in tensors.items():
        shape: list[int | str] = list(tensor.shape)
        shape[_batch_axis(name)] = "batch"
        table[name] = {"shape": shape, "dtype": str(tensor.dtype).removeprefix("torch.")}
    return table


@contextmanager
def _exportable() -> Iterator[None]:
    """Without checks of values, which a graph cannot hold, and the exporter's notes to its developers."""
    checks, logger = th.distributions.Distribution._validate_args, logging.getLogger("torch.onnx")
    level = logger.level
    try:
        th.distributions.Distribution.set_default_validate_args(False)
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), th.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        th.distributions.Distribution.set_default_validate_args(checks)
        logger.setLevel(level)


def main(argv: Sequence[str] | None = None) -> int:
    """Export a model's file; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sppo export",
        description="Write a model's policy as an ONNX file: deterministic actions, normalisation and limits "
        "inside. Nothing in the model's file is run.",
    )
    parser.add_argument("model", type=pathlib.Path, help="what model.save wrote")
    parser.add_argument("onnx", type=pathlib.Path, help="the file to write")
    parser.add_argument("--vecnormalize", metavar="FILE", help="what VecNormalize.save wrote")
    parser.add_argument("--value", action="store_true", help="also give the critic's value")
    parser.add_argument("--distribution", action="store_true", help="also give mean and std, or logits")
    args = parser.parse_args(argv)
    options = {"value": args.value, "distribution": args.distribution}
    try:
        signature = export_onnx(_load(args.model), args.onnx, args.vecnormalize, **options)
    except (OSError, ImportError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for kind, table in signature.items():
        for name, entry in table.items():
            print(f"{kind[:-1]:<7} {name:<24} {entry['dtype']:<8} {entry['shape']}")
    return 0


def _load(path: pathlib.Path) -> OnPolicyAlgorithm:
    """The model in a file, of the class that its policy belongs to."""
    classes = (MaskableRecurrentSPPO, RecurrentSPPO, MaskableSPPO, SPPO)
    with refused(str(path)):
        policy = read_model_file(read_bytes(path, "zip")[0], settable(*classes), {}).data.get("policy_class")
    for cls in classes:
        if isinstance(policy, type) and issubclass(policy, next(iter(cls.policy_aliases.values()))):
            return cls.load(path, device="cpu")
    return SPPO.load(path, device="cpu")
