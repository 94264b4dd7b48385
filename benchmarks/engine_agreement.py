"""Do the two engines learn alike? Learning curves of both on one environment, with intervals over seeds.

From one seed the engines start with the same numbers to float32 rounding; a simulated robot then turns
rounding into different trajectories, so what can agree are distributions over seeds.

    python benchmarks/engine_agreement.py            # 2 x 5 trainings of 100,000 steps on Hopper-v5

Writes ``benchmarks/results/speed/agreement.json`` and ``agreement.png``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

RESULTS = Path(__file__).resolve().parent / "results" / "speed"
ENGINES = ("reference", "fast")


def train(env_id: str, engine: str, seed: int, steps: int) -> list[tuple[int, float]]:
    """One training; returns the time and return of every episode."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecNormalize

    from sppo import SPPO, make_vec_env

    episodes: list[tuple[int, float]] = []

    class Recorder(BaseCallback):
        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "episode" in info:
                    episodes.append((self.num_timesteps, float(info["episode"]["r"])))
            return True

    env = VecNormalize(make_vec_env(env_id, 8, seed=seed, backend="gymnasium"))
    model = SPPO("MlpPolicy", env, n_steps=256, batch_size=64, seed=seed, device="cpu", engine=engine)  # type: ignore[arg-type]
    model.learn(steps, callback=Recorder())
    env.close()
    return episodes


def curve(episodes: list[list[Any]], steps: int, bins: int) -> list[float]:
    """Mean return of the episodes that ended in each of ``bins`` equal spans of the training."""
    times, returns = np.array(episodes).T
    which = np.minimum((times - 1) * bins // steps, bins - 1).astype(int)
    return [float(returns[which == i].mean()) for i in range(bins)]


def compare(data: dict[str, Any], bins: int) -> dict[str, Any]:
    """Means over seeds with 95 % t-intervals, and a Welch interval for the difference at the end."""
    curves = {
        engine: np.array([curve(run, data["steps"], bins) for run in data["episodes"][engine].values()])
        for engine in ENGINES
    }
    result: dict[str, Any] = {}
    for engine, values in curves.items():
        n = len(values)
        half = stats.t.ppf(0.975, n - 1) * values.std(axis=0, ddof=1) / np.sqrt(n)
        result[engine] = {"mean": values.mean(axis=0).tolist(), "half_width": half.tolist()}
    last = [curves[engine][:, -1] for engine in ENGINES]
    test = stats.ttest_ind(last[1], last[0], equal_var=False)
    low, high = test.confidence_interval(0.95)
    result["last span, fast minus reference"] = {
        "difference": float(last[1].mean() - last[0].mean()),
        "interval": [float(low), float(high)],
        "p": float(test.pvalue),
    }
    return result


def draw(data: dict[str, Any], path: Path) -> None:
    """Both curves with their intervals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for engine in ENGINES:
        mean = np.array(data["comparison"][engine]["mean"])
        half = np.array(data["comparison"][engine]["half_width"])
        x = (np.arange(len(mean)) + 0.5) * data["steps"] / len(mean)
        axes.plot(x, mean, label=f"{engine} engine")
        axes.fill_between(x, mean - half, mean + half, alpha=0.2)
    axes.set_xlabel("steps")
    axes.set_ylabel("return of training episodes")
    axes.set_title(f"{data['env']}: mean of {len(data['seeds'])} seeds, 95 % intervals", fontsize=10)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Train, compare, write."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--env", default="Hopper-v5")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--bins", type=int, default=10)
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    data: dict[str, Any] = {
        "command": "python benchmarks/engine_agreement.py",
        "env": options.env,
        "steps": options.steps,
        "seeds": options.seeds,
        "episodes": {engine: {} for engine in ENGINES},
    }
    for seed in options.seeds:
        for engine in ENGINES:
            episodes = train(options.env, engine, seed, options.steps)
            data["episodes"][engine][str(seed)] = episodes
            last = np.mean([value for _, value in episodes[-50:]])
            print(f"seed {seed}, {engine}: {len(episodes)} episodes, last 50 return {last:.0f}", flush=True)
    data["comparison"] = compare(data, options.bins)
    (RESULTS / "agreement.json").write_text(json.dumps(data) + "\n")
    draw(data, RESULTS / "agreement.png")
    print(json.dumps(data["comparison"], indent=1))


if __name__ == "__main__":
    main()
