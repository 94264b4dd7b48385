"""A whole hyper-parameter grid at once: ``sweep(mdp, objective, method, eta=[...], alpha=[...], ...)``.

Each setting runs in compiled code that releases Python's global lock, so threads use every core; a setting is
the same call as :func:`~sppo.exact.solver.solve`, and gives the same numbers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from sppo.exact.evaluation import Array
from sppo.exact.mdp import TabularMDP
from sppo.exact.settings import check_count, make_plan
from sppo.exact.solver import run

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
    axes: dict[str, tuple[Any, ...]]
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
        names = list(self.axes)
        if axis not in names:
            raise KeyError(f"{axis!r} is not an axis of this sweep; its axes are {', '.join(names)}")
        others = tuple(i for i, name in enumerate(names) if name != axis)
        return self.final.max(axis=others) if others else self.final.copy()

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}: {len(values)}" for name, values in self.axes.items())
        best = ", ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.best_setting.items()
        )
        return f"SweepResult({self.objective}, {self.method}; {axes}; best J {self.best_value:.6g} at {best})"


def sweep(
    mdp: TabularMDP,
    objective: str,
    method: str,
    *,
    iterations: int,
    inner_steps: int | Sequence[int] = 1,
    keep_curves: bool = False,
    progress: bool = True,
    threads: int | None = None,
    initial_logits: npt.ArrayLike | None = None,
    **grids: Any,
) -> SweepResult:
    """Run :func:`~sppo.exact.solver.solve` for every combination of hyper-parameters.

    :param inner_steps: m, or several to make it an axis
    :param keep_curves: keep every learning curve, not only the best
    :param progress: show a progress bar on standard error
    :param threads: worker threads; the number of usable cores by default
    :param initial_logits: θ_0, shared by all
    :param grids: hyper-parameters of ``solve``: a list, tuple or array is a grid (an axis), anything else is
        fixed
    """
    check_count("iterations", iterations)
    axes = {name: tuple(_plain(v) for v in values) for name, values in grids.items() if _is_grid(values)}
    if _is_grid(inner_steps):
        axes["inner_steps"] = tuple(_plain(m) for m in inner_steps)  # type: ignore[union-attr]
    if not axes:
        raise ValueError("nothing to sweep: give at least one hyper-parameter as a list")
    for name, values in axes.items():
        if not values:
            raise ValueError(f"the grid of {name} is empty")
    fixed = {name: value for name, value in {**grids, "inner_steps": inner_steps}.items() if name not in axes}
    shape = tuple(len(values) for values in axes.values())
    jobs = []
    for setting in product(*axes.values()):
        chosen = {**fixed, **dict(zip(axes, setting, strict=True))}
        jobs.append(make_plan(mdp, objective, method, chosen.pop("inner_steps"), chosen))

    final = np.empty(len(jobs))
    curves = np.empty((len(jobs), iterations)) if keep_curves else None
    means = np.empty(len(jobs))
    candidates: dict[int, Array] = {}

    def execute(job: int) -> Array:
        return run(mdp, jobs[job], iterations, initial_logits, record=False).values

    # the costliest first, so that no thread is left alone with a long run at the end
    order = sorted(range(len(jobs)), key=lambda job: -jobs[job].numbers.inner_steps)
    for job, curve in _map(
        execute, order, threads or len(os.sched_getaffinity(0)), progress, f"{objective} {method}"
    ):
        final[job], means[job] = curve[-1], curve.mean()
        if curves is not None:
            curves[job] = curve
        # keep the curves that may yet be the best, no others: a grid's worth of curves is large
        done = [*candidates, job]
        highest = max(final[i] for i in done)
        candidates[job] = curve
        for i in done:
            if final[i] < highest - TIE * max(1.0, abs(highest)):
                del candidates[i]
    best_job = max(sorted(candidates), key=lambda i: means[i])
    best_setting = dict(zip(axes, list(product(*axes.values()))[best_job], strict=True))
    return SweepResult(
        objective,
        method,
        axes,
        final.reshape(shape),
        best_setting,
        candidates[best_job],
        None if curves is None else curves.reshape(*shape, iterations),
    )


def _map(
    execute: Any, jobs: list[int], threads: int, progress: bool, label: str
) -> Iterable[tuple[int, Array]]:
    """``execute`` every job in threads; yields (job, result) as they finish."""
    report = _progress(len(jobs), label, progress)
    execute_first, rest = jobs[0], iter(jobs[1:])
    # the first call alone: it compiles, or loads from the cache, what all others use
    yield execute_first, execute(execute_first)
    report(1)
    with ThreadPoolExecutor(threads) as pool:
        pending: dict[Future[Array], int] = {}
        try:
            for job in rest:
                pending[pool.submit(execute, job)] = job
            while pending:
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    job = pending.pop(future)
                    yield job, future.result()
                    report(1)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _progress(total: int, label: str, wanted: bool) -> Any:
    """A function to call with the number of newly finished jobs; tqdm if it is installed."""
    if not wanted:
        return lambda finished: None
    try:
        from tqdm import tqdm
    except ImportError:
        count = 0

        def report(finished: int) -> None:
            nonlocal count
            count += finished
            end = "\n" if count == total else "\r"
            print(f"{label}: {count}/{total}", end=end, file=sys.stderr, flush=True)

        return report
    bar = tqdm(total=total, desc=label, unit="run", smoothing=0.05)

    def update(finished: int) -> None:
        bar.update(finished)
        if bar.n >= total:
            bar.close()

    return update


def _is_grid(value: Any) -> bool:
    return isinstance(value, list | tuple | range) or (isinstance(value, np.ndarray) and value.ndim == 1)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
