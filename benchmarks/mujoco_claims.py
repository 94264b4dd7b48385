"""What the published MuJoCo runs say about the paper's claims, each with an interval.

    python benchmarks/mujoco_claims.py

Reads the CSV files of the reports below ``benchmarks/results/mujoco``, writes ``claims.md`` and
``claims.json`` beside them, and puts the tables that the two READMEs show between their markers
(``<!-- table: HEADING -->``, ``<!-- end -->``). A run's result is the mean return of its last evaluation.

Differences are taken per environment and setting (``mujoco_runs.py``), and the interval is Student's t over
them. It covers the spread between settings as well as that between seeds, and is wide where the algorithms
differ in some settings only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from mujoco_runs import (
    BASELINE,
    VARIANTS,
    Bounds,
    Runs,
    Table,
    better_in,
    changes_without_decay,
    growth_in_units,
    kept,
    leads_over_ppo,
    over,
    share_text,
    short_name,
    shown,
)
from mujoco_verdicts import verdicts

from sppo.report.cells import Cell, display_name, order_labels
from sppo.report.events import read_scalars
from sppo.report.provenance import seeds_text
from sppo.report.statistics import probability_of_improvement
from sppo.report.summary import normalisation_bounds
from sppo.report.tables import number
from sppo.report.tensorboard import run_name

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "mujoco"
GRID, NODECAY, MIRROR, SYMMETRIC = (
    "mujoco-500k",
    "mujoco-500k-nodecay",
    "mujoco-500k-mirror",
    "mujoco-500k-symmetric",
)
#: mean returns of PPO at 1M steps, from the literature; versions of the environments differ
PUBLISHED = {
    "Tianshou (10 seeds)": {
        "Ant": "3258 ± 1079",
        "HalfCheetah": "5784 ± 1244",
        "Hopper": "2609 ± 701",
        "Walker2d": "3589 ± 757",
        "Humanoid": "787 ± 194",
    },
    "Spinning Up": {"Ant": "650", "HalfCheetah": "1670", "Hopper": "1850", "Walker2d": "1230"},
}

_KL = "train/approx_kl"
_MARKED = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
READMES = (ROOT / "README.md", ROOT / "benchmarks" / "README.md")


def inventory(studies: dict[str, Runs]) -> Table:
    """How many runs there are of what."""
    header = ("study", "environment", "steps", "cells", "runs", "seeds")
    rows = []
    for name, runs in studies.items():
        for env in runs.environments:
            cells = [cell for key, cell in runs.cells.items() if key[0] == env]
            seeds = seeds_text(run.seed for cell in cells for run in cell.completed)
            count = sum(cell.n for cell in cells)
            rows.append((name, env, f"{cells[0].steps:,}", str(len(cells)), str(count), seeds))
    return header, rows


def in_every_environment(runs: Runs) -> Table:
    """Claim (a): at least as good as PPO in all environments."""
    header = ("environment", "algorithm", "runs per setting", "settings", "PPO, mean", "mean",
              "difference, 95 % interval", "better in", "P(better)")  # fmt: skip
    rows = []
    for env in runs.environments:
        for label in VARIANTS:
            settings = runs.settings(env, BASELINE, label)
            if not settings:
                continue
            gaps = [runs.difference(env, label, setting) for setting in settings]
            results = [
                [list(runs.results(env, name, setting).values()) for setting in settings]
                for name in (label, BASELINE)
            ]
            better = probability_of_improvement(results[0], results[1])
            counts = sorted({len(one) for side in results for one in side})
            rows.append((
                env, display_name(label), "–".join(str(n) for n in {counts[0]: 0, counts[-1]: 0}),
                str(len(settings)),
                number(float(np.mean([runs.mean(env, BASELINE, s) for s in settings]))),
                number(float(np.mean([runs.mean(env, label, s) for s in settings]))), shown(over(gaps)),
                better_in(gaps), shown(better, 2),
            ))  # fmt: skip
    return header, rows


def all_environments(runs: Runs, bounds: Bounds, but: str = "") -> Table:
    """Claim (a) pooled: scaled differences from PPO over environments and settings."""
    header = ("algorithm", "m", "pairs", "scaled difference, 95 % interval", "better in")
    units = {
        label: [
            (setting[0], lead)
            for env, gaps in leads_over_ppo(runs, bounds, label).items()
            if env != but
            for setting, lead in gaps.items()
        ]
        for label in VARIANTS
    }
    rows = []
    for label, leads in units.items():
        passes = sorted({m for m, _ in leads})
        for chosen in [[m] for m in passes] + ([passes] if len(passes) > 1 else []):
            gaps = [lead for m, lead in leads if m in chosen]
            name = ", ".join(str(m) for m in chosen)
            rows.append((display_name(label), name, str(len(gaps)), shown(over(gaps), 2), better_in(gaps)))
    return header, rows


def lead_by_setting(runs: Runs, bounds: Bounds) -> Table:
    """The lead over PPO at each m and epsilon, over environments."""
    settings = sorted({s for env in runs.environments for s in runs.settings(env, BASELINE)})
    header = ("algorithm", "m", *(f"ε = {clip}" for clip in sorted({clip for _, clip in settings})))
    rows = []
    for label in VARIANTS:
        found = leads_over_ppo(runs, bounds, label).values()
        for m in sorted({m for m, _ in settings}):
            leads = [
                over(gaps[setting] for gaps in found if setting in gaps)
                for setting in settings
                if setting[0] == m
            ]
            rows.append((display_name(label), str(m), *(shown(lead, 2) for lead in leads)))
    return header, rows


def growth_of_lead(runs: Runs, bounds: Bounds) -> Table:
    """Claim (b): the lead grows with m and with epsilon."""
    header = ("algorithm", "lead at m = 100 minus at m = 10", "pairs", "slope of the lead in ε", "lines")
    rows = []
    for label in VARIANTS:
        units = growth_in_units(runs, bounds, label)
        numbers = [text for unit in units for text in (shown(over(unit), 2), str(len(unit)))]
        rows.append((display_name(label), *numbers))
    return header, rows


def without_decay(runs: Runs, plain: Runs) -> Table:
    """Claim (c): what is left without learning-rate decay and gradient clipping."""
    header = ("environment", "algorithm", "settings", "runs", "with both, mean",
              "without, mean", "change, 95 % interval", "kept")  # fmt: skip
    rows = []
    for env in plain.environments:
        for label in (BASELINE, *VARIANTS):
            changes = changes_without_decay(runs, plain, env, label)
            if not changes:
                continue
            count = sum(cell.n for key, cell in plain.cells.items() if key[:2] == (env, label))
            before, after = np.mean(changes, axis=0)
            rows.append((
                env, display_name(label), str(len(changes)), str(count), number(float(before)),
                number(float(after)), shown(over(b - a for a, b in changes)), share_text(kept(changes)),
            ))  # fmt: skip
    return header, rows


def distance_of_updates(runs: Runs, directory: Path) -> Table:
    """How far an update takes the policy: the divergence in its last pass, from the TensorBoard files."""
    settings = sorted({key[2:4] for key in runs.cells})
    header = ("environment", "algorithm", *(f"m = {m}, ε = {clip}" for m, clip in settings))
    rows = []
    for env, label in dict.fromkeys(key[:2] for key in runs.cells):
        line = [env, display_name(label)]
        for setting in settings:
            cell = runs.cells.get((env, label, *setting, None))
            found = (
                [read_scalars(directory / run_name(cell, run), [_KL])[0] for run in cell.runs] if cell else []
            )
            values = [float(np.median(one[_KL].values)) for one in found if _KL in one]
            line.append(f"{np.mean(values):.2g}" if values else "–")
        rows.append(line)
    return header, rows


def settings_ranked(runs: Runs, bounds: Bounds) -> Table:
    """Which algorithm, m and epsilon to start from: scaled results over the environments run in full."""
    everything = {key[1:] for key in runs.cells}
    environments = [
        env for env in runs.environments if everything == {key[1:] for key in runs.cells if key[0] == env}
    ]
    header = ("algorithm", "m", "ε", "scaled result, mean over environments", *environments)
    found = []
    for label, m, clip, _ in everything if environments else ():
        means = {env: runs.mean(env, label, (m, clip)) for env in environments}
        scores = [(means[env] - bounds[env][0]) / (bounds[env][1] - bounds[env][0]) for env in environments]
        found.append((over(scores), label, m, clip, means))
    found.sort(key=lambda row: -row[0].value)
    rows = [
        (
            display_name(label),
            str(m),
            str(clip),
            shown(score, 2),
            *(number(means[env]) for env in environments),
        )
        for score, label, m, clip, means in found
    ]
    return header, rows


def symmetric_bounds(runs: Runs, symmetric: Runs) -> Table:
    """PPO with its own and with symmetric bounds."""
    header = (
        "environment",
        "m",
        "ε",
        "n",
        "PPO [1−ε, 1+ε]",
        "n",
        "PPO [1/(1+ε), 1+ε]",
        "n",
        "sPPO one-sided",
    )
    rows = []
    for env, label, m, clip, _ in symmetric.cells:
        line = [env, str(m), str(clip)]
        for source, name in ((runs, BASELINE), (symmetric, label), (runs, VARIANTS[1])):
            cell = source.cells.get((env, name, m, clip, None))
            line += [str(cell.n), shown(over(cell.finals))] if cell else ["0", "–"]
        rows.append(line)
    return header, rows


def effect_of_symmetric_bounds(runs: Runs, symmetric: Runs) -> Table:
    """What the other lower bound changes, at small and at large clips: per setting, on shared seeds."""
    header = ("environment", "ε", "settings", "runs", "[1/(1+ε), 1+ε] minus [1−ε, 1+ε]", "better in")
    rows = []
    both = Runs(runs.cells | symmetric.cells)
    for env, label in dict.fromkeys(key[:2] for key in symmetric.cells):
        settings = both.settings(env, BASELINE, label)
        clips = sorted({clip for _, clip in settings})
        half = len(clips) // 2
        for chosen in (clips[:half], clips[half:], clips):
            units = [setting for setting in settings if setting[1] in chosen]
            gaps = [both.difference(env, label, setting) for setting in units]
            count = sum(len(both.results(env, label, setting)) for setting in units)
            rows.append((
                env, ", ".join(map(str, chosen)), str(len(gaps)), str(count), shown(over(gaps)),
                better_in(gaps),
            ))  # fmt: skip
    return header, rows


def divergences(mirror: Runs, runs: Runs) -> Table:
    """MDPO and sMDPO without a clip and TRPO, with the clipped algorithms at the same m beside them."""
    header = ("environment", "algorithm", "η", "ε", "n", "result, 95 % interval")
    rows = []
    for env in mirror.environments:
        rows += [
            (env, display_name(label), "–" if eta is None else str(eta), "–", *_n_and_result(cell))
            for label in order_labels(key[1] for key in mirror.cells)
            for (where, name, _, _, eta), cell in mirror.cells.items()
            if (where, name) == (env, label)
        ]
        rows += [
            (env, display_name(label), "–", str(clip), *_n_and_result(cell))
            for label in (BASELINE, *VARIANTS)
            for (where, name, m, clip, _), cell in runs.cells.items()
            if (where, name, m) == (env, label, 10) and clip in (0.3, 0.5)
        ]
    return header, rows


def _n_and_result(cell: Cell) -> tuple[str, str]:
    return str(cell.n), shown(over(cell.finals))


def beside_the_literature(runs: Runs) -> Table:
    """Our PPO's results beside published ones, which are at 1M steps."""
    header = (
        "environment",
        "steps here",
        "PPO, m = 10, ε = 0.3",
        "best PPO cell",
        "best sPPO cell",
        *PUBLISHED,
    )
    rows = []
    for env in runs.environments:
        best = {}
        for family in ((BASELINE,), VARIANTS):
            keys = [key for key in runs.cells if key[0] == env and key[1] in family]
            key = max(keys, key=lambda key: runs.cells[key].finals.mean())
            name = f"{display_name(key[1])}, m = {key[2]}, ε = {key[3]}"
            best[family] = f"{shown(over(runs.cells[key].finals))} ({name}, n = {runs.cells[key].n})"
        usual = runs.cells.get((env, BASELINE, 10, 0.3, None))
        rows.append((
            env, f"{next(c.steps for k, c in runs.cells.items() if k[0] == env):,}",
            f"{shown(over(usual.finals))} (n = {usual.n})" if usual else "–", best[BASELINE,], best[VARIANTS],
            *(column.get(short_name(env), "–") for column in PUBLISHED.values()),
        ))  # fmt: skip
    return header, rows


def markdown(table: Table) -> str:
    header, rows = table
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def fill(text: str, tables: dict[str, Table]) -> str:
    """A page with the tables between its markers made anew; a marker without a table is an error."""

    def replacement(found: re.Match[str]) -> str:
        heading = found[2]
        if heading not in tables:
            raise KeyError(f"no table {heading!r}: there are {', '.join(tables)}")
        return f"{found[1]}{markdown(tables[heading])}{found[3]}"

    return _MARKED.sub(replacement, text)


def all_tables(root: Path) -> dict[str, Table]:
    """Every table for which there are runs, by its heading."""
    studies = {name: Runs.load(name, root) for name in (GRID, NODECAY, MIRROR, SYMMETRIC)}
    runs, plain, mirror, symmetric = studies.values()
    bounds = normalisation_bounds(runs.cells.values())
    made: dict[str, Callable[[], Table]] = {
        "The runs there are": lambda: inventory(studies),
        "Verdicts": lambda: verdicts(runs, plain, bounds),
        "Verdicts by the mean over all evaluations": lambda: verdicts(
            replace(runs, whole=True), replace(plain, whole=True), bounds
        ),
        "(a) Against PPO, environment by environment": lambda: in_every_environment(runs),
        "(a) All environments together": lambda: all_environments(runs, bounds),
        "(a) Without Ant": lambda: all_environments(runs, bounds, but="Ant-v5"),
        "(b) Does the lead grow with m and with ε?": lambda: growth_of_lead(runs, bounds),
        "Lead over PPO at each setting (scaled returns, mean over environments)": lambda: lead_by_setting(
            runs, bounds
        ),
        "(c) Without learning-rate decay and gradient clipping": lambda: without_decay(runs, plain),
        "(c) Against PPO, without decay and clipping": lambda: in_every_environment(plain),
        "(c) Together": lambda: all_environments(plain, bounds),
        "(c) Does the lead grow with m and with ε, without decay and clipping?": lambda: growth_of_lead(
            plain, bounds
        ),
        "(c) Lead over PPO at each setting, without both": lambda: lead_by_setting(plain, bounds),
        "How far updates go (median of `train/approx_kl` over training, runs in `tensorboard/`)": (
            lambda: distance_of_updates(runs, root / GRID / "tensorboard" / "runs")
        ),
        "Where to start": lambda: settings_ranked(runs, bounds),
        "PPO with symmetric bounds": lambda: symmetric_bounds(runs, symmetric),
        "What symmetric bounds change": lambda: effect_of_symmetric_bounds(runs, symmetric),
        "The divergence instead of the clip, and TRPO": lambda: divergences(mirror, runs),
        "Beside published results": lambda: beside_the_literature(runs),
    }
    tables = {heading: make() for heading, make in made.items()}
    return {heading: table for heading, table in tables.items() if table[1]}


def main() -> None:
    """Write the tables."""
    tables = all_tables(RESULTS)
    text = "# Claim by claim\n\nMade by `python benchmarks/mujoco_claims.py` from the studies' CSV files.\n"
    for heading, table in tables.items():
        text += f"\n## {heading}\n\n{markdown(table)}"
    (RESULTS / "claims.md").write_text(text)
    content = {
        heading: [dict(zip(header, row, strict=True)) for row in rows]
        for heading, (header, rows) in tables.items()
    }
    (RESULTS / "claims.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    for page in READMES:
        page.write_text(fill(page.read_text(), tables))
    print(text)


if __name__ == "__main__":
    main()
