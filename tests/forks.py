"""Programs in processes of their own that need not import again what takes seconds to import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, Self

ROOT = Path(__file__).resolve().parents[1]
#: runs the program that each line of input names in a fork of itself, for ten minutes at most
SERVER = """
import json, os, signal, sys, traceback, types

def run(program, directory, out, err):
    signal.alarm(600)
    os.chdir(directory)
    for file, stream in ((out, sys.stdout), (err, sys.stderr)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(program, "<program>", "exec"), vars(main))
        return 0
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1

for line in sys.stdin:
    child = os.fork()
    if not child:
        code = run(**json.loads(line))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Finished(NamedTuple):
    code: int
    out: str
    err: str


class Forks:
    """A process with these imports, to be entered; each program runs in a fork of it."""

    def __init__(self, imports: str, files: Path) -> None:
        self._imports, self._files = imports, files

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", self._imports + "\n" + SERVER],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *error: object) -> None:
        self._server.__exit__(*error)

    def run(self, program: str, directory: Path) -> Finished:
        """What a program in a directory prints, and the code that it ends with."""
        out, err = self._files / "out", self._files / "err"
        request = {"program": program, "directory": str(directory), "out": str(out), "err": str(err)}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        code = int(self._server.stdout.readline())
        return Finished(code, out.read_text(), err.read_text())
