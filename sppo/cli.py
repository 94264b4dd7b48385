"""``python -m sppo COMMAND ...``: a thin shell over the rooms of the package.

Each command is a module with ``main(argv) -> int``; it is imported only when it is called, so that
``python -m sppo --help`` stays instant and a command needs only its own optional extras.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from sppo import __version__

#: command -> (module with ``main(argv)``, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("sppo.study.train_command", "train one agent, with exact checkpoints; goes on if interrupted"),
    "study": ("sppo.study.command", "plan, run, watch and report a grid of trainings"),
    "tune": ("sppo.study.tune_command", "search an algorithm's setting over environments and seeds"),
    "report": ("sppo.report.command", "figures, tables and HTML of a study's records"),
    "compare": ("sppo.report.compare", "compare the algorithms in any TensorBoard log directory"),
    "figures": ("sppo.figures.command", "the paper's exact experiments: figures with their data"),
    "export": ("sppo.export", "the policy as an ONNX file, which runs without Python"),
    "inspect": ("sppo.loading.inspection", "what a model file holds and what it would run"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch to a command; returns the process's exit code."""
    listing = "\n".join(f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m sppo",
        description="Stable-Baselines3's PPO with the softmax surrogate of functional mirror ascent.",
        epilog=f"commands:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sppo {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="'COMMAND --help' lists them")
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    module, _ = COMMANDS[args.command]
    command = importlib.import_module(module).main
    if args.command == "study":
        return command(args.arguments, report=lambda argv: main(["report", *argv]))
    return command(args.arguments)
