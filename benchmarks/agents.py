"""Trained agents from a study's runs: the model, a card that says what it is, and a picture of it moving.

    python -m benchmarks.agents runs/million --algorithm sppo

Of each environment, the run with the highest final return is copied to ``benchmarks/results/agents``, laid
out as the RL Zoo's folders are, and played for twenty new episodes. ``README.md`` there lists all agents.
Pictures of MuJoCo need OpenGL without a screen: ``apt-get install libegl1 libgl1-mesa-dri``, or
``MUJOCO_GL=osmesa`` with ``libosmesa6``; ``--no-pictures`` does without.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from PIL import Image
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks.pages import ROOT, Table, markdown
from sppo import SPPO
from sppo.records.config import RunConfig
from sppo.records.parameters import NORMALIZE, algorithm_settings, defaults
from sppo.records.run_files import MODEL, VECNORMALIZE
from sppo.records.runs import Run
from sppo.records.studies import read_records
from sppo.study.training import evaluate, make_environment

AGENTS = ROOT / "benchmarks" / "results" / "agents"
#: the zoo's name of the algorithm, and so of the folder
ALGO = "sppo"
EPISODES = 20
#: side in pixels, frames per second, seconds, and from when on
SIZE, RATE, LENGTH, START = 200, 20, 3.0, 1.0
COLOURS = 64
NEEDS = "MuJoCo needs libegl1 and libgl1-mesa-dri, or libosmesa6 and MUJOCO_GL=osmesa; or write --no-pictures"


@dataclass(frozen=True)
class Agent:
    """What a card says.

    :param candidates: how many runs of the setting it was chosen from
    :param setting: what differs from the study's baseline
    """

    env: str
    study: str
    algorithm: str
    seed: int
    steps: int
    candidates: int
    final_return: float
    returns: list[float]
    setting: dict[str, Any]
    versions: dict[str, str]
    git_revision: str

    @property
    def played(self) -> str:
        return f"{np.mean(self.returns):.0f} ± {np.std(self.returns):.0f}"


def chosen(runs: Sequence[Run], label: str) -> dict[str, tuple[Run, int]]:
    """Environment -> the run with the highest final return, and of how many.

    :raises ValueError: if there is none, or its model is not there or not ours
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.status == "completed" and run.algorithm == label:
            found.setdefault(run.env, []).append(run)
    if not found:
        known = ", ".join(sorted({run.algorithm for run in runs if run.status == "completed"}))
        raise ValueError(f"no completed run of {label}: there are {known or 'none'}")
    best = {env: max(own, key=lambda run: run.final_return) for env, own in found.items()}
    for run in best.values():
        if run.config.get("class", "sppo") != "sppo":
            raise ValueError(f"{label} is of the class {run.config['class']}, which SPPO.load does not read")
        if run.path is None or not (run.path / MODEL).is_file():
            raise ValueError(f"{run.path or label} has no {MODEL}: give the study's own directory (runs/...)")
    return {env: (run, len(found[env])) for env, run in best.items()}


def setting_of(config: RunConfig) -> dict[str, Any]:
    """What differs from the study's baseline."""
    neutral = defaults(algorithm_settings(config.cls, config.parameters.get("surrogate")))
    sizes = {"n_envs": config.n_envs} if config.n_envs != 8 else {}
    found = {name: value for name, value in config.parameters.items() if value != neutral.get(name)}
    normalize = {} if config.normalize == defaults(NORMALIZE) else {"normalize": dict(config.normalize)}
    return {**sizes, **found, **normalize}


def file_name(env: str) -> str:
    """The environment's name without the module that registers it."""
    return env.rpartition(":")[2]


def load(path: Path, config: RunConfig) -> SPPO:
    """The agent with an environment that is normalised as in its training."""
    env = DummyVecEnv([lambda: make_environment(config)])
    model = SPPO.load(path, device="cpu")
    return SPPO.load(path, env if model.normalization is None else model.normalized(env), device="cpu")


def followed(env: gym.Env) -> gym.Env:
    """The same, seen from the camera that goes along with the body, where the model has one."""
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is not None:
        # By name; -1, the camera that stands still, if there is none.
        renderer.camera_id = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    return env


def frames(model: SPPO, env: gym.Env, seed: int) -> list[np.ndarray]:
    """The agent moving, in real time; fewer if the episode ends."""
    normalize = model.get_vec_normalize_env()
    per_second = env.metadata.get("render_fps", RATE)
    every = max(1, round(per_second / RATE))
    observation, _ = env.reset(seed=seed)
    found, ended, step = [], False, 0
    while not ended and step < (START + LENGTH) * per_second:
        if step >= START * per_second and step % every == 0:
            found.append(np.asarray(env.render()))
        batch = np.asarray(observation)[None]
        action, _ = model.predict(
            batch if normalize is None else normalize.normalize_obs(batch), deterministic=True
        )
        observation, _, terminated, truncated, _ = env.step(action[0])
        ended, step = terminated or truncated, step + 1
    # An episode that ends before the first frame shows where it ended.
    return found or [np.asarray(env.render())]


def write_gif(pictures: Sequence[np.ndarray], path: Path) -> None:
    """Small enough for a page: one palette, no dithering, which would cost more than it shows."""
    small = [Image.fromarray(picture).resize((SIZE, SIZE), Image.Resampling.LANCZOS) for picture in pictures]
    palette = small[len(small) // 2].quantize(COLOURS)
    plain = [picture.quantize(COLOURS, palette=palette, dither=Image.Dither.NONE) for picture in small]
    plain[0].save(path, save_all=True, append_images=plain[1:], duration=1000 // RATE, loop=0, optimize=True)


def make_agent(run: Run, candidates: int, study: str, out: Path, pictures: bool) -> Agent:
    """Copy the model, play it, write its card.

    :raises RuntimeError: if it cannot be drawn; everything else is there then
    """
    config = RunConfig.from_dict(run.config)
    assert run.path is not None
    name = file_name(run.env)
    model_file, folder = out / ALGO / f"{name}.zip", out / ALGO / name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run.path / MODEL, model_file)
    normalized = (run.path / VECNORMALIZE).is_file()
    if normalized:
        shutil.copyfile(run.path / VECNORMALIZE, folder / VECNORMALIZE)
    # What the zoo's `enjoy` wants to know beside the model.
    (folder / "config.yml").write_text(f"normalize: {str(normalized).lower()}\n", encoding="utf-8")
    model = load(model_file, config)
    # Episodes that no evaluation of the training has seen.
    played = evaluate(model, lambda: make_environment(config), run.seed, config.evaluations + 1, EPISODES)
    agent = Agent(
        run.env, study, run.algorithm, run.seed, run.steps_done, candidates, run.final_return,
        [total for total, _ in played], setting_of(config), dict(run.versions), run.git_revision,
    )  # fmt: skip
    (folder / "agent.json").write_text(json.dumps(asdict(agent), indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(agent), encoding="utf-8")
    if pictures:
        try:
            env = followed(gym.make(config.env, render_mode="rgb_array", **config.env_kwargs))
            write_gif(frames(model, env, run.seed), folder / "moving.gif")
            env.close()
        except Exception as error:  # whatever a missing driver raises
            raise RuntimeError(
                f"{run.env} cannot be drawn ({type(error).__name__}: {error}); {NEEDS}"
            ) from error
        (folder / "README.md").write_text(card(agent, "moving.gif"), encoding="utf-8")
    return agent


def card(agent: Agent, picture: str = "") -> str:
    """A page about one agent."""
    rows = [
        ("environment", f"`{agent.env}`"),
        (f"return, {EPISODES} new episodes", f"{agent.played} (mean ± deviation, deterministic actions)"),
        ("steps, seed", f"{agent.steps:,}, {agent.seed}"),
        ("chosen", f"highest last evaluation ({agent.final_return:.0f}) of {agent.candidates} seeds: "
         "better than what the setting gives on average" if agent.candidates > 1 else "the only seed"),
        ("setting", ", ".join(f"`{name}={value!r}`" for name, value in agent.setting.items())
         or "the study's baseline"),
        ("made with", ", ".join(f"{name} {version}" for name, version in agent.versions.items())
         + (f", git {agent.git_revision[:12]}" if agent.git_revision else "")),
    ]  # fmt: skip
    path = f"benchmarks/results/agents/{ALGO}/{file_name(agent.env)}.zip"
    return f"""# sPPO playing {agent.env}
{f"{chr(10)}![{agent.env}]({picture}){chr(10)}" if picture else ""}
{markdown((("what", "value"), rows))}
Trained by

```bash
python -m sppo study run benchmarks/studies/{agent.study}.toml \\
  --env {agent.env} --algorithm {agent.algorithm} --seeds {agent.seed}
```

Load it, with the normalisation of observations that its file carries, or watch it:

```python
import gymnasium as gym
from sppo import SPPO

model = SPPO.load("{path}")
env = model.normalized(gym.make("{agent.env}"))
```

```bash
python -m sppo.zoo enjoy --algo {ALGO} --env {agent.env} -f benchmarks/results/agents
```
"""


def index(out: Path) -> str:
    """All agents that are there, in one table."""
    rows = []
    for file in sorted((out / ALGO).glob("*/agent.json")):
        agent = Agent(**json.loads(file.read_text(encoding="utf-8")))
        where = f"{ALGO}/{file.parent.name}"
        moving = f"![{agent.env}]({where}/moving.gif)" if (file.parent / "moving.gif").is_file() else ""
        rows.append((f"[{agent.env}]({where}/README.md)", agent.played, f"{agent.steps:,}", moving))
    table: Table = (("agent", f"return, {EPISODES} episodes", "steps", ""), rows)
    return f"# Trained agents\n\nMade by `python -m benchmarks.agents`; each has a card.\n\n{markdown(table)}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agents", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("study", type=Path, help="the study's directory, with its models")
    parser.add_argument("--algorithm", default="sppo", metavar="LABEL", help="whose runs (default: sppo)")
    parser.add_argument("--out", type=Path, default=AGENTS)
    parser.add_argument("--no-pictures", action="store_true")
    args = parser.parse_args(argv)
    os.environ.setdefault("MUJOCO_GL", "egl")
    failed = False
    try:
        records = read_records(args.study)
        for env, (run, candidates) in chosen(records.runs, args.algorithm).items():
            try:
                agent = make_agent(run, candidates, records.name, args.out, not args.no_pictures)
                print(f"{env}: seed {agent.seed} of {candidates}, {agent.played}", flush=True)
            except RuntimeError as error:
                print(f"error: {error}", file=sys.stderr)
                failed = True
    except (FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    (args.out / "README.md").write_text(index(args.out), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
