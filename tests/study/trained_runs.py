"""Small runs, attempts at them that are killed, and what two runs must have in common to be the same."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch as th

from sppo.records.config import RunConfig
from sppo.records.parameters import NORMALIZE, algorithm_settings, defaults
from sppo.study.execution import Options, Outcome, execute
from sppo.study.local import PRELOAD

#: Tags that tell the time, and therefore differ between any two runs.
CLOCKS = {"time/fps", "time/time_elapsed"}


#: both update loops
ENGINES = ("reference", "fast")


SMALL = {"n_steps": 32, "batch_size": 32, "n_epochs": 2}


def small_config(env: str = "CartPole-v1", seed: int = 1, steps: int = 1280, **parameters: Any) -> RunConfig:
    """A run of a second: twenty iterations with two environments."""
    parameters = {key: value for key, value in parameters.items() if value is not None}
    return RunConfig(
        env=env,
        algorithm="sppo",
        seed=seed,
        total_timesteps=steps,
        n_envs=2,
        evaluations=4,
        eval_episodes=2,
        normalize=defaults(NORMALIZE),
        parameters={
            **defaults(algorithm_settings("sppo")),
            "n_steps": 32,
            "batch_size": 32,
            "n_epochs": 2,
            **parameters,
        },
    )


def attempt(config: dict[str, Any], directory: str, every: int, sabotage: Callable[[], None] | None) -> None:
    """Target of a process: train, after preparing a mishap."""
    if sabotage is not None:
        sabotage()
    outcome = execute(RunConfig.from_dict(config), directory, Options(checkpoint_every=every))
    if outcome.status != "completed":
        raise RuntimeError(outcome.message)


def start(
    config: RunConfig, directory: Path, every: int = 1, sabotage: Callable[[], None] | None = None
) -> Any:
    """Begin an attempt in a process of its own, with everything imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    process = context.Process(target=attempt, args=(config.as_dict(), str(directory), every, sabotage))
    process.start()
    return process


def complete(config: RunConfig, directory: Path, every: int = 3) -> Outcome:
    """Train in this process, to the end."""
    return execute(config, directory, Options(checkpoint_every=every))


class KillAtCall:
    """Kills the process at the n-th checkpoint it writes: half-way (``open``), before it is flushed
    (``fsync``), or before it gets its name (``replace``).
    """

    def __init__(self, moment: str, number: int) -> None:
        self.moment = moment
        self.number = number

    def __call__(self) -> None:
        from sppo.checkpoint import files

        written = 0
        original_open = open

        def counting_open(path: Any, *args: Any) -> Any:
            nonlocal written
            written += _is_checkpoint(path)
            file = original_open(path, *args)
            if written == self.number and self.moment == "open":
                return HalfWritten(file)
            return file

        def fatal(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any) -> Any:
                if written == self.number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args)

            return wrapped

        files.open = counting_open  # type: ignore[attr-defined]
        if self.moment != "open":
            setattr(os, self.moment, fatal(getattr(os, self.moment)))


class HalfWritten:
    """A file whose writer is killed half-way."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> HalfWritten:
        return self

    def __exit__(self, *details: Any) -> None:
        self.file.close()

    def write(self, data: bytes) -> None:
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def points(directory: Path) -> list[tuple[str, int, bytes]]:
    """Every TensorBoard point of a run: tag, step, the value's serialised form; clocks left out."""
    from tensorboard.compat.proto.event_pb2 import Event

    found = []
    for path in sorted((directory / "tensorboard").iterdir()):
        data = path.read_bytes()
        offset = 0
        while offset < len(data):
            (length,) = struct.unpack_from("<Q", data, offset)
            event = Event.FromString(data[offset + 12 : offset + 12 + length])
            offset += 8 + 4 + length + 4
            for value in event.summary.value:
                if value.tag not in CLOCKS:
                    found.append((value.tag, event.step, value.SerializeToString()))
        assert offset == len(data), f"{path} ends inside a record"
    return found


def weights(path: Path) -> dict[str, th.Tensor]:
    """The tensors of a saved model: policy and optimizer."""
    with zipfile.ZipFile(path) as archive:
        policy = th.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
        optimizer = th.load(io.BytesIO(archive.read("policy.optimizer.pth")), weights_only=True)
    tensors = dict(policy)
    for index, state in optimizer["state"].items():
        for name, value in state.items():
            tensors[f"adam.{index}.{name}"] = th.as_tensor(value)
    return tensors


def assert_same_run(first: Path, second: Path) -> None:
    """Two directories hold the same run: weights, optimizer, normalisation, evaluations and points."""
    ours, theirs = weights(first / "model.zip"), weights(second / "model.zip")
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if not th.equal(ours[name], theirs[name])]
    assert not different, f"weights differ: {different}"
    assert (first / "evaluations.csv").read_text() == (second / "evaluations.csv").read_text()
    ours_points, their_points = points(first), points(second)
    assert len({point[:2] for point in their_points}) == len(their_points), "a point appears twice"
    # By name: of two long lists pytest shows the beginning.
    different = [f"{tag} at {step}" for tag, step, _ in sorted(set(ours_points) ^ set(their_points))]
    assert not different, f"points differ, or are missing in one: {different}"
    if (first / "vecnormalize.pkl").exists():
        a, b = (pickle.loads((path / "vecnormalize.pkl").read_bytes()) for path in (first, second))
        assert a.obs_rms.mean.tobytes() == b.obs_rms.mean.tobytes()
        assert a.ret_rms.var.tobytes() == b.ret_rms.var.tobytes()
    (first / "result.json").stat()
    (second / "result.json").stat()


def _is_checkpoint(path: Any) -> bool:
    return ".checkpoint." in str(path)
