"""Importing and training use no network and write nothing outside the directories that they are given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import sppo

#: Run in a process of its own, in which every connection and every foreign file is an error.
SCRIPT = """
import os, sys

home, package = sys.argv[1], os.path.realpath(sys.argv[2])
problems = []

def watch(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.bind"):
        problems.append(f"{event} {args[1:]}")
    if event == "open" and isinstance(args[0], str) and isinstance(args[2], int):
        if args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            path = os.path.realpath(args[0])
            cache = "__pycache__" in path or path.startswith("/dev/")
            # Python tries out the directory for temporary files.
            given = path.startswith((os.path.join(home, "named"), os.environ["TMPDIR"]))
            if not cache and not given:
                problems.append(f"wrote {path}")

sys.addaudithook(watch)
import gymnasium
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.common.env_util import make_vec_env
from sppo import SPPO, load_vec_normalize, check

env = VecNormalize(make_vec_env("CartPole-v1", n_envs=2))
model = SPPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=2, device="cpu").learn(128)
check(model)
model.save(os.path.join(home, "named", "model"))
env.save(os.path.join(home, "named", "statistics.pkl"))
SPPO.load(os.path.join(home, "named", "model"), env=env).learn(64)
load_vec_normalize(os.path.join(home, "named", "statistics.pkl"), make_vec_env("CartPole-v1"))
print("\\n".join(problems) or "nothing")
"""


def test_no_network_and_no_foreign_files(tmp_path: Path) -> None:
    for folder in ("named", "elsewhere", "temporary"):
        (tmp_path / folder).mkdir()
    package = Path(sppo.__file__).parent
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path / "temporary"),
        "PYTHONPATH": str(package.parent),
        "OMP_NUM_THREADS": "1",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path), str(package)],
        cwd=tmp_path / "elsewhere",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "nothing"
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["named/model.zip", "named/statistics.pkl"]
