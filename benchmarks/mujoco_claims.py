"""What the published MuJoCo runs say about the paper's claims, each with an interval.

    python -m benchmarks.mujoco_claims [STUDY ...]

Reads the CSV files of the reports below ``benchmarks/results/mujoco``, writes ``claims.md`` beside them, and
puts the tables that the two READMEs show between their markers, see :mod:`benchmarks.pages`. How far updates
went is in event files, which are not in git: given study directories, what their runs say is put into
``update_distances.csv`` first.

What a difference is, and when a claim holds, is in :mod:`benchmarks.mujoco_verdicts`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.mujoco_verdicts import (
    BASELINE,
    VARIANTS,
    Runs,
    better_in,
    changes_without_decay,
    growth_in_units,
    kept,
    leads_over_ppo,
    over,
    short_name,
    verdicts,
)
from benchmarks.pages import ROOT, Table, fill_readmes, page_of
from sppo.records.run_files import TENSORBOARD
from sppo.records.studies import read_records
from sppo.report.cells import Cell, grouped, order_environments, seeds_of, span
from sppo.report.labels import order_labels
from sppo.report.provenance import seeds_text
from sppo.report.statistics import Estimate, mean_estimate, probability_of_improvement
from sppo.report.summary import Bounds, normalisation_bounds
from sppo.report.tables import number, shown, write_csv
from sppo.report.tensorboard import read_scalars

SCRIPT = "mujoco_claims"
RESULTS = ROOT / "benchmarks" / "results" / "mujoco"
STUDIES = (
    "mujoco-500k",
    "mujoco-500k-nodecay",
    "mujoco-500k-mirror",
    "mujoco-500k-symmetric",
    "mujoco-1m-ant",
)
#: mean returns of PPO at 1M steps, from the literature; versions of the environments differ
LITERATURE = {
    "Tianshou (10 seeds)": {
        "Ant": "3258 ± 1079",
        "HalfCheetah": "5784 ± 1244",
        "Hopper": "2609 ± 701",
        "Walker2d": "3589 ± 757",
        "Humanoid": "787 ± 194",
    },
    "Spinning Up": {"Ant": "650", "HalfCheetah": "1670", "Hopper": "1850", "Walker2d": "1230"},
}
#: medians of ``train/approx_kl`` over the training of a run; the event files are not published
DISTANCES = "mujoco-500k/update_distances.csv"

_KL = "train/approx_kl"
_DISTANCES_HEADER = ("hash", "env", "algorithm", "m", "epsilon", "seed", "approx_kl")


def inventory(studies: dict[str, Runs]) -> Table:
    """How many runs there are of what."""
    rows = []
    for name, runs in studies.items():
        for env, cells in grouped(runs.cells.values(), lambda cell: cell.env).items():
            counts = (str(len(cells)), str(sum(cell.n for cell in cells)))
            rows.append((name, env, f"{cells[0].steps:,}", *counts, seeds_text(seeds_of(cells))))
    return ("study", "environment", "steps", "cells", "runs", "seeds"), rows


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
            sides = [
                [list(runs.results(env, name, s).values()) for s in settings] for name in (label, BASELINE)
            ]
            counts = [len(one) for side in sides for one in side]
            means = [float(np.mean([np.mean(one) for one in side])) for side in sides]
            rows.append((
                env, runs.title(label), span(counts, "–"),
                str(len(settings)), number(means[1]), number(means[0]), over(gaps), better_in(gaps),
                shown(probability_of_improvement(sides[0], sides[1]), 2),
            ))  # fmt: skip
    return header, rows


def all_environments(runs: Runs, bounds: Bounds, but: str = "") -> Table:
    """Claim (a) pooled: scaled differences from PPO over environments and settings."""
    rows = []
    for label in VARIANTS:
        leads = [
            (setting[0], lead)
            for env, gaps in leads_over_ppo(runs, bounds, label).items()
            if env != but
            for setting, lead in gaps.items()
        ]
        passes = sorted({m for m, _ in leads})
        for chosen in [[m] for m in passes] + ([passes] if len(passes) > 1 else []):
            gaps = [lead for m, lead in leads if m in chosen]
            name = ", ".join(str(m) for m in chosen)
            rows.append((runs.title(label), name, str(len(gaps)), over(gaps, 2), better_in(gaps)))
    return ("algorithm", "m", "pairs", "scaled difference, 95 % interval", "better in"), rows


def lead_by_setting(runs: Runs, bounds: Bounds) -> Table:
    """The lead over PPO at each m and epsilon, over environments."""
    settings = {s for env in runs.environments for s in runs.settings(env, BASELINE)}
    passes, clips = (sorted({s[axis] for s in settings}) for axis in (0, 1))
    rows = []
    for label in VARIANTS:
        found = leads_over_ppo(runs, bounds, label).values()
        for m in passes:
            leads = [over((gaps[m, clip] for gaps in found if (m, clip) in gaps), 2) for clip in clips]
            rows.append((runs.title(label), str(m), *leads))
    return ("algorithm", "m", *(f"ε = {clip}" for clip in clips)), rows


def growth_of_lead(runs: Runs, bounds: Bounds) -> Table:
    """Claim (b): the lead grows with m and with epsilon."""
    header = ("algorithm", "lead at m = 100 minus at m = 10", "pairs", "slope of the lead in ε", "lines")
    rows = []
    for label in VARIANTS:
        units = growth_in_units(runs, bounds, label)
        numbers = [text for unit in units for text in (over(unit, 2), str(len(unit)))]
        rows.append((runs.title(label), *numbers))
    return header, rows


def without_decay(runs: Runs, plain: Runs) -> Table:
    """Claim (c): what is left without learning-rate decay and gradient clipping."""
    header = ("environment", "algorithm", "settings", "runs", "with both, mean",
              "without, mean", "change, 95 % interval", "kept")  # fmt: skip
    rows = []
    for env in plain.environments:
        for label in (BASELINE, *VARIANTS):
            changes = changes_without_decay(runs, plain, env, label)
            if changes:
                count = sum(cell.n for cell in plain.of(env, label))
                before, after = np.mean(changes, axis=0)
                rows.append((
                    env, plain.title(label), str(len(changes)), str(count), number(float(before)),
                    number(float(after)), over(b - a for a, b in changes), kept(changes),
                ))  # fmt: skip
    return header, rows


def read_distances(directories: Iterable[Path], root: Path) -> None:
    """Put what the event files of these studies say beside what is published already."""
    found = {row[0]: row for row in published_distances(root)}
    for run in (run for directory in directories for run in read_records(directory).runs):
        curves = read_scalars(run.path / TENSORBOARD, [_KL]) if run.path and run.status == "completed" else {}
        if _KL in curves:
            setting = run.parameters["n_epochs"], run.parameters["clip_range"]
            values = (run.hash, run.env, run.algorithm, *setting, run.seed)
            found[run.hash] = (*map(str, values), f"{np.median(curves[_KL].values):.4g}")
    ordered = sorted(found.values(), key=lambda row: row[1:])
    write_csv(root / DISTANCES, _DISTANCES_HEADER, ordered)


def published_distances(root: Path) -> list[tuple[str, ...]]:
    """A row for each run, as published."""
    if not (root / DISTANCES).is_file():
        return []
    with (root / DISTANCES).open(encoding="utf-8", newline="") as file:
        return [tuple(row) for row in list(csv.reader(file))[1:]]


def distance_of_updates(runs: Runs, root: Path) -> Table:
    """How far an update takes the policy: the divergence in its last pass."""
    cells = grouped(published_distances(root), lambda row: row[1:5])
    settings = sorted({(float(m), float(clip)) for _, _, m, clip in cells})
    texts = {
        (env, label, float(m), float(clip)): f"{float(f'{np.mean([float(row[-1]) for row in own]):.2g}'):g}"
        for (env, label, m, clip), own in cells.items()
    }
    lines = grouped(cells, lambda key: key[:2])
    rows = []
    for env in order_environments(env for env, _ in lines):
        for label in order_labels(label for other, label in lines if other == env):
            n = span([len(cells[key]) for key in lines[env, label]], "–")
            found = (texts.get((env, label, *setting), "–") for setting in settings)
            rows.append((env, runs.title(label), n, *found))
    header = ("environment", "algorithm", "runs per setting")
    return (*header, *(f"m = {m:g}, ε = {clip:g}" for m, clip in settings)), rows


def settings_ranked(runs: Runs, bounds: Bounds) -> Table:
    """Which algorithm, m and epsilon to start from: scaled results over the environments run in full."""
    everything = {key[1:] for key in runs.cells}
    environments = [
        env for env in runs.environments if everything == {key[1:] for key in runs.cells if key[0] == env}
    ]
    found: list[tuple[Estimate, tuple[str, ...]]] = []
    for label, m, clip, eta in everything if environments else ():
        means = [runs.cells[env, label, m, clip, eta].mean.value for env in environments]
        spans = zip(means, (bounds[env] for env in environments), strict=True)
        estimate = mean_estimate([(mean - low) / (high - low) for mean, (low, high) in spans])
        texts = (shown(estimate, 2), *map(number, means))
        found.append((estimate, (runs.title(label), str(m), str(clip), *texts)))
    found.sort(key=lambda row: -row[0].value)
    header = ("algorithm", "m", "ε", "scaled result, mean over environments", *environments)
    return header, [row for _, row in found]


def symmetric_bounds(runs: Runs, symmetric: Runs) -> Table:
    """PPO with its own and with symmetric bounds."""
    header = ("environment", "m", "ε", "n", "PPO [1−ε, 1+ε]", "n", "PPO [1/(1+ε), 1+ε]", "n",
              "sPPO one-sided")  # fmt: skip
    rows = []
    for env, label, m, clip, _ in symmetric.cells:
        line = [env, str(m), str(clip)]
        for source, name in ((runs, BASELINE), (symmetric, label), (runs, "sppo-one-sided")):
            line += _n_and_result(source.cells.get((env, name, m, clip, None)))
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
            sizes = ", ".join(map(str, chosen))
            rows.append((env, sizes, str(len(gaps)), str(count), over(gaps), better_in(gaps)))
    return header, rows


def divergences(mirror: Runs, runs: Runs) -> Table:
    """MDPO and sMDPO without a clip and TRPO, with the clipped algorithms at the same m beside them."""
    rows = []
    for env in mirror.environments:
        for label in order_labels(key[1] for key in mirror.cells):
            for cell in mirror.of(env, label):
                eta = "–" if cell.setting.eta is None else str(cell.setting.eta)
                rows.append((env, mirror.title(label), eta, "–", *_n_and_result(cell)))
        for label in (BASELINE, *VARIANTS):
            for cell in runs.of(env, label):
                if cell.setting.n_epochs == 10 and cell.setting.clip_range in (0.3, 0.5):
                    clip = str(cell.setting.clip_range)
                    rows.append((env, runs.title(label), "–", clip, *_n_and_result(cell)))
    return ("environment", "algorithm", "η", "ε", "n", "result, 95 % interval"), rows


def _n_and_result(cell: Cell | None) -> tuple[str, str]:
    return (str(cell.n), shown(cell.mean)) if cell else ("0", "–")


def beside_the_literature(runs: Runs) -> Table:
    """Our PPO's results beside published ones, which are at 1M steps."""
    header = ("environment", "steps here", "PPO, m = 10, ε = 0.3", "best PPO cell", "best sPPO cell",
              *LITERATURE)  # fmt: skip
    rows = []
    for env in runs.environments:
        best = []
        for family in ((BASELINE,), VARIANTS):
            cell = max((c for label in family for c in runs.of(env, label)), key=lambda c: c.mean.value)
            setting = f"m = {cell.setting.n_epochs}, ε = {cell.setting.clip_range}"
            best.append(f"{shown(cell.mean)} ({runs.title(cell.label)}, {setting}, n = {cell.n})")
        usual = runs.cells.get((env, BASELINE, 10, 0.3, None))
        rows.append((
            env, f"{runs.of(env, BASELINE)[0].steps:,}",
            f"{shown(usual.mean)} (n = {usual.n})" if usual else "–", *best,
            *(column.get(short_name(env), "–") for column in LITERATURE.values()),
        ))  # fmt: skip
    return header, rows


def all_tables(root: Path) -> dict[str, Table]:
    """Every table for which there are runs, by its heading."""
    studies = {name: Runs.load(name, root) for name in STUDIES}
    runs, plain, mirror, symmetric, longer = studies.values()
    runs = runs.with_longer(longer)
    bounds = normalisation_bounds(runs.cells.values())
    whole, plain_whole = replace(runs, whole=True), replace(plain, whole=True)
    distances = "How far updates go (median of `train/approx_kl` over training)"
    lead = "Lead over PPO at each setting (scaled returns, mean over environments)"
    plain_growth = "(c) Does the lead grow with m and with ε, without decay and clipping?"
    tables = {
        "The runs there are": inventory(studies),
        "Verdicts": verdicts(runs, plain, bounds),
        "Verdicts by the mean over all evaluations": verdicts(whole, plain_whole, bounds),
        "(a) Against PPO, environment by environment": in_every_environment(runs),
        "(a) All environments together": all_environments(runs, bounds),
        "(a) Without Ant": all_environments(runs, bounds, but="Ant-v5"),
        "(b) Does the lead grow with m and with ε?": growth_of_lead(runs, bounds),
        lead: lead_by_setting(runs, bounds),
        "(c) Without learning-rate decay and gradient clipping": without_decay(runs, plain),
        "(c) Against PPO, without decay and clipping": in_every_environment(plain),
        "(c) Together": all_environments(plain, bounds),
        plain_growth: growth_of_lead(plain, bounds),
        "(c) Lead over PPO at each setting, without both": lead_by_setting(plain, bounds),
        distances: distance_of_updates(runs, root),
        "Where to start": settings_ranked(runs, bounds),
        "PPO with symmetric bounds": symmetric_bounds(runs, symmetric),
        "What symmetric bounds change": effect_of_symmetric_bounds(runs, symmetric),
        "The divergence instead of the clip, and TRPO": divergences(mirror, runs),
        "Beside published results": beside_the_literature(runs),
    }
    return {heading: table for heading, table in tables.items() if table[1]}


def main() -> None:
    """Write the tables."""
    if studies := sys.argv[1:]:
        read_distances(map(Path, studies), RESULTS)
    tables = all_tables(RESULTS)
    text = page_of("Claim by claim", SCRIPT, tables)
    (RESULTS / "claims.md").write_text(text, encoding="utf-8")
    fill_readmes(SCRIPT, tables)
    print(text)


if __name__ == "__main__":
    main()
