"""The pages as a reader sees them, in a real browser: the HTML report and TensorBoard itself."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from sppo.report.command import main as report
from sppo.report.compare import main as compare
from sppo.report.tensorboard import scalar, write_events
from sppo.surrogates import REGISTRY
from tests.records import synthetic_study as synthetic
from tests.report import chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.executable() is None, reason="no chromium on this machine (apt-get install chromium)"
    ),
]

SIZES = {"desk": (1280, 900), "phone": (390, 844), "small phone": (320, 640)}
#: the visible texts of a page, through the shadow roots that TensorBoard's older pages are made of
TEXTS = """(() => {
  const walk = root => [...root.querySelectorAll('*')]
    .flatMap(e => [e, ...(e.shadowRoot ? walk(e.shadowRoot) : [])]);
  return walk(document)
    .filter(e => !['STYLE', 'SCRIPT', 'TEMPLATE'].includes(e.tagName) && e.getClientRects().length)
    .flatMap(e => [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.textContent.trim()))
    .filter(text => text);
})()"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "browsed"
    configs = list(synthetic.grid(["Hopper-v5", "Ant-v5"], clips=[0.1, 0.7], seeds=range(2)))
    configs += [
        synthetic.configuration("Hopper-v5", "smdpo", seed, n_epochs=10, clip_range=None, eta=1.0)
        for seed in range(2)
    ]
    for config in configs[1:]:
        path = synthetic.write_completed(directory, config)
        (path / "tensorboard").mkdir()
        rewards = [(100 * k, scalar("rollout/ep_rew_mean", 3.0 * k)) for k in range(20)]
        write_events(path / "tensorboard" / "events.out.tfevents.1700000000.host", rewards)
    synthetic.write_failed(directory, configs[0])
    synthetic.write_plan(directory, configs)
    assert report([str(directory), "--tensorboard-seeds", "1"]) == 0
    return directory


@pytest.fixture(scope="module")
def page() -> Iterator[chromium.Page]:
    with chromium.browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def tensorboard(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A TensorBoard server on loopback, on the directory that the report built."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    logdir = study / "report" / "tensorboard"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}", "--host=127.0.0.1",
             f"--port={port}", "--reload_interval=1"],
            stdout=output, stderr=output,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for_runs(url, server, log)
            yield url
        finally:
            server.terminate()
            server.wait(timeout=20)


def _wait_for_runs(url: str, server: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + 90
    while True:
        try:
            with urllib.request.urlopen(f"{url}/data/runs", timeout=5) as answer:
                if b"means/sppo" in answer.read():
                    return
        except (urllib.error.URLError, TimeoutError):
            pass
        if server.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"TensorBoard did not come up: {log.read_text()}")
        time.sleep(0.5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_report_fits_the_screen(
    study: Path, page: chromium.Page, tmp_path: Path, size: str, dark: bool
) -> None:
    """No sideways scrolling, no text too small to read, nothing fetched, no error on the console."""
    width, height = SIZES[size]
    page.requests.clear()
    page.console.clear()
    page.open((study / "report" / "report.html").as_uri(), width, height, dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sticking_out = "[...document.querySelectorAll('td, th, p, figure, h1, h2, code, li')]"
    sticking_out += f".filter(e => e.getBoundingClientRect().right > {width} + 1).map(e => e.outerHTML)"
    assert page.evaluate(sticking_out) == []
    # the height of a digit of a tick label, in pixels of the screen
    smallest = "Math.min(...[...document.querySelectorAll('figure svg text')]"
    smallest += ".map(e => e.getBoundingClientRect().height))"
    assert page.evaluate(smallest) >= 8
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert page.console == []
    page.screenshot(tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 10_000


def test_phone_has_one_panel_per_row_and_cards_for_tables(study: Path, page: chromium.Page) -> None:
    tops = "[...document.querySelectorAll('#grid figure')].map(e => e.getBoundingClientRect().top)"
    rows = "getComputedStyle(document.querySelector('#returns tbody tr')).display"
    page.open((study / "report" / "report.html").as_uri(), *SIZES["phone"])
    on_phone = page.evaluate(tops)
    assert len(set(on_phone)) == len(on_phone) == 4
    assert page.evaluate(rows) == "block"
    page.open((study / "report" / "report.html").as_uri(), *SIZES["desk"])
    assert len(set(page.evaluate(tops))) < 4
    assert page.evaluate(rows) == "table-row"


def test_colours_follow_light_and_dark(study: Path, page: chromium.Page) -> None:
    seen = []
    for dark in (False, True):
        page.open((study / "report" / "report.html").as_uri(), *SIZES["desk"], dark=dark)
        body = "getComputedStyle(document.body)"
        text = "getComputedStyle(document.querySelector('figure svg text')).fill"
        seen.append(
            [page.evaluate(f"{body}.backgroundColor"), page.evaluate(f"{body}.color"), page.evaluate(text)]
        )
    assert all(light != dark for light, dark in zip(*seen, strict=True))
    # labels in figures have the colour of the text around them
    assert seen[1][1] == seen[1][2]


def test_lines_of_the_algorithms_have_their_colours(study: Path, page: chromium.Page) -> None:
    page.open((study / "report" / "report.html").as_uri(), *SIZES["desk"])
    strokes = "[...document.querySelectorAll('#grid figure svg path')].map(e => getComputedStyle(e).stroke)"
    registered = [bytes.fromhex(REGISTRY[name].colour[1:]) for name in ("ppo", "sppo")]
    drawn = set(page.evaluate(strokes))
    assert {"rgb({}, {}, {})".format(*colour) for colour in registered} <= drawn
    page.open((study / "report" / "report.html").as_uri(), *SIZES["desk"], dark=True)
    in_the_dark = set(page.evaluate(strokes)) - {"none"}
    assert len(in_the_dark) == len(drawn - {"none"})
    assert not in_the_dark & drawn


@pytest.mark.parametrize("size", SIZES)
def test_comparison_page_fits_the_screen(page: chromium.Page, tmp_path: Path, size: str) -> None:
    for name in ("PPO_1", "PPO_2", "SPPO_1", "SPPO_2"):
        (tmp_path / name).mkdir()
        rewards = [(100 * k, scalar("rollout/ep_rew_mean", 3.0 * k + len(name))) for k in range(20)]
        write_events(tmp_path / name / "events.out.tfevents.1", rewards)
    assert compare([str(tmp_path)]) == 0
    width, height = SIZES[size]
    page.open((tmp_path / "compare.html").as_uri(), width, height)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "sPPO" in page.evaluate("document.body.innerText")


def wait_for_texts(page: chromium.Page, wanted: Iterable[str], seconds: float = 60) -> list[str]:
    """Until all of the texts are on the page, as often as they are wanted; all texts of the page."""
    end = time.monotonic() + seconds
    while True:
        texts = page.evaluate(TEXTS)
        missing = Counter(wanted) - Counter(texts)
        if not missing:
            return list(texts)
        if time.monotonic() > end:
            raise TimeoutError(f"{dict(missing)} not among {texts}")
        time.sleep(0.5)


def test_tensorboard_custom_scalars_show_both_algorithms(
    tensorboard: str, page: chromium.Page, tmp_path: Path
) -> None:
    """One chart per environment and setting, in the order of the settings, two algorithms on each."""
    page.open("about:blank")
    page.open(f"{tensorboard}/?darkMode=false#custom_scalars", 1400, 1600)
    charts = [f"Hopper-v5, m={m}, ε={clip}" for m in (10, 100) for clip in (0.1, 0.7)]
    # charts fill one by one; a chart's matches are the lines on it
    texts = wait_for_texts(page, [*charts, "means/ppo", "means/sppo", *["Matches (2)"] * len(charts)])
    assert [text for text in texts if text in charts] == charts
    page.screenshot(tmp_path / "custom_scalars.png")


def test_tensorboard_hparams_are_filled(tensorboard: str, page: chromium.Page, tmp_path: Path) -> None:
    page.open("about:blank")
    page.open(f"{tensorboard}/?darkMode=false#hparams", 1600, 1000)
    names = {"algorithm", "clip_range", "env", "eta", "n_epochs", "seed", "evaluation/mean_return"}
    wait_for_texts(page, names | {"ppo", "sppo", "smdpo", "Hopper-v5", "Ant-v5", "0.70000"})
    page.screenshot(tmp_path / "hparams.png")


def test_tensorboard_time_series_of_one_filter(tensorboard: str, page: chromium.Page, tmp_path: Path) -> None:
    """The filter of the documentation leaves the runs of the two algorithms, and their curves are drawn."""
    chosen = "Hopper-v5/m%3D10,eps%3D0.7/(ppo%7Csppo)/"
    page.open("about:blank")
    page.open(f"{tensorboard}/?darkMode=false&runFilter={chosen}&tagFilter=ep_rew#timeseries", 1400, 1000)
    runs = {f"runs/Hopper-v5/m=10,eps=0.7/{name}/seed=0" for name in ("ppo", "sppo")}
    # once in the list of runs and once in the table of values below the chart
    texts = wait_for_texts(page, [*runs, *runs, "/ep_rew_mean", "1,900", "57"])
    assert {text for text in texts if text.startswith(("runs/Hopper-v5", "runs/Ant-v5"))} == runs
    page.screenshot(tmp_path / "time_series.png")
