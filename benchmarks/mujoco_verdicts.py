"""The paper's claims, and what the intervals say of each.

A claim holds, or is refuted, where its interval lies on one side of zero: the interval of the lead over PPO
for (a), of the lead's growth for (b), and for (c) of what is left beyond a tenth (PPO) and beyond three
quarters (sPPO).
"""

from __future__ import annotations

from collections.abc import Iterator

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

from sppo.report.statistics import Estimate

#: claim (c) in numbers: to fail is to keep less than the first, to degrade mildly more than the second
FAILS, MILD = 0.1, 0.75

_NAMES = dict(zip(VARIANTS, ("two-sided sPPO", "one-sided sPPO"), strict=True))
_AXES = (
    ("the number of passes m", "at m = 100 minus at m = 10", "pairs"),
    ("the clip ε", "per unit of ε", "lines"),
)
#: claim, verdict, evidence
Row = tuple[str, str, str]


def verdicts(runs: Runs, plain: Runs, bounds: Bounds) -> Table:
    """Every claim of which there are runs."""
    header = ("claim", "verdict", "evidence: scaled, mean and 95 % interval")
    return header, [
        *_as_good_as_ppo(runs, bounds),
        *_growing_lead(runs, bounds),
        *_left_without_decay(runs, plain, bounds),
        *_ahead_without_decay(plain, bounds),
    ]


def _as_good_as_ppo(runs: Runs, bounds: Bounds) -> Iterator[Row]:
    for label, name in _NAMES.items():
        leads = leads_over_ppo(runs, bounds, label)
        pooled = [lead for gaps in leads.values() for lead in gaps.values()]
        if not pooled:
            continue
        ahead = [short_name(env) for env, gaps in leads.items() if np.mean(list(gaps.values())) > 0]
        where = f"ahead on average in {len(ahead)} of {len(leads)} environments"
        where += f" ({', '.join(ahead)})" if ahead else ""
        evidence = f"{shown(over(pooled), 3)} over {len(pooled)} pairs; {where}"
        yield f"(a) on average {name} is at least as good as PPO", _decided(over(pooled)), evidence


def _growing_lead(runs: Runs, bounds: Bounds) -> Iterator[Row]:
    growth = {label: growth_in_units(runs, bounds, label) for label in VARIANTS}
    for axis, (what, kind, unit) in enumerate(_AXES):
        for label, name in _NAMES.items():
            found = growth[label][axis]
            if found:
                evidence = f"{shown(over(found), 3)} {kind}, {len(found)} {unit}"
                yield f"(b) the lead of {name} grows with {what}", _decided(over(found)), evidence


def _left_without_decay(runs: Runs, plain: Runs, bounds: Bounds) -> Iterator[Row]:
    for label in (BASELINE, *VARIANTS):
        changes = {env: changes_without_decay(runs, plain, env, label) for env in plain.environments}
        shares = [
            f"{share_text(kept(pairs))} on {short_name(env)}" for env, pairs in changes.items() if pairs
        ]
        scaled = [
            np.asarray(pair) / (bounds[env][1] - bounds[env][0]) for env in changes for pair in changes[env]
        ]
        if not scaled:
            continue
        if label == BASELINE:
            claim = "(c) without decay and clipping PPO fails"
            decided = _decided(over(FAILS * before - after for before, after in scaled))
        else:
            claim = f"(c) without them {_NAMES[label]} degrades only mildly"
            decided = _decided(over(after - MILD * before for before, after in scaled))
        change = shown(over(after - before for before, after in scaled), 3)
        yield claim, decided, f"keeps {', '.join(shares)}; change {change} over {len(scaled)} settings"


def _ahead_without_decay(plain: Runs, bounds: Bounds) -> Iterator[Row]:
    for label, name in _NAMES.items():
        leads = leads_over_ppo(plain, bounds, label)
        pooled = [lead for gaps in leads.values() for lead in gaps.values()]
        if pooled:
            evidence = f"{shown(over(pooled), 3)} over {len(pooled)} pairs, better in {better_in(pooled)}"
            yield f"(c) without them {name} is ahead of PPO", _decided(over(pooled)), evidence


def _decided(estimate: Estimate) -> str:
    # Rounding gives differences that are all zero a tiny value and a tinier interval.
    if not estimate.has_interval or estimate.low <= 0 <= estimate.high or abs(estimate.value) < 1e-12:
        return "open"
    return "**holds**" if estimate.low > 0 else "**refuted**"
