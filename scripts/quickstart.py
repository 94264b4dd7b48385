"""Train PPO and sPPO from one seed, compare them in a table, a picture and TensorBoard."""

from __future__ import annotations

import argparse
import csv
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize
from tqdm import TqdmExperimentalWarning

from sppo import SPPO, make_vec_env

mpl.use("Agg")
import matplotlib.pyplot as plt

N_ENVS = 8
COLOURS = {"PPO": "tab:blue", "sPPO": "tab:orange"}


@dataclass(frozen=True)
class Outcome:
    """What one training left behind."""

    name: str
    timesteps: np.ndarray
    returns: np.ndarray
    evaluation: tuple[float, float]
    seconds: float
    clip_fraction: float
    log_ratio: float


class Recorder(BaseCallback):
    """Keeps the raw return of every finished training episode, and how hard each update was clipped."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes: list[tuple[int, float]] = []
        self.updates: list[tuple[float, float]] = []

    def _on_rollout_start(self) -> None:
        # What the last update recorded has not been written out yet.
        logged = self.logger.name_to_value
        if "train/clip_fraction" in logged:
            self.updates.append((logged["train/clip_fraction"], logged["train/log_ratio_abs_max"]))

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.episodes.append((self.num_timesteps, float(info["episode"]["r"])))
        return True


def train(name: str, use_softmax: bool, args: argparse.Namespace, log_directory: Path) -> Outcome:
    """One training with the benchmark's baseline configuration, and an evaluation at its end."""
    env = VecNormalize(make_vec_env(args.env, N_ENVS, seed=args.seed), clip_obs=10.0)
    model = SPPO(
        "MlpPolicy",
        env,
        learning_rate=LinearSchedule(3e-4, 0.0, 1.0),
        n_steps=2048 // N_ENVS,
        n_epochs=args.epochs,
        clip_range=args.epsilon,
        use_softmax=use_softmax,
        engine="fast",
        tensorboard_log=str(log_directory),
        seed=args.seed,
    )
    recorder = Recorder()
    start = time.perf_counter()
    model.learn(args.steps, callback=recorder, progress_bar=True)
    seconds = time.perf_counter() - start

    env.training, env.norm_reward = False, False
    returns, _ = evaluate_policy(model, env, n_eval_episodes=10, return_episode_rewards=True)
    steps, episode_returns = np.array(recorder.episodes or [(0, np.nan)]).T
    clip_fraction, log_ratio = np.array(recorder.updates or [(np.nan, np.nan)]).T
    return Outcome(
        name,
        steps,
        episode_returns,
        (float(np.mean(returns)), float(np.std(returns))),
        seconds,
        float(clip_fraction.mean()),
        float(log_ratio.max()),
    )


def comparison_table(outcomes: list[Outcome], title: str) -> Table:
    table = Table(title=title)
    for column in ("", *(outcome.name for outcome in outcomes)):
        table.add_column(column, justify="right" if column else "left")
    rows = {
        "evaluation, 10 episodes": lambda o: f"{o.evaluation[0]:.0f} ± {o.evaluation[1]:.0f}",
        "training, last 20 episodes": lambda o: f"{np.mean(o.returns[-20:]):.0f}",
        "clipped samples": lambda o: f"{o.clip_fraction:.1%}",
        "largest |log-ratio|": lambda o: f"{o.log_ratio:.2f}",
        "training time": lambda o: f"{o.seconds:.0f} s",
    }
    for label, cell in rows.items():
        table.add_row(label, *(cell(outcome) for outcome in outcomes))
    return table


def draw(outcomes: list[Outcome], title: str, path: Path) -> None:
    """Mean and range of the episodes that ended in each thirtieth of the training."""
    figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    last = max(outcome.timesteps[-1] for outcome in outcomes)
    edges = np.linspace(0, last, min(30, max(len(set(outcomes[0].timesteps)), 1)) + 1)
    for outcome in outcomes:
        bins = np.digitize(outcome.timesteps, edges[1:], right=True)
        groups = [outcome.returns[bins == index] for index in np.unique(bins)]
        where = [outcome.timesteps[bins == index].mean() for index in np.unique(bins)]
        colour = COLOURS[outcome.name]
        lowest, highest = [group.min() for group in groups], [group.max() for group in groups]
        axis.fill_between(where, lowest, highest, color=colour, alpha=0.15, lw=0)
        axis.plot(where, [group.mean() for group in groups], "o-", ms=3, color=colour, label=outcome.name)
    axis.set(title=title, xlabel="environment steps", ylabel="return of training episodes (mean, range)")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps per training")
    parser.add_argument("--epochs", type=int, default=10, help="passes over each batch of 2048 (m)")
    parser.add_argument("--epsilon", type=float, default=0.3, help="clip of both algorithms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"))
    args = parser.parse_args()
    # SB3's progress bar is tqdm's rich one, which announces itself as experimental at every start.
    warnings.filterwarnings("ignore", category=TqdmExperimentalWarning)

    console = Console()
    args.out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for name, use_softmax in (("PPO", False), ("sPPO", True)):
        console.print(f"Training [bold]{name}[/bold] on {args.env}, seed {args.seed} ...")
        outcomes.append(train(name, use_softmax, args, args.out / "tensorboard"))

    title = f"{args.env}, {args.steps:,} steps, m = {args.epochs}, ε = {args.epsilon}, seed {args.seed}"
    console.print(comparison_table(outcomes, title))
    picture, data = args.out / "learning_curve.png", args.out / "learning_curve.csv"
    draw(outcomes, title, picture)
    with data.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["algorithm", "timesteps", "episode_return"])
        for outcome in outcomes:
            episodes = zip(outcome.timesteps, outcome.returns, strict=True)
            writer.writerows((outcome.name, int(steps), f"{score:.2f}") for steps, score in episodes)
    print(f"Picture: {picture}\nData:    {data}")
    print("One seed decides nothing: `python -m sppo study` compares many.")
    print(f"Look closer: .venv/bin/tensorboard --logdir {args.out / 'tensorboard'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
