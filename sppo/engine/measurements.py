"""What an update measures of itself, minibatch by minibatch: one structure for both engines."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch as th

from sppo.surrogates import Sample, Surrogate

#: what is measured of a minibatch, whatever the surrogate
COMMON = (
    *("loss", "policy_loss", "value_loss", "entropy_loss", "approx_kl"),
    *("clipped_above", "clipped_below", "log_ratio_mean", "log_ratio_max"),
)
#: the same and the compiled family's own, by name
MEASUREMENTS = np.dtype([(name, np.float64) for name in (*COMMON, "divergence")])


class UpdateStatistics:
    """Collects the measurements of an update and averages them at its end.

    Values stay tensors until the end, so that an update waits for the device once, not ten times per
    minibatch.
    """

    def __init__(self) -> None:
        #: tables with a row for each minibatch
        self._rows: list[th.Tensor] = []
        #: per row: whether the actor was trained, whether the critic was, and in which pass
        self._trained: list[tuple[bool, bool, int]] = []
        self._further: dict[str, list[th.Tensor]] = {}
        self._epoch = 0
        #: minibatches whose loss or gradient was not finite, and which therefore changed nothing
        self.skipped = 0

    def start_epoch(self) -> None:
        """Mark the beginning of a pass over the buffer."""
        self._epoch += 1

    def add(
        self, surrogate: Surrogate, sample: Sample, trained: tuple[bool, bool], **losses: th.Tensor
    ) -> None:
        """Keep one minibatch's measurements: its losses, and how the policy has moved.

        :param trained: whether the actor is trained with it, and whether the critic is
        """
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
            self._rows.append(th.stack([measured[name].detach() for name in COMMON]).unsqueeze(0))
            self._trained.append((*trained, self._epoch))
            for name, value in surrogate.measured(sample).items() if trained[0] else ():
                self._further.setdefault(name, []).append(value.detach().reshape(1))

    def extend(
        self, table: np.ndarray, further: Mapping[str, np.ndarray], trained: tuple[bool, bool]
    ) -> None:
        """Keep several minibatches' :data:`MEASUREMENTS`, and the surrogate's own; see :meth:`add`."""
        self._rows.append(th.from_numpy(np.stack([table[name] for name in COMMON], axis=1)))
        self._trained.extend([(*trained, self._epoch)] * len(table))
        for name, values in further.items() if trained[0] else ():
            self._further.setdefault(name, []).append(th.from_numpy(values))

    def averages(self) -> dict[str, float]:
        """One number per common measurement, following Stable-Baselines3's conventions.

        Means over the minibatches that the half in question was trained with, except ``loss`` (the last
        minibatch's), ``approx_kl`` (the mean over the actor's last pass) and ``log_ratio_max`` (the
        largest). Minibatches with a loss that is not finite are left out.
        """
        if not self._rows:
            return dict.fromkeys(COMMON, math.nan)
        table = th.cat(self._rows).cpu().numpy().astype(np.float64)
        actor, critic, epoch = np.array(self._trained, np.int64).T
        finite = np.isfinite(table[:, COMMON.index("loss")])
        last = epoch == epoch[actor > 0].max(initial=0)
        # Where nothing was finite, what was not is shown.
        actor, critic, last = (
            rows * finite if (rows * finite).any() else rows for rows in (actor, critic, last)
        )
        rows_of = {**dict.fromkeys(COMMON, actor), "approx_kl": last * actor}
        rows_of |= {"value_loss": critic, "loss": np.maximum(actor, critic)}
        columns = {name: table[rows_of[name] > 0, k] for k, name in enumerate(COMMON)}
        result = {name: float(column.mean()) if len(column) else math.nan for name, column in columns.items()}
        result["loss"] = float(columns["loss"][-1])
        result["log_ratio_max"] = float(columns["log_ratio_max"].max(initial=-math.inf))
        return result

    def further(self) -> dict[str, float]:
        """Means of what the surrogate measures beyond that, over the minibatches where it is finite."""
        tables = {name: th.cat(values).cpu().numpy() for name, values in self._further.items()}
        return {
            name: float(values[np.isfinite(values)].mean()) if np.isfinite(values).any() else math.nan
            for name, values in tables.items()
        }
