"""The RL Zoo's scripts, in processes of their own: importing rl_zoo3 changes Gymnasium's classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: one process for several scripts in turn, because the zoo takes its time to import
SCRIPTS = """
import json, sys
from sppo.zoo import main
for arguments in json.loads(sys.argv[1]):
    main(arguments)
    print("=== end of a script", flush=True)
"""


def run(directory: Path, *command: str, expected: int = 0) -> str:
    """What a command prints, if it ends with the expected code; if that is not 0, on standard error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == expected, result.stdout + result.stderr
    return result.stderr if expected else result.stdout


def zoo(directory: Path, *scripts: list[str]) -> list[str]:
    """What each of the zoo's scripts prints."""
    *printed, _ = run(directory, "-c", SCRIPTS, json.dumps(scripts)).split("=== end of a script\n")
    assert len(printed) == len(scripts)
    return printed
