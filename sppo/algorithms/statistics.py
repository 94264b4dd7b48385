"""What an update measures of itself, minibatch by minibatch."""

from __future__ import annotations

import math

import numpy as np
import torch as th

#: The measurements of one minibatch, in the order in which they are kept.
MEASUREMENTS = (
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


class UpdateStatistics:
    """Collects :data:`MEASUREMENTS` during an update and averages them at its end.

    Values stay tensors until the end, so that an update waits for the device once, not ten times per
    minibatch.
    """

    def __init__(self) -> None:
        self._rows: list[th.Tensor] = []
        self._last_epoch_start = 0
        #: minibatches whose loss or gradient was not finite, and which therefore changed nothing
        self.skipped = 0

    def start_epoch(self) -> None:
        """Mark the beginning of a pass over the buffer."""
        self._last_epoch_start = len(self._rows)

    def add(self, **measurements: th.Tensor) -> None:
        """Keep one minibatch's measurements."""
        self._rows.append(th.stack([measurements[name].detach() for name in MEASUREMENTS]))

    def extend(self, table: np.ndarray) -> None:
        """Keep several minibatches' measurements, one row each, columns as in :data:`MEASUREMENTS`."""
        self._rows.extend(th.from_numpy(table).unbind())

    def averages(self) -> dict[str, float]:
        """One number per measurement, following Stable-Baselines3's conventions.

        Means over the whole update, except ``loss`` (the last minibatch's), ``approx_kl`` (the mean
        over the last pass) and ``log_ratio_max`` (the largest). Minibatches with a loss that is not
        finite are left out.
        """
        if not self._rows:
            return dict.fromkeys(MEASUREMENTS, math.nan)
        table = th.stack(self._rows).cpu().numpy().astype(np.float64)
        start = self._last_epoch_start
        finite = np.isfinite(table[:, MEASUREMENTS.index("loss")])
        if finite[start:].any():
            start = int(finite[:start].sum())
            table = table[finite]
        columns = dict(zip(MEASUREMENTS, table.T, strict=True))
        result = {name: float(column.mean()) for name, column in columns.items()}
        result["loss"] = float(columns["loss"][-1])
        result["approx_kl"] = float(columns["approx_kl"][start:].mean())
        result["log_ratio_max"] = float(columns["log_ratio_max"].max())
        return result
