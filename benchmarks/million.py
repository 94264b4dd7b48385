"""What a million steps give: our setting beside the recipes of others, from the study's published runs.

    python -m benchmarks.million

Reads the CSV files below ``benchmarks/results/million`` (``publish.sh million`` puts them there), writes
million.md and million.png beside them, and fills the READMEs' tables, see :mod:`benchmarks.pages`.

A run's result is the mean return of its last evaluation: ten episodes, deterministic actions. *Best over
training* is the largest mean over runs that any evaluation has, which is how Tianshou reports; it flatters,
the more so the fewer the runs. How many runs there are stands beside every number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.pages import ROOT, Table, fill_readmes, page_of
from sppo.records.published import is_published, read_runs
from sppo.records.runs import Run
from sppo.report.cells import Cell, build_cells, span
from sppo.report.statistics import difference, mean_estimate, mean_interval
from sppo.report.tables import number, shown

SCRIPT = "million"
RESULTS = ROOT / "benchmarks" / "results" / "million"
ENVIRONMENTS = ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5")
OURS = "sppo"
#: what the goal is against; TRPO is another algorithm
RIVALS = ("rl-zoo", "ppo-defaults", "tianshou")
#: label -> title, colour; labels that are not here are shown as they are
RECIPES = {
    OURS: ("**sPPO**", "#e69f00"),
    "rl-zoo": ("PPO, RL Zoo's tuned", "#0072b2"),
    "ppo-defaults": ("PPO, Stable-Baselines3's defaults", "#56b4e9"),
    "tianshou": ("PPO, Tianshou's recipe", "#009e73"),
    "trpo": ("TRPO, RL Zoo's tuned", "#7f7f7f"),
}
#: a recipe that is another's in an environment, so that its runs would be the same to the bit
SAME = {("Ant-v5", "rl-zoo"): "ppo-defaults"}


@dataclass(frozen=True)
class Source:
    """Numbers of somebody else's, at a million steps unless the caveat says otherwise.

    :param returns: by the environment's name without its version, mean and standard deviation if there is one
    :param counts: whether the goal is to be above it
    """

    title: str
    caveat: str
    returns: Mapping[str, tuple[float, float | None]]
    counts: bool = True


PUBLISHED = (
    Source(
        "Tianshou, examples/mujoco/README.md",
        "-v3, 10 seeds, best over training",
        {"Hopper": (2609, 701), "Walker2d": (3589, 757), "HalfCheetah": (5784, 1244), "Ant": (3258, 1079),
         "Humanoid": (787, 194)},
    ),
    Source("Tianshou, rerun (docs/_static/js/mujoco)", "-v4, 5 seeds", {"Ant": (1023, 230)}),
    Source(
        "RL Zoo, benchmark.md",
        "-v3, tuned, 1 seed",
        {"Hopper": (2410, None), "Walker2d": (3479, None), "HalfCheetah": (5819, None), "Ant": (1327, None)},
    ),
    Source(
        "CleanRL, docs/benchmark/ppo_continuous_action.md",
        "-v4, 3 seeds, episodes of the training",
        {"Hopper": (2383, 272), "Walker2d": (2288, 572), "HalfCheetah": (1443, 46), "Humanoid": (716, 49)},
    ),
    Source(
        "KLip-PPO, paper/figures/final_returns.tex",
        "-v4, 5 seeds",
        {"Hopper": (2598, 278), "Walker2d": (3717, 425), "HalfCheetah": (1955, 312), "Ant": (2193, 361),
         "Humanoid": (660, 70)},
    ),
    Source(
        "SLM Lab, docs/BENCHMARKS.md",
        "-v5, 4 seeds, **10M steps, Hopper 4M**",
        {"Hopper": (1654, None), "Walker2d": (4379, None), "HalfCheetah": (6241, None), "Ant": (2138, None),
         "Humanoid": (2661, None)},
        counts=False,
    ),
    Source(
        "sb3-contrib, docs/modules/trpo",
        "**TRPO**, -v3, 3 seeds",
        {"Hopper": (3372, 215), "Walker2d": (4502, 234), "HalfCheetah": (1803, 46), "Ant": (3554, 591)},
        counts=False,
    ),
)  # fmt: skip

#: environment, label -> the runs
Cells = dict[tuple[str, str], Cell]


def cells_of(runs: Iterable[Run]) -> Cells:
    """The runs of each recipe in each environment, where any is completed.

    :raises ValueError: if a recipe has two settings in one environment
    """
    found: Cells = {}
    for cell in build_cells(runs):
        place = cell.env, cell.runs[0].algorithm
        if cell.n and place in found:
            raise ValueError(f"{place[1]} has runs of two settings in {place[0]}: publish those of one study")
        if cell.n:
            found[place] = cell
    for (env, label), same in SAME.items():
        if (env, same) in found:
            found.setdefault((env, label), found[env, same])
    return found


def labels_of(cells: Cells) -> list[str]:
    """All recipes, whether they have runs yet or not, ours first."""
    return [*RECIPES, *sorted({label for _, label in cells} - RECIPES.keys())]


def title_of(label: str) -> str:
    return RECIPES[label][0] if label in RECIPES else label


def best_over_training(cell: Cell) -> float:
    """The largest mean over runs that any evaluation has."""
    return float(cell.curves[1].mean(axis=0).max())


def overview(cells: Cells) -> Table:
    """IQM of the final returns; the highest of each environment in bold."""
    labels = labels_of(cells)
    highest: dict[str, float] = {}
    for (env, _), cell in cells.items():
        highest[env] = max(highest.get(env, -np.inf), cell.iqm.value)

    def text(env: str, label: str) -> str:
        cell = cells.get((env, label))
        if cell is None:
            return "–"
        iqm = number(cell.iqm.value)
        value = f"**{iqm}**" if cell.iqm.value == highest[env] else iqm
        return f"{shown(cell.iqm).replace(iqm, value, 1)} (n = {cell.n})"

    rows = [(title_of(label), *(text(env, label) for env in ENVIRONMENTS)) for label in labels]
    return ("IQM, 95 % interval", *ENVIRONMENTS), rows


def in_full(cells: Cells) -> Table:
    """Every recipe in every environment."""
    rows = []
    for env in ENVIRONMENTS:
        for label in labels_of(cells):
            if (cell := cells.get((env, label))) is None:
                continue
            # Other runs were made on slower machines, or beside other work.
            minutes = min(run.wall_seconds for run in cell.completed) / 60
            numbers = (shown(cell.mean), shown(cell.iqm), number(best_over_training(cell)))
            rows.append((env, title_of(label), str(cell.n), *numbers, f"{minutes:.1f}"))
    header = ("environment", "recipe", "n", "mean, 95 % interval", "IQM, 95 % interval",
              "best over training", "minutes, fastest run")  # fmt: skip
    return header, rows


def leads(cells: Cells) -> Table:
    """Our mean minus each other recipe's, with Welch's interval, and minus the highest published number."""
    rows = []
    for label in labels_of(cells):
        if label == OURS:
            continue
        texts = []
        for env in ENVIRONMENTS:
            mine, theirs = cells.get((env, OURS)), cells.get((env, label))
            texts.append(shown(difference(mine.finals, theirs.finals)) if mine and theirs else "–")
        rows.append((title_of(label), *texts))
    ours = [cells.get((env, OURS)) for env in ENVIRONMENTS]
    above = [
        shown(mean_estimate(cell.finals - _highest_published(cell.env))) if cell else "–" for cell in ours
    ]
    rows.append(("the highest published PPO number", *above))
    return ("sPPO minus", *ENVIRONMENTS), rows


def _highest_published(env: str) -> float:
    """Of PPO at a million steps."""
    numbers = (source.returns.get(_base(env)) for source in PUBLISHED if source.counts)
    return max(mean for mean, _ in filter(None, numbers))


def beside_published(cells: Cells) -> Table:
    rows = []
    for label in labels_of(cells):
        own = [cells.get((env, label)) for env in ENVIRONMENTS]
        counts = [cell.n for cell in own if cell]
        if not counts:
            continue
        seeds = f"-v5, {span(counts)} seed"
        seeds += "s" if max(counts) > 1 else ""
        final = [f"{number(cell.mean.value)}{_spread(cell)}" if cell else "–" for cell in own]
        rows.append((f"{title_of(label)}, here", seeds, *final))
        best = [number(best_over_training(cell)) if cell else "–" for cell in own]
        rows.append((f"{title_of(label)}, here", f"{seeds}, best over training", *best))
    for source in PUBLISHED:
        found = (source.returns.get(_base(env)) for env in ENVIRONMENTS)
        texts = (
            "–" if one is None else f"{one[0]:.0f}" + (f" ± {one[1]:.0f}" if one[1] else "") for one in found
        )
        rows.append((source.title, source.caveat, *texts))
    return ("mean ± standard deviation", "", *ENVIRONMENTS), rows


def _spread(cell: Cell) -> str:
    return f" ± {cell.finals.std():.0f}" if cell.n > 1 else ""


def _base(env: str) -> str:
    return env.partition("-v")[0]


def goals(cells: Cells) -> Table:
    """What the study was to show, decided before it was run: in four, and in three, of five environments."""
    first, above, surely, against, rivals = [], [], [], [], []
    for env in ENVIRONMENTS:
        mine = cells.get((env, OURS))
        others = [cells[env, label] for label in RIVALS if (env, label) in cells]
        if mine and len(others) == len(RIVALS):
            rivals.append(env)
            first += [env] if all(mine.iqm.value > other.iqm.value for other in others) else []
        if mine:
            against.append(env)
            bar = _highest_published(env)
            above += [env] if mine.mean.value > bar else []
            surely += [env] if mine.mean.low > bar else []

    def row(goal: str, wanted: str, met: list[str], possible: list[str]) -> tuple[str, ...]:
        n = span([cells[env, OURS].n for env in possible])
        names = f" ({', '.join(map(_base, met))})" if met else ""
        return goal, wanted, f"{len(met)} of {len(possible)}{names}", n

    published = "final mean above the PPO numbers at 1M steps of all sources below, Tianshou's best included"
    return ("goal", "wanted", "found", "runs of ours per environment"), [
        row("first by IQM among the PPO recipes", "4 of 5", first, rivals),
        row(published, "3 of 5", above, against),
        row("the same, by more than the mean's 95 % interval", "", surely, against),
    ]


def all_tables(cells: Cells) -> dict[str, Table]:
    return {
        "After a million steps": overview(cells),
        "Goals": goals(cells),
        "In full": in_full(cells),
        "Leads": leads(cells),
        "Beside published numbers": beside_published(cells),
    }


def draw(cells: Cells, path: Path) -> None:
    """Learning curves: the mean over runs, and its interval where there is more than one."""
    begun = [env for env in ENVIRONMENTS if env in {env for env, _ in cells}]
    figure, axes = plt.subplots(
        1, len(begun), figsize=(3.2 * len(begun), 3.4), layout="constrained", squeeze=False
    )
    for axis, env in zip(axes[0], begun, strict=True):
        counts, heights = [], [0.0]
        for label in labels_of(cells):
            if (cell := cells.get((env, label))) is None:
                continue
            steps, returns = cell.curves
            mean, low, high = mean_interval(returns)
            title, colour = RECIPES.get(label, (label, None))
            plain = title.replace("*", "").replace("`", "")
            (line,) = axis.plot(
                steps / 1e6, mean, color=colour, label=plain, lw=2.2 if label == OURS else 1.3
            )
            if cell.n > 1:
                axis.fill_between(steps / 1e6, low, high, color=line.get_color(), alpha=0.12, lw=0)
            counts.append(cell.n)
            # The interval of two runs can be ten times as high as all curves.
            heights += [*mean, *np.minimum(high, 1.6 * mean.max())]
        axis.set_title(f"{env}, n = {span(counts)}", fontsize=10)
        axis.set(xlabel="million steps", ylim=(1.1 * min(heights), 1.05 * max(heights) + 1))
    axes[0, 0].set_ylabel("return")
    handles = {
        text: handle
        for axis in axes[0]
        for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=len(begun), frameon=False
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def published_cells() -> Cells:
    """None before the first are published: the READMEs then say what is to come."""
    return cells_of(read_runs(RESULTS)) if is_published(RESULTS) else {}


def main() -> None:
    cells = published_cells()
    tables = all_tables(cells)
    page = page_of("A million steps", SCRIPT, tables)
    if cells:
        (RESULTS / "million.md").write_text(page, encoding="utf-8")
        draw(cells, RESULTS / "million.png")
    fill_readmes(SCRIPT, tables)
    print(page)


if __name__ == "__main__":
    main()
