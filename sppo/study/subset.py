"""The flags that name a part of a study, for all commands that take one."""

from __future__ import annotations

import argparse


def add_subset(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """``--env``, ``--algorithm`` and ``--seeds``; returns the group for more of their kind."""
    group = parser.add_argument_group("subset")
    group.add_argument("--env", action="append", metavar="ID", help="only this environment; may be repeated")
    group.add_argument("--algorithm", action="append", metavar="LABEL", help="only this algorithm; ditto")
    group.add_argument("--seeds", metavar="0:5", help="only these seeds: 0:5 (0 to 4), 3, or 0,2,7")
    return group
