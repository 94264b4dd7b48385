"""The robustness figure: final returns against the passes over each batch, and against the learning rate.

From the published runs of the three studies benchmarks/studies/robustness-*.toml:

    python -m benchmarks.robustness

A run's score is its final return, not below zero, divided by the best mean that any number of passes has in
that environment (at the usual learning rate, so that the scale does not depend on the other studies). A point
is the mean over environments of the means over seeds, its interval Welch's t; points with an environment
missing are left out. Writes robustness.png, .csv and .md beside the studies, and the tables that the READMEs
show, see :mod:`benchmarks.pages`.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.pages import ROOT, Table, fill_readmes, page_of
from sppo.records.published import completed_runs, is_published
from sppo.records.runs import Run
from sppo.report.statistics import Estimate, weighted_sum

SCRIPT = "robustness"
RESULTS = ROOT / "benchmarks" / "results" / "robustness"
STUDIES = ("robustness-passes", "robustness-rates", "robustness-ablation")
ENVIRONMENTS = ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5")
#: label -> title, the panel it is drawn in, and what bounds an update besides the clip
LINES = {
    "ppo": ("PPO", "PPO", "alone"),
    "ppo-target-kl": ("PPO, target_kl", "PPO", "target_kl"),
    "ppo-budget": ("PPO, kl_budget", "PPO", "kl_budget"),
    "sppo": ("sPPO", "sPPO", "alone"),
    "sppo-budget": ("sPPO, kl_budget", "sPPO", "kl_budget"),
    "sppo-two-sided": ("sPPO two-sided (printed)", "sPPO two-sided (printed)", "alone"),
    "sppo-two-sided-budget": ("sPPO two-sided, kl_budget", "sPPO two-sided (printed)", "kl_budget"),
    "smdpo-constrained": ("sMDPO, eta auto", "sMDPO, eta auto", "kl_budget"),
}
STYLES = {
    "alone": ("--", "x", "#7f7f7f"),
    "target_kl": (":", "^", "#56b4e9"),
    "kl_budget": ("-", "o", "#d55e00"),
}
ABLATION = {
    "sppo": "none",
    "sppo-budget-only": "budget alone",
    "sppo-critic-only": "critic's 30 passes alone",
    "sppo-recompute-only": "recomputed advantages alone",
    "sppo-budget": "budget and critic's 30 passes",
}
#: label, passes, learning rate
Point = tuple[str, int, str]
RATE, PASSES = "0.0003", 10
#: what everything else is compared with
BASELINE: Point = ("ppo", PASSES, RATE)
#: the scores of each environment's runs
Scores = dict[Point, list[list[float]]]


def point_of(run: Run) -> Point:
    parameters = run.config["parameters"]
    return run.algorithm, int(parameters["n_epochs"]), str(parameters["learning_rate"]).removeprefix("lin_")


def scores_of(runs: list[Run]) -> Scores:
    """The scores of every point that has all environments, environment by environment."""
    returns: dict[Point, dict[str, list[float]]] = defaultdict(lambda: {env: [] for env in ENVIRONMENTS})
    for run in runs:
        returns[point_of(run)][run.env].append(float(run.returns[-1]))
    whole = {point: own for point, own in returns.items() if all(own.values())}
    usual = [own for point, own in whole.items() if point[0] in LINES and point[2] == RATE]
    best = {env: max(float(np.mean(own[env])) for own in usual) for env in ENVIRONMENTS}
    return {
        point: [[max(value, 0) / best[env] for value in own[env]] for env in ENVIRONMENTS]
        for point, own in whole.items()
    }


def mean(scores: list[list[float]]) -> Estimate:
    return weighted_sum(scores, [1 / len(scores)] * len(scores))


def lead(scores: list[list[float]], baseline: list[list[float]]) -> Estimate:
    return weighted_sum(
        [*scores, *baseline], [1 / len(scores)] * len(scores) + [-1 / len(scores)] * len(scores)
    )


def draw(scores: Scores, path: Path) -> None:
    """A column per family; above the score against m at 3e-4, below against the learning rate at m = 10."""
    found = {point: mean(own) for point, own in scores.items() if point[0] in LINES}
    families = list(dict.fromkeys(family for _, family, _ in LINES.values()))
    axes_of = (
        ("passes over each batch, m", lambda p: p[2] == RATE, lambda p: float(p[1])),
        (f"learning rate, at m = {PASSES}", lambda p: p[1] == PASSES, lambda p: float(p[2])),
    )
    figure, panels = plt.subplots(
        len(axes_of), len(families), figsize=(11, 5.4), sharex="row", sharey=True, layout="constrained"
    )
    for row, (name, belongs, place) in zip(panels, axes_of, strict=True):
        ticks = sorted({place(p) for p in found if belongs(p)})
        for label, (_, family, way) in LINES.items():
            points = sorted((place(p), found[p]) for p in found if p[0] == label and belongs(p))
            line, marker, colour = STYLES[way]
            x = [ticks.index(tick) + 0.08 * (list(STYLES).index(way) - 1) for tick, _ in points]
            y, low, high = np.array([estimate for _, estimate in points]).reshape(-1, 3).T
            panel = row[families.index(family)]
            panel.plot(x, y, line, color=colour, marker=marker)
            panel.vlines(x, low, high, color=colour, alpha=0.5)
            panel.set_xlabel(name)
        row[0].set_xticks(range(len(ticks)), [f"{tick:g}" for tick in ticks])
        row[0].set(ylabel="final return, scaled", ylim=(0, 1.2))
    for panel, family in zip(panels[0], families, strict=True):
        panel.set_title(family)
    for way, (line, marker, colour) in STYLES.items():
        panels[0, 0].plot([], [], line, marker=marker, color=colour, label=way)
    figure.legend(loc="outside upper right", ncols=len(STYLES), frameon=False)
    counts = sorted({len(runs) for point in found for runs in scores[point]})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    title = f"250,000 steps, mean of {', '.join(ENVIRONMENTS)}, n = {seeds} seeds per point"
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def text(estimate: Estimate) -> str:
    interval = f" [{estimate.low:.2f}, {estimate.high:.2f}]" if estimate.has_interval else ""
    return f"{estimate.value:.2f}{interval}".replace("-", "−")


def by_passes(scores: Scores, passes: list[int]) -> Table:
    rows = []
    for label, (title, _, _) in LINES.items():
        own = {m: mean(scores[label, m, RATE]) for m in passes if (label, m, RATE) in scores}
        values = [estimate.value for estimate in own.values()]
        kept = f"{min(values) / max(values):.0%}" if len(own) == len(passes) else ""
        rows.append((title, *(text(own[m]) if m in own else "" for m in passes), kept))
    return ("", *(f"m = {m}" for m in passes), "worst / best"), rows


def by_rate(scores: Scores, rates: list[str]) -> Table:
    rows = []
    for label, (title, _, _) in LINES.items():
        points = [(label, PASSES, rate) for rate in rates]
        rows.append((title, *(text(mean(scores[p])) if p in scores else "" for p in points)))
    return (f"m = {PASSES}", *(f"rate {rate}" for rate in rates)), rows


def leads(scores: Scores, passes: list[int], rates: list[str]) -> Table:
    """Everything minus PPO at ten passes and the usual rate."""
    columns = {f"m = {m}": (m, RATE) for m in passes}
    columns |= {f"m = {PASSES}, rate {rate}": (PASSES, rate) for rate in rates if rate != RATE}
    rows = []
    for label, (title, _, _) in LINES.items():
        points = [(label, *place) for place in columns.values()]
        shown = [
            text(lead(scores[p], scores[BASELINE])) if p in scores and p != BASELINE else "" for p in points
        ]
        rows.append((title, *shown))
    return (f"minus PPO at m = {PASSES}", *columns), rows


def ablation(scores: Scores, passes: list[int]) -> Table:
    shown = [m for m in passes if ("sppo-budget-only", m, RATE) in scores]
    rows = []
    for label, title in ABLATION.items() if shown else ():
        points = [(label, m, RATE) for m in shown]
        rows.append((title, *(text(mean(scores[p])) if p in scores else "" for p in points)))
    return ("one-sided sPPO with", *(f"m = {m}" for m in shown)), rows


def all_tables(scores: Scores) -> dict[str, Table]:
    passes = sorted({m for _, m, rate in scores if rate == RATE})
    rates = sorted({rate for _, m, rate in scores if m == PASSES}, key=float)
    tables = {
        "Score by the passes over each batch": by_passes(scores, passes),
        "Lead over PPO at ten passes": leads(scores, passes, rates),
        "Score by the learning rate": by_rate(scores, rates),
        "What each part does alone": ablation(scores, passes),
    }
    return {heading: table for heading, table in tables.items() if table[1]}


def published_runs() -> list[Run]:
    directories = [RESULTS / study for study in STUDIES if is_published(RESULTS / study)]
    return [run for directory in directories for run in completed_runs(directory).values()]


def main() -> None:
    scores = scores_of(published_runs())
    draw(scores, RESULTS / "robustness.png")
    tables = all_tables(scores)
    page = page_of("How much the passes and the learning rate matter", SCRIPT, tables)
    (RESULTS / "robustness.md").write_text(page, encoding="utf-8")
    fill_readmes(SCRIPT, tables)
    with (RESULTS / "robustness.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("algorithm", "n_epochs", "learning_rate", "runs", "score", "low", "high"))
        for point, own in sorted(scores.items()):
            writer.writerow((*point, sum(map(len, own)), *(f"{number:.6g}" for number in mean(own))))
    print(page)


if __name__ == "__main__":
    main()
