"""Made-up studies in the record format of ``sppo.records``, for tests that must not train."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

PAPER = ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5")
VERSIONS = {"sppo": "0.1.0", "torch": "2.13.0", "stable-baselines3": "2.9.2", "numpy": "2.4.6"}
#: a study directory is made on the same paths as the runner makes it
HEADER = "evaluation,timesteps,episode,return,length\n"


def configuration(env: str, algorithm: str, seed: int, **parameters: Any) -> dict[str, Any]:
    """A run's configuration; ``total_timesteps``, ``evaluations`` and ``eval_episodes`` may be among them."""
    special = {
        name: parameters.pop(name, default)
        for name, default in (("total_timesteps", 100_000), ("evaluations", 18), ("eval_episodes", 5))
    }
    return {
        "env": env,
        "algorithm": algorithm,
        "seed": seed,
        "n_envs": 8,
        "normalize": {"obs": True, "reward": True},
        **special,
        "parameters": {"learning_rate": 3e-4, "use_softmax": algorithm.startswith("s"), **parameters},
    }


def run_hash(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def grid(
    envs: Iterable[str] = PAPER,
    algorithms: Iterable[str] = ("ppo", "sppo"),
    passes: Iterable[int] = (10, 100),
    clips: Iterable[float] = (0.1, 0.3, 0.5, 0.7),
    seeds: Iterable[int] = range(3),
    **parameters: Any,
) -> Iterator[dict[str, Any]]:
    """The paper's grid."""
    for env, algorithm, m, clip, seed in itertools.product(
        list(envs), list(algorithms), list(passes), list(clips), list(seeds)
    ):
        yield configuration(env, algorithm, seed, n_epochs=m, clip_range=clip, **parameters)


def returns_of(config: dict[str, Any]) -> np.ndarray:
    """Returns ``(evaluations, episodes)``: rising to a level that depends on the setting and the seed."""
    rng = np.random.default_rng(int(run_hash(config), 16))
    parameters = config["parameters"]
    clip, m = parameters.get("clip_range") or 0.2, parameters.get("n_epochs") or 10
    strength = 1.0 if parameters.get("use_softmax") else 1.0 - 0.6 * clip * np.log10(m)
    level = 1000 * (1 + len(config["env"]) % 5) * strength * rng.uniform(0.6, 1.3)
    progress = np.linspace(0.05, 1, config["evaluations"])[:, None]
    noise = rng.normal(0, 60, (config["evaluations"], config["eval_episodes"]))
    return level * (1 - np.exp(-3 * progress)) + noise


def write_header(directory: Path, config: dict[str, Any]) -> Path:
    """The directory of a run that has just begun."""
    path = directory / run_hash(config)
    path.mkdir(parents=True)
    header = {"config": config, "hash": path.name, "versions": VERSIONS, "git_revision": "0123456789abcdef"}
    (path / "config.json").write_text(json.dumps(header))
    return path


def write_completed(directory: Path, config: dict[str, Any], returns: np.ndarray | None = None) -> Path:
    """The directory of a completed run, without model and event files."""
    path = write_header(directory, config)
    values = returns_of(config) if returns is None else np.asarray(returns, dtype=float)
    steps = np.linspace(0, config["total_timesteps"], len(values) + 1, dtype=int)[1:]
    rows = [
        f"{number},{step},{episode},{value!r},1000\n"
        for number, (step, episodes) in enumerate(zip(steps.tolist(), values.tolist(), strict=True), start=1)
        for episode, value in enumerate(episodes)
    ]
    (path / "evaluations.csv").write_text(HEADER + "".join(rows))
    result = {"status": "completed", "timesteps": config["total_timesteps"], "hash": path.name}
    result |= {"final_return": float(values[-1].mean()), "wall_seconds": 12.5}
    (path / "result.json").write_text(json.dumps(result))
    return path


def write_failed(directory: Path, config: dict[str, Any], error: str = "ValueError: NaN in the loss") -> Path:
    path = write_header(directory, config)
    failure = {"status": "failed", "error": error, "timesteps": 4096, "traceback": f"Traceback ...\n{error}"}
    (path / "failure.json").write_text(json.dumps(failure))
    return path


def write_plan(directory: Path, configs: Iterable[dict[str, Any]]) -> None:
    (directory / ".study").mkdir(parents=True, exist_ok=True)
    plan = [{"hash": run_hash(config), "config": config} for config in configs]
    (directory / ".study" / "plan.json").write_text(json.dumps(plan))


def write_study(directory: Path, configs: Iterable[dict[str, Any]]) -> Path:
    """A study of which every run is completed."""
    listed = list(configs)
    directory.mkdir(parents=True, exist_ok=True)
    for config in listed:
        write_completed(directory, config)
    write_plan(directory, listed)
    return directory
