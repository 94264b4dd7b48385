"""The robustness figure: final returns against the passes over each batch, and against the learning rate.

From the published runs of the three studies benchmarks/studies/robustness-*.toml:

    python -m benchmarks.robustness

A run's score is its final return, not below zero, divided by the best mean that any setting has in that
environment. A point is the mean over environments and seeds; its interval is Student's t over seeds, each the
mean of its environments. Points with an environment missing are left out.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from sppo.records.published import completed_runs, is_published
from sppo.records.runs import Run
from sppo.report.statistics import Estimate, mean_estimate

RESULTS = Path(__file__).parent / "results" / "robustness"
STUDIES = ("robustness-passes", "robustness-rates", "robustness-ablation")
ENVIRONMENTS = ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5")
#: label -> title, colour, whether something bounds the update
LINES = {
    "ppo": ("PPO", "#0072b2", False),
    "ppo-target-kl": ("PPO, target_kl", "#56b4e9", False),
    "ppo-budget": ("PPO, kl_budget", "#0072b2", True),
    "sppo": ("sPPO", "#e69f00", False),
    "sppo-budget": ("sPPO, kl_budget", "#e69f00", True),
    "sppo-two-sided": ("sPPO two-sided (printed)", "#7f7f7f", False),
    "sppo-two-sided-budget": ("sPPO two-sided, kl_budget", "#7f7f7f", True),
    "smdpo-constrained": ("sMDPO, eta auto", "#cc79a7", True),
}
ABLATION = {
    "sppo": "none",
    "sppo-budget-only": "budget alone",
    "sppo-critic-only": "critic's 30 passes alone",
    "sppo-recompute-only": "recomputed advantages alone",
    "sppo-budget": "budget and critic's 30 passes",
}
Point = tuple[str, int, str]


def point_of(run: Run) -> Point:
    """Label, passes and learning rate."""
    parameters = run.config["parameters"]
    return run.algorithm, int(parameters["n_epochs"]), str(parameters["learning_rate"]).removeprefix("lin_")


def estimates(runs: list[Run]) -> dict[Point, tuple[Estimate, int]]:
    """Score and number of seeds of every point that has all environments."""
    returns: dict[tuple[Point, str], dict[int, float]] = defaultdict(dict)
    for run in runs:
        returns[point_of(run), run.env][run.seed] = float(run.returns[-1])
    best = {
        env: max(np.mean(list(own.values())) for (_, other), own in returns.items() if other == env)
        for env in ENVIRONMENTS
        if any(other == env for _, other in returns)
    }
    found = {}
    for point in {point for point, _ in returns}:
        own = [returns.get((point, env), {}) for env in ENVIRONMENTS]
        seeds = set.intersection(*(set(each) for each in own))
        scores = [
            np.mean([max(each[seed], 0) / best[env] for each, env in zip(own, ENVIRONMENTS, strict=True)])
            for seed in sorted(seeds)
        ]
        if scores:
            found[point] = mean_estimate(scores), len(scores)
    return found


def draw(found: Mapping[Point, tuple[Estimate, int]], path: Path) -> None:
    """Two panels: score against m at 3e-4, and against the learning rate at m = 10."""
    # The second axis is drawn once there is more than the rate that both share.
    n_panels = 2 if len({p[2] for p in found}) > 1 else 1
    figure, axes = plt.subplots(
        1, n_panels, figsize=(3 + 4 * n_panels, 4.4), sharey=True, squeeze=False, layout="constrained"
    )
    panels = (
        ("passes over each batch, m", lambda p: p[2] == "0.0003", lambda p: float(p[1])),
        ("learning rate, at m = 10", lambda p: p[1] == 10, lambda p: float(p[2])),
    )
    for axis, (name, belongs, place) in zip(axes[0], panels, strict=False):
        ticks = sorted({place(p) for p in found if belongs(p) and p[0] in LINES})
        for number, (label, (title, colour, bounded)) in enumerate(LINES.items()):
            points = sorted((place(p), found[p][0]) for p in found if p[0] == label and belongs(p))
            if not points:
                continue
            x = [ticks.index(tick) + (number - 3.5) * 0.05 for tick, _ in points]
            y, low, high = np.array([estimate for _, estimate in points]).T
            style = "-" if bounded else "--"
            axis.plot(x, y, style, color=colour, marker="o" if bounded else "x", label=title)
            axis.vlines(x, low, high, color=colour, alpha=0.5)
        axis.set_xticks(range(len(ticks)), [f"{tick:g}" for tick in ticks])
        axis.set_xlabel(name)
    axes[0, 0].set(ylabel="final return, scaled", ylim=(0, 1.05))
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    seeds = {n for _, n in found.values()}
    figure.suptitle(
        f"250,000 steps, mean of {', '.join(ENVIRONMENTS)}, {min(seeds)} to {max(seeds)} seeds per point"
        if len(seeds) > 1
        else f"250,000 steps, mean of {', '.join(ENVIRONMENTS)}, n = {seeds.pop()} per point",
        fontsize=10,
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def text(estimate: Estimate) -> str:
    interval = f" [{estimate.low:.2f}, {estimate.high:.2f}]" if estimate.has_interval else ""
    return f"{estimate.value:.2f}{interval}"


def tables(found: Mapping[Point, tuple[Estimate, int]]) -> str:
    """Scores by m, what the worst m keeps of the best, and the ablation, in Markdown."""
    passes = sorted({m for _, m, rate in found if rate == "0.0003"})
    rows = [
        f"| | {' | '.join(f'm = {m}' for m in passes)} | worst / best |",
        "| --- " * (len(passes) + 2) + "|",
    ]
    for label, (title, _, _) in LINES.items():
        own = {m: found[label, m, "0.0003"][0] for m in passes if (label, m, "0.0003") in found}
        scores = [estimate.value for estimate in own.values()]
        kept = f"{min(scores) / max(scores):.0%}" if len(own) == len(passes) else ""
        cells = (text(own[m]) if m in own else "" for m in passes)
        rows.append(f"| {title} | {' | '.join(cells)} | {kept} |")
    rates = sorted({rate for _, m, rate in found if m == 10}, key=float)
    if len(rates) > 1:
        rows += [
            "",
            f"| | {' | '.join(f'rate {rate}' for rate in rates)} |",
            "| --- " * (len(rates) + 1) + "|",
        ]
    for label, (title, _, _) in LINES.items() if len(rates) > 1 else ():
        cells = (text(found[label, 10, rate][0]) if (label, 10, rate) in found else "" for rate in rates)
        rows.append(f"| {title} | {' | '.join(cells)} |")
    shown = [m for m in passes if ("sppo-budget-only", m, "0.0003") in found]
    if shown:
        rows += ["", f"| one-sided sPPO with | {' | '.join(f'm = {m}' for m in shown)} |"]
        rows.append("| --- " * (len(shown) + 1) + "|")
        for label, title in ABLATION.items():
            cells = (
                text(found[label, m, "0.0003"][0]) if (label, m, "0.0003") in found else "" for m in shown
            )
            rows.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    directories = [RESULTS / study for study in STUDIES if is_published(RESULTS / study)]
    runs = [run for directory in directories for run in completed_runs(directory).values()]
    found = estimates(runs)
    draw(found, RESULTS / "robustness.png")
    (RESULTS / "robustness.md").write_text(tables(found), encoding="utf-8")
    with (RESULTS / "robustness.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("algorithm", "n_epochs", "learning_rate", "seeds", "score", "low", "high"))
        for point in sorted(found):
            writer.writerow((*point, found[point][1], *(f"{number:.6g}" for number in found[point][0])))
    print(tables(found))


if __name__ == "__main__":
    main()
