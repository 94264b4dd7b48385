"""What an update measures of itself, minibatch by minibatch: one structure for both engines."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch as th

from sppo.surrogates import Sample, Surrogate

#: the measurements of one minibatch, by name
MEASUREMENTS = np.dtype(
    [
        (name, np.float64)
        for name in (
            "loss",
            "policy_loss",
            "value_loss",
            "entropy_loss",
            "approx_kl",
            "clipped_above",
            "clipped_below",
            "log_ratio_mean",
            "log_ratio_max",
            "divergence",
        )
    ]
)
#: those that every surrogate has; ``divergence`` is the compiled family's own
COMMON = tuple(name for name in MEASUREMENTS.names or () if name != "divergence")


class UpdateStatistics:
    """Collects the measurements of an update and averages them at its end.

    Values stay tensors until the end, so that an update waits for the device once, not ten times per
    minibatch.
    """

    def __init__(self) -> None:
        self._rows: list[th.Tensor] = []
        self._further: dict[str, list[th.Tensor]] = {}
        self._last_epoch_start = 0
        #: minibatches whose loss or gradient was not finite, and which therefore changed nothing
        self.skipped = 0

    def start_epoch(self) -> None:
        """Mark the beginning of a pass over the buffer."""
        self._last_epoch_start = len(self._rows)

    def add(self, surrogate: Surrogate, sample: Sample, **losses: th.Tensor) -> None:
        """Keep one minibatch's measurements: its losses, and how the policy has moved."""
        with th.no_grad():
            above, below = surrogate.outside(sample)
            distance = sample.log_ratio.abs()
            measured = {
                **losses,
                "clipped_above": above.float().mean(),
                "clipped_below": below.float().mean(),
                "log_ratio_mean": distance.mean(),
                "log_ratio_max": distance.max(),
            }
            self._rows.append(th.stack([measured[name].detach() for name in COMMON]))
            for name, value in surrogate.measured(sample).items():
                self._further.setdefault(name, []).append(value.detach())

    def extend(self, table: np.ndarray, further: Mapping[str, np.ndarray]) -> None:
        """Keep several minibatches' :data:`MEASUREMENTS`, and the surrogate's own."""
        columns = np.stack([table[name] for name in COMMON], axis=1)
        self._rows.extend(th.from_numpy(columns).unbind())
        for name, values in further.items():
            self._further.setdefault(name, []).extend(th.from_numpy(values).unbind())

    def averages(self) -> dict[str, float]:
        """One number per common measurement, following Stable-Baselines3's conventions.

        Means over the whole update, except ``loss`` (the last minibatch's), ``approx_kl`` (the mean
        over the last pass) and ``log_ratio_max`` (the largest). Minibatches with a loss that is not
        finite are left out.
        """
        if not self._rows:
            return dict.fromkeys(COMMON, math.nan)
        table = th.stack(self._rows).cpu().numpy().astype(np.float64)
        start = self._last_epoch_start
        finite = np.isfinite(table[:, COMMON.index("loss")])
        if finite[start:].any():
            start = int(finite[:start].sum())
            table = table[finite]
        columns = dict(zip(COMMON, table.T, strict=True))
        result = {name: float(column.mean()) for name, column in columns.items()}
        result["loss"] = float(columns["loss"][-1])
        result["approx_kl"] = float(columns["approx_kl"][start:].mean())
        result["log_ratio_max"] = float(columns["log_ratio_max"].max())
        return result

    def further(self) -> dict[str, float]:
        """Means of what the surrogate measures beyond that, over the minibatches where it is finite."""
        tables = {name: th.stack(values).cpu().numpy() for name, values in self._further.items()}
        return {
            name: float(values[np.isfinite(values)].mean()) if np.isfinite(values).any() else math.nan
            for name, values in tables.items()
        }
