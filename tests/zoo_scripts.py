"""The RL Zoo's scripts, in processes of their own: importing rl_zoo3 changes Gymnasium's classes."""

from __future__ import annotations

from pathlib import Path

from tests.forks import Forks

#: several scripts in turn
SCRIPTS = """
from sppo.zoo import main
for arguments in {scripts}:
    assert main(arguments) == 0
    print("=== end of a script", flush=True)
"""


def zoo(process: Forks, directory: Path, *scripts: list[str]) -> list[str]:
    """What each of the zoo's scripts prints."""
    done = process.run(SCRIPTS.format(scripts=scripts), directory)
    assert done.code == 0, done.out + done.err
    *printed, _ = done.out.split("=== end of a script\n")
    assert len(printed) == len(scripts)
    return printed
