"""A whole hyper-parameter grid at once: ``sweep(mdp, objective, method, eta=[...], alpha=[...], ...)``.

Each setting runs in compiled code that releases Python's global lock, so threads use every core; a setting is
the same call as :func:`~sppo.exact.solver.solve`, and gives the same numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from sppo.arguments import integer
from sppo.exact.evaluation import Array
from sppo.exact.framework import FMA
from sppo.exact.mdp import TabularMDP
from sppo.exact.solver import Plan, listed, make_plan, run

#: Final values closer than this (relative to 1 or to themselves) count as equal.
TIE = 1e-9


@dataclass(frozen=True)
class SweepResult:
    """A grid of runs.

    :param axes: hyper-parameter -> its grid, in the order of the dimensions of ``final``; ``inner_steps`` is
        one of them if several numbers were given
    :param final: J before the last update, ``values[-1]``, of every setting; shape: the lengths of the axes
    :param curves: the values of every setting, shape ``final.shape + (iterations,)``; only if asked for
    :param best_setting: hyper-parameters of the best setting: of the settings that end within 1e-9 of the
        highest value, the one with the highest mean value, that is, the fastest
    :param best_curve: its values
    """

    objective: str
    method: str
    axes: dict[str, tuple[object, ...]]
    final: Array
    best_setting: dict[str, Any]
    best_curve: Array
    curves: Array | None = None

    @property
    def best_value(self) -> float:
        """J before the last update of the best setting."""
        return float(self.best_curve[-1])

    def best_along(self, axis: str) -> Array:
        """For every value of ``axis`` the best final value over all other axes."""
        if axis not in self.axes:
            raise KeyError(f"{axis!r} is not an axis of this sweep; its axes are {', '.join(self.axes)}")
        return self.final.max(axis=tuple(i for i, name in enumerate(self.axes) if name != axis))

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}: {len(values)}" for name, values in self.axes.items())
        best = listed(self.best_setting)
        return f"SweepResult({self.objective}, {self.method}; {axes}; best J {self.best_value:.6g} at {best})"


def sweep(
    mdp: TabularMDP,
    objective: str | FMA,
    method: str,
    *,
    iterations: int,
    inner_steps: int | Sequence[int] = 1,
    keep_curves: bool = False,
    progress: bool = True,
    threads: int | None = None,
    initial_logits: npt.ArrayLike | None = None,
    **grids: object,
) -> SweepResult:
    """Run :func:`~sppo.exact.solver.solve` for every combination of hyper-parameters.

    :param inner_steps: m, or several to make it an axis
    :param keep_curves: keep every learning curve, not only the best
    :param progress: count the finished runs on standard error
    :param threads: worker threads; the number of usable cores by default
    :param initial_logits: θ_0, shared by all
    :param grids: hyper-parameters of ``solve``: a list, tuple or array is a grid (an axis), anything else is
        fixed
    """
    integer("iterations", iterations)
    grids = {name: _plain(values) for name, values in {**grids, "inner_steps": inner_steps}.items()}
    axes = {name: values for name, values in grids.items() if isinstance(values, tuple)}
    if not axes:
        raise ValueError("nothing to sweep: give at least one hyper-parameter as a list")
    for name, values in axes.items():
        if not values:
            raise ValueError(f"the grid of {name} is empty")
    settings = [dict(zip(axes, point, strict=True)) for point in product(*axes.values())]
    plans = [make_plan(mdp, objective, method, {**grids, **setting}) for setting in settings]

    def execute(plan: Plan) -> Array:
        return run(mdp, plan, iterations, initial_logits).values

    curves, name = np.empty((len(plans), iterations)), plans[0].objective
    cores = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    with ThreadPoolExecutor(threads or cores) as pool:
        # the first call alone: it compiles, or loads from the cache, what all others use
        for i, curve in enumerate(chain([execute(plans[0])], pool.map(execute, plans[1:]))):
            curves[i] = curve
            if progress:
                print(f"\r{name} {method}: {i + 1}/{len(plans)}", end="", file=sys.stderr, flush=True)
    if progress:
        print(file=sys.stderr)
    final = curves[:, -1]
    equal = final >= final.max() - TIE * max(1.0, abs(final.max()))
    best = int(np.where(equal, curves.mean(axis=1), -np.inf).argmax())
    shape = tuple(len(values) for values in axes.values())
    kept = curves.reshape(*shape, iterations) if keep_curves else None
    best_curve = curves[best].copy()
    return SweepResult(name, method, axes, final.reshape(shape).copy(), settings[best], best_curve, kept)


def _plain(value: object) -> object:
    """A grid as a tuple of Python's own numbers, anything else as it is."""
    if isinstance(value, list | tuple | range) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return tuple(v.item() if isinstance(v, np.generic) else v for v in value)
    return value
