"""How fast sppo trains, beside Stable-Baselines3's PPO and SBX's PPO.

Every number is a ratio of medians from one run in which the programs took turns, each in a fresh process
per turn, so that a busy moment of the machine hits all of them. Run on an otherwise idle machine:

    bash benchmarks/sbx_venv.sh                      # once, for the SBX column
    python benchmarks/training_speed.py              # everything, about an hour on 2 cores
    python benchmarks/training_speed.py --only headline learn
    python benchmarks/training_speed.py --only headline learn memory --repeats 3

Writes ``benchmarks/results/speed/<part>.json`` (all times) and ``speed.md`` (the tables: medians over all
repeats, the highest peak of memory, and the ratios of each repeat).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from sppo.records.conditions import processor_name

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "speed"
WORKER = ROOT / "benchmarks" / "training_speed_worker.py"
#: what was asked, the medians, and all single measurements
Row = dict[str, Any]
PARTS = ("headline", "learn", "memory", "stepping", "environments", "dictionary", "sweep")
#: the same programs with other ways to step environments than their default
VARIANTS = {
    "sppo, one process": ("sppo", "gymnasium"),
    "sb3, SubprocVecEnv": ("sb3", "subproc"),
}


@dataclass(frozen=True)
class Case:
    """One row: what all programs are asked to do."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    iterations: int = 5

    def arguments(self) -> list[str]:
        pairs = {"iterations": self.iterations, **self.options}
        return [part for key, value in pairs.items() for part in (f"--{key.replace('_', '-')}", str(value))]


HEADLINE = (
    Case("m = 10", {"epochs": 10}, iterations=8),
    Case("m = 100", {"epochs": 100}, iterations=3),
)
ENVIRONMENTS = tuple(
    Case(env, {"env": env}) for env in ("Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "CartPole-v1")
)
SWEEP = (
    *(Case(f"{n} environments", {"n_envs": n}) for n in (1, 8, 32)),
    *(
        Case(f"width {width}, minibatch {minibatch}", {"width": width, "minibatch": minibatch})
        for width in (64, 256)
        for minibatch in (64, 512)
    ),
)

DICTIONARY = (
    Case("CartPole-v1, two vectors", {"env": "CartPole-v1", "policy": "MultiInputPolicy"}, iterations=8),
)

CASES = {
    "headline": HEADLINE,
    "stepping": HEADLINE[:1],
    "environments": ENVIRONMENTS,
    "dictionary": DICTIONARY,
    "sweep": SWEEP,
}
#: programs of the parts that not all of them can do: SBX's PPO has no MultiInputPolicy
PROGRAMS = {"stepping": ["sppo", "sb3", *VARIANTS], "dictionary": ["sppo", "sb3"]}


def command(program: str, arguments: list[str], sbx_python: str) -> list[str]:
    """The command line of one program's turn."""
    interpreter = sbx_python if program == "sbx" else sys.executable
    program, backend = VARIANTS.get(program, (program, "auto"))
    return [interpreter, str(WORKER), "--program", program, "--backend", backend, *arguments]


def environment(cache: str | None = None) -> dict[str, str]:
    """The processes' environment: sppo from this checkout, Numba's cache where asked."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if cache is not None:
        env["NUMBA_CACHE_DIR"] = cache
    return env


def take_turns(case: Case, programs: list[str], rounds: int, sbx_python: str) -> dict[str, Any]:
    """Times of all iterations of all rounds, per program and phase."""
    times: dict[str, Any] = {program: {"collect": [], "update": []} for program in programs}
    for _ in range(rounds):
        for program in programs:
            line = command(program, case.arguments(), sbx_python)
            done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(line)}\n{done.stderr}")
            result = json.loads(done.stdout.splitlines()[-1])
            for phase, values in result.items():
                times[program][phase].append(values)
    return times


def summarize(times: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Medians in milliseconds: of the collection, the update and the whole iteration."""
    summary = {}
    for program, phases in times.items():
        collect, update = np.array(phases["collect"]), np.array(phases["update"])
        summary[program] = {
            "collect": float(np.median(collect) * 1e3),
            "update": float(np.median(update) * 1e3),
            "iteration": float(np.median(collect + update) * 1e3),
        }
    return summary


def run_cases(
    cases: tuple[Case, ...], programs: list[str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """All rows of one part."""
    rows = []
    for case in cases:
        times = take_turns(case, programs, options.rounds, options.sbx_python)
        rows.append({"case": asdict(case), "median_ms": summarize(times), "seconds": times})
        print(f"{case.name}: " + json.dumps(rows[-1]["median_ms"]), flush=True)
    return rows


def run_learn(programs: list[str], options: argparse.Namespace) -> list[Row]:
    """Seconds from process start to end of a 100,000-step training."""
    seconds: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for program in programs:
            # sppo twice: on a machine that has never run it (nothing compiled), and ever after.
            with tempfile.TemporaryDirectory() as cache:
                for start in ("first run", "later run") if program == "sppo" else ("",):
                    name = f"{program} {start}".strip()
                    line = command(program, ["--learn", str(options.learn_steps)], options.sbx_python)
                    begin = time.perf_counter()
                    subprocess.run(line, env=environment(cache), capture_output=True, check=True)
                    seconds.setdefault(name, []).append(time.perf_counter() - begin)
        print({name: values[-1] for name, values in seconds.items()}, flush=True)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    return [{"case": {"name": f"learn({options.learn_steps:,})"}, "median_s": medians, "seconds": seconds}]


def run_memory(programs: list[str], options: argparse.Namespace) -> list[Row]:
    """Peak memory of the whole family of processes, shared pages counted once, in MB."""
    peaks: dict[str, float] = {}
    for program in programs:
        with tempfile.TemporaryDirectory() as cache:
            for start in ("first run", "later run") if program == "sppo" else ("",):
                line = command(program, ["--learn", str(10 * 2048)], options.sbx_python)
                peaks[f"{program} {start}".strip()] = peak_memory(line, environment(cache))
    print(peaks, flush=True)
    return [{"case": {"name": "peak memory"}, "megabytes": peaks}]


def peak_memory(line: list[str], env: dict[str, str]) -> float:
    """Largest proportional set size, summed over a process and its descendants, while it runs."""
    process = subprocess.Popen(line, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, sum(_memory(pid) for pid in _family(process.pid)))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    done.set()
    watcher.join()
    if code != 0:
        raise RuntimeError(f"{' '.join(line)} failed")
    return peak


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    members = [pid]
    for member in members:
        try:
            for task in Path(f"/proc/{member}/task").iterdir():
                members += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return members


def _memory(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def table(part: str, rows: list[Row]) -> str:
    """Markdown of one part: medians, and how many times faster sppo is."""
    if part == "memory":
        peaks = rows[0]["megabytes"]
        body = "".join(f"| {name} | {value:.0f} |\n" for name, value in peaks.items())
        return f"| program | peak memory, MB |\n| --- | --- |\n{body}"
    if part == "learn":
        medians = rows[0]["median_s"]
        body = ""
        for name, value in medians.items():
            ratios = [
                f"{value / medians[ours]:.1f}×" if "sppo" not in name else ""
                for ours in ("sppo first run", "sppo later run")
            ]
            body += f"| {name} | {value:.1f} | {ratios[0]} | {ratios[1]} |\n"
        name = rows[0]["case"]["name"]
        head = f"| {name}, process start to end | seconds | sppo's first run is | later runs are |\n"
        return head + "| --- | --- | --- | --- |\n" + body
    programs = list(rows[0]["median_ms"])
    peers = [program for program in programs if program != "sppo"]
    head = "| | phase | " + " | ".join(f"{program}, ms" for program in programs)
    head += "".join(f" | against {peer}" for peer in peers) + " |\n"
    head += "| --- " * (2 + len(programs) + len(peers)) + "|\n"
    body = ""
    for row in rows:
        for phase in ("update", "collect", "iteration"):
            values = {program: row["median_ms"][program][phase] for program in programs}
            body += f"| {row['case']['name']} | {phase} | "
            body += " | ".join(f"{values[program]:.1f}" for program in programs)
            body += "".join(f" | {values[peer] / values['sppo']:.1f}×" for peer in peers) + " |\n"
    return head + body


def ratios(part: str, rows: list[Row]) -> dict[str, float]:
    """How many times longer each peer takes than sppo, and how many megabytes sppo takes beyond SB3."""
    if part == "memory":
        peaks = rows[0]["megabytes"]
        return {f"{name}, MB beyond sb3": peaks[name] - peaks["sb3"] for name in peaks if "sppo" in name}
    found = {}
    if part == "learn":
        medians = rows[0]["median_s"]
        for start in ("first run", "later run"):
            for peer in (name for name in medians if "sppo" not in name):
                found[f"learn, {start}, against {peer}"] = medians[peer] / medians[f"sppo {start}"]
        return found
    for row in rows:
        for phase in ("update", "iteration"):
            values = {program: phases[phase] for program, phases in row["median_ms"].items()}
            for peer in (name for name in values if name != "sppo"):
                found[f"{row['case']['name']}, {phase}, against {peer}"] = values[peer] / values["sppo"]
    return found


def pooled(part: str, runs: list[dict[str, Any]]) -> list[Row]:
    """The rows of several runs as one: medians over all times, the highest peaks."""
    first = runs[0]["rows"]
    if part == "memory":
        peaks = [run["rows"][0]["megabytes"] for run in runs]
        return [{**first[0], "megabytes": {name: max(one[name] for one in peaks) for name in peaks[0]}}]
    if part == "learn":
        times = [run["rows"][0]["seconds"] for run in runs]
        medians = {name: float(np.median([t for one in times for t in one[name]])) for name in times[0]}
        return [{**first[0], "median_s": medians}]
    rows = []
    for index, row in enumerate(first):
        times = [run["rows"][index]["seconds"] for run in runs]
        together = {
            program: {phase: [turn for one in times for turn in one[program][phase]] for phase in phases}
            for program, phases in times[0].items()
        }
        rows.append({**row, "median_ms": summarize(together)})
    return rows


def repeats_table() -> str:
    """Markdown: the ratios of each of several runs in a row, for the parts that have them."""
    body, most = "", 0
    for part in PARTS:
        path = RESULTS / f"{part}.json"
        runs = json.loads(path.read_text()).get("runs", []) if path.exists() else []
        found = [ratios(part, run["rows"]) for run in runs] if len(runs) > 1 else []
        most = max(most, len(found))
        for name in found[0] if found else ():
            digits = ".0f" if part == "memory" else ".2f"
            body += f"| {name} | " + " | ".join(f"{one[name]:{digits}}" for one in found) + " |\n"
    if not body:
        return ""
    head = "| | " + " | ".join(f"run {number}" for number in range(1, most + 1)) + " |\n"
    return f"\n## Runs in a row\n\n{head}{'| --- ' * (most + 1)}|\n{body}"


def describe_machine(sbx_python: str) -> dict[str, Any]:
    """What the numbers depend on."""
    packages = ("torch", "stable-baselines3", "gymnasium", "mujoco", "numpy", "scipy", "numba")
    sbx = None
    if Path(sbx_python).exists():
        code = "from importlib.metadata import version as v; print(v('sbx-rl'), v('jax'))"
        sbx = subprocess.run(
            [sbx_python, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "sbx-rl, jax": sbx,
    }


def write_tables() -> None:
    """Put all parts measured so far into one Markdown file."""
    titles = {
        "headline": "HalfCheetah-v5, 8 environments, batches of 2048, minibatches of 64, 2 × 64 networks",
        "learn": "A whole training, everything counted",
        "memory": "Peak memory while training (processes together, shared pages once)",
        "stepping": "The same with other ways to step the environments",
        "environments": "Other environments, m = 10",
        "dictionary": "Dictionary observations (`MultiInputPolicy`, `VecNormalize`), m = 10",
        "sweep": "HalfCheetah-v5, m = 10: number of environments, width, minibatch",
    }
    text = (
        "# Training speed\n\nMade by `python benchmarks/training_speed.py`: medians, the programs in turns.\n"
    )
    for part in PARTS:
        path = RESULTS / f"{part}.json"
        if not path.exists():
            continue
        data = json.loads(path.read_text())
        machine = data["machine"]
        text += f"\n## {titles[part]}\n\n{table(part, pooled(part, data['runs']))}\n"
        text += f"*{data['command']}; {machine['cores']} cores of {machine['processor']}.*\n"
    text += repeats_table()
    (RESULTS / "speed.md").write_text(text)
    print(text)


def main() -> None:
    """Measure the parts asked for and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program per row")
    parser.add_argument("--repeats", type=int, default=1, help="runs of all that in a row")
    parser.add_argument("--learn-steps", type=int, default=100_000)
    parser.add_argument("--sbx-python", default=str(ROOT / ".venv-sbx" / "bin" / "python"))
    options = parser.parse_args()
    programs = ["sppo", "sb3"]
    if Path(options.sbx_python).exists():
        programs.append("sbx")
    else:
        print("No SBX environment, so no SBX column: bash benchmarks/sbx_venv.sh makes one.")
    machine = describe_machine(options.sbx_python)
    RESULTS.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[dict[str, Any]]] = {part: [] for part in options.only}
    for _ in range(options.repeats):
        for part in options.only:
            start = {"load average": os.getloadavg()}
            runs[part].append({**start, "rows": measure(part, programs, options)})
            line = f"python benchmarks/training_speed.py --only {part} --rounds {options.rounds}"
            line += f" --repeats {options.repeats}" if options.repeats > 1 else ""
            data = {"command": line, "machine": machine, "runs": runs[part]}
            (RESULTS / f"{part}.json").write_text(json.dumps(data, indent=1) + "\n")
    write_tables()


def measure(part: str, programs: list[str], options: argparse.Namespace) -> list[Row]:
    """One run of one part."""
    if part == "learn":
        return run_learn(programs, options)
    if part == "memory":
        return run_memory(programs, options)
    return run_cases(CASES[part], PROGRAMS.get(part, programs), options)


if __name__ == "__main__":
    main()
