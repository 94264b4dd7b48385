"""A study as a TensorBoard log directory with readable run names, a layout and hyperparameters.

::

    runs/Hopper-v5/m=10,eps=0.3/ppo/seed=0     the run's own event files, as links, and its evaluations
    runs/Hopper-v5/m=10,eps=0.3/sppo/seed=0
    means/ppo, means/sppo                      mean return and 95 % bounds of every cell's completed runs

*Time series*: the run filter ``Hopper-v5/m=10,eps=0.3/(ppo|sppo)/`` compares the two. *Custom scalars*:
one chart per environment and setting with all algorithms on it. *HParams*: one row per run, with its
final return. The whole directory can be opened, or ``runs`` or ``means`` alone: with more than 40 runs,
TensorBoard starts with none selected on the custom-scalars page, so the means stand apart. The records
themselves are not touched.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sppo.records.run_files import CONFIG, TENSORBOARD
from sppo.records.runs import Run
from sppo.report.cells import AXES, Cell, Setting, Value, grouped, order_key, parameters_of
from sppo.report.events import EVENT_FILES, read_scalars, scalar, write_events
from sppo.report.extras import require
from sppo.report.logdir import BOOKKEEPING_SUFFIX, MARKER, RETURN_TAG
from sppo.report.statistics import mean_interval

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

#: TensorBoard reads a directory's files in the order of their names and stays at the last one, which
#: must be the run's own while it is still being written
_OWN_FILE = "events.out.tfevents.0000000000.report"
#: files that belong to no run, see :mod:`sppo.report.logdir`
_BOOKKEEPING_FILE = f"events.out.tfevents.0000000000{BOOKKEEPING_SUFFIX}"
_THINNED_FILE = "events.out.tfevents.0000000001.thinned"
#: what a thinned run keeps beside its evaluations
THINNED_TAGS = (
    "rollout/ep_rew_mean", "rollout/ep_len_mean", "train/approx_kl", "train/clip_fraction",
    "train/entropy_loss", "train/explained_variance", "train/policy_gradient_loss", "train/value_loss",
    "train/std",
)  # fmt: skip
#: of a mean curve: what ends its tags
_BOUNDS = ("return", "low", "high")
_SHOWN_HPARAMS = ("env", "algorithm", *AXES, "seed")


def build_logdir(
    runs: Sequence[Run], cells: Sequence[Cell], out: Path, seeds_per_cell: int, thin: int = 0
) -> Path:
    """Build the log directory; an earlier one made by this function is replaced.

    :param seeds_per_cell: how many runs of each cell are linked; the means are over all completed runs
    :param thin: instead of links, write so many points of each of :data:`THINNED_TAGS`, for git
    """
    require("tensorboard", extra="tensorboard")
    _clear(out)
    for cell in cells:
        for run in cell.runs[:seeds_per_cell]:
            if run.status != "missing":
                _write_run(run, out / "runs", run_name(cell, run), thin)
    for label, own in grouped((cell for cell in cells if cell.n), lambda cell: cell.label).items():
        began = _wall_time(own[0].completed[0])
        write_events(out / "means" / _safe(label) / _BOOKKEEPING_FILE, _mean_summaries(own), began)
    newest = max((_wall_time(run) for run in runs), default=0.0)
    write_events(out / "means" / _BOOKKEEPING_FILE, [(0, layout(cells))], newest)
    write_events(out / "runs" / _BOOKKEEPING_FILE, [(0, _experiment(runs))], newest)
    return out


def run_name(cell: Cell, run: Run) -> str:
    """``Hopper-v5/m=10,eps=0.3/sppo/seed=0``."""
    return f"{_safe(cell.env)}/{_safe(cell.setting.slug)}/{_safe(cell.label)}/seed={run.seed}"


def chart_tag(env: str, setting: Setting, what: str) -> str:
    """The tag of a cell's mean; environment and setting are in it, because a chart selects by tag."""
    return f"{env}/{setting.slug}/{what}"


def layout(cells: Iterable[Cell]) -> Summary:
    """Custom-scalars layout: a category per environment, a chart with bounds per setting."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    def chart(env: str, setting: Setting) -> layout_pb2.Chart:
        value, lower, upper = (chart_tag(env, setting, what) for what in _BOUNDS)
        series = layout_pb2.MarginChartContent.Series(value=value, lower=lower, upper=upper)
        content = layout_pb2.MarginChartContent(series=[series])
        return layout_pb2.Chart(title=f"{env}, {setting.text}", margin=content)

    categories = []
    for env, own in grouped((cell for cell in cells if cell.n), lambda cell: cell.env).items():
        # the page draws the charts of a category from the last to the first
        settings = reversed(grouped(own, lambda cell: cell.setting))
        categories.append(layout_pb2.Category(title=env, chart=[chart(env, s) for s in settings]))
    content = layout_pb2.Layout(category=categories).SerializeToString()
    tensor = TensorProto(dtype=DT_STRING, string_val=[content])
    about = metadata.create_summary_metadata()
    return Summary(value=[Summary.Value(tag=metadata.CONFIG_SUMMARY_TAG, metadata=about, tensor=tensor)])


def hparams_of(config: Mapping[str, Any]) -> dict[str, Value]:
    """The numbers, texts and switches of a configuration, the parameters beside the rest."""
    flat = {**config, **parameters_of(config)}
    return {name: value for name, value in flat.items() if isinstance(value, bool | int | float | str)}


def _write_run(run: Run, root: Path, name: str, thin: int) -> None:
    from tensorboard.plugins.hparams import summary_v2 as api

    folder, began = root / name, _wall_time(run)
    summaries = [(0, api.hparams_pb(hparams_of(run.config), trial_id=name, start_time_secs=began))]
    points = zip(run.timesteps.tolist(), run.returns.tolist(), strict=True)
    summaries += [(int(step), scalar(RETURN_TAG, value)) for step, value in points]
    if run.status in ("completed", "failed"):
        summaries.append((0, _session_end(run.status == "completed")))
    write_events(folder / _OWN_FILE, summaries, began)
    if run.path is None:
        return
    if thin:
        write_events(folder / _THINNED_FILE, _thinned(run.path / TENSORBOARD, thin), began)
        return
    for source in sorted((run.path / TENSORBOARD).rglob(EVENT_FILES)):
        target = folder / source.name
        if not target.is_symlink():
            target.symlink_to(os.path.relpath(source.resolve(), folder.resolve()))


def _thinned(directory: Path, points: int) -> Iterator[tuple[int, Summary]]:
    """At most ``points`` points of each curve, evenly spaced, the last one among them."""
    series, _ = read_scalars(directory, THINNED_TAGS)
    for tag in (tag for tag in THINNED_TAGS if tag in series):
        steps, values = series[tag]
        chosen = np.linspace(len(steps) - 1, 0, min(points, len(steps))).round().astype(int)[::-1]
        for step, value in zip(steps[chosen].tolist(), values[chosen].tolist(), strict=True):
            yield step, scalar(tag, value)


def _session_end(success: bool) -> Summary:
    """What fills the status column; TensorBoard's own function for it needs TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    status = api_pb2.STATUS_SUCCESS if success else api_pb2.STATUS_FAILURE
    end = plugin_data_pb2.SessionEndInfo(status=status)
    content = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=end))
    value = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=content, tensor=metadata.NULL_TENSOR)
    return Summary(value=[value])


def _mean_summaries(cells: Iterable[Cell]) -> Iterator[tuple[int, Summary]]:
    for cell in cells:
        steps, returns = cell.curves
        mean, low, high = mean_interval(returns)
        if len(returns) == 1:
            # a chart with bounds draws nothing without them: one run has its own value as both
            low = high = mean
        for what, values in zip(_BOUNDS, (mean, low, high), strict=True):
            tag = chart_tag(cell.env, cell.setting, what)
            for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                yield round(step), scalar(tag, value)


def _experiment(runs: Iterable[Run]) -> Summary:
    from tensorboard.plugins.hparams import summary_v2 as api

    values: dict[str, set[Value]] = defaultdict(set)
    for run in runs:
        for name, value in hparams_of(run.config).items():
            values[name].add(value)
    # what never varies would take the place of what does among the columns shown at first
    varying = [name for name, found in values.items() if len(found) > 1 or name in _SHOWN_HPARAMS]
    hparams = [api.HParam(name, _domain(values[name])) for name in sorted(varying)]
    metrics = [api.Metric(RETURN_TAG, display_name="final return")]
    return api.hparams_config_pb(hparams, metrics, time_created_secs=0)


def _domain(values: set[Value]) -> object:
    """The values to filter by, where they are few and of one type."""
    from tensorboard.plugins.hparams import summary_v2 as api

    plain = {float(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in values}
    if len(plain) > 20 or len({type(value) for value in plain}) != 1:
        return None
    return api.Discrete(sorted(plain, key=order_key))


def _clear(out: Path) -> None:
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).exists():
            raise FileExistsError(f"{out} is not empty and was not made by a report; choose another place")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("Made from a study's records; replaced by the next report.\n")


def _wall_time(run: Run) -> float:
    """When the run was started, as far as its files tell."""
    try:
        return (run.path / CONFIG).stat().st_mtime if run.path else 0.0
    except OSError:
        return 0.0


def _safe(name: str) -> str:
    """Without separators, which would add levels to TensorBoard's run names."""
    return re.sub(r"[\\/\s]+", "_", name)
