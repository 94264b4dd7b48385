"""Makes ``rliable_reference.json``: what rliable 1.2.0 computes from small made-up score matrices.

rliable does not import beside the pandas that the newest releases bring along, so this runs in an
environment of its own, once:

    python -m venv /tmp/rliable && /tmp/rliable/bin/pip install rliable==1.2.0 "pandas<3"
    /tmp/rliable/bin/python tests/report/make_rliable_reference.py
"""

import importlib.metadata
import json
from pathlib import Path

import numpy as np

RESAMPLES = 20_000


def main() -> None:
    from rliable import library, metrics

    cases = []
    rng = np.random.default_rng(0)
    for runs, tasks in ((3, 2), (5, 5), (10, 5), (7, 3)):
        # rounded, so that there are ties within and between the two algorithms
        x = np.round(rng.gamma(2.0, size=(runs, tasks)), 1)
        y = np.round(rng.gamma(1.7, size=(runs + 1, tasks)), 1)
        thresholds = np.linspace(0, 5, 11)
        iqm = library.get_interval_estimates(
            {"x": x}, lambda scores: np.array([metrics.aggregate_iqm(scores)]), reps=RESAMPLES
        )
        improvement = library.get_interval_estimates(
            {"x": (x, y)},
            lambda a, b: np.array([metrics.probability_of_improvement(a, b)]),
            reps=RESAMPLES // 4,
        )
        profile = library.create_performance_profile({"x": x}, thresholds, reps=RESAMPLES)
        cases.append(
            {
                "x": x.tolist(),
                "y": y.tolist(),
                "thresholds": thresholds.tolist(),
                "iqm": [float(iqm[0]["x"][0]), *iqm[1]["x"].ravel().tolist()],
                "improvement": [float(improvement[0]["x"][0]), *improvement[1]["x"].ravel().tolist()],
                "profile": [profile[0]["x"].tolist(), *profile[1]["x"].tolist()],
            }
        )
    versions = {
        name: importlib.metadata.version(name) for name in ("rliable", "arch", "numpy", "scipy", "pandas")
    }
    path = Path(__file__).with_name("rliable_reference.json")
    path.write_text(json.dumps({"versions": versions, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
