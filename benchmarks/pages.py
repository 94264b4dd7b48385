"""Tables in the project's pages, each made anew between two markers by the script that the first one names.

Between ``<!-- robustness: HEADING -->`` and ``<!-- end -->`` is the table HEADING that ``python -m
benchmarks.robustness`` makes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READMES = (ROOT / "README.md", ROOT / "benchmarks" / "README.md")
#: header and rows
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def markdown(table: Table) -> str:
    header, rows = table
    return "".join("| " + " | ".join(line) + " |\n" for line in (header, ["---"] * len(header), *rows))


def page_of(title: str, script: str, tables: Mapping[str, Table]) -> str:
    """All tables of a script, one below the other."""
    text = f"# {title}\n\nMade by `python -m benchmarks.{script}` from the published runs.\n"
    return text + "".join(f"\n## {heading}\n\n{markdown(table)}" for heading, table in tables.items())


def fill(text: str, script: str, tables: Mapping[str, Table]) -> str:
    """A page with the tables of a script made anew; a marker without a table is an error."""

    def replacement(found: re.Match[str]) -> str:
        if found[2] not in tables:
            raise KeyError(f"no table {found[2]!r}: there are {', '.join(tables)}")
        return f"{found[1]}{markdown(tables[found[2]])}{found[3]}"

    return re.sub(rf"(<!-- {script}: (.+?) -->\n).*?(<!-- end -->)", replacement, text, flags=re.DOTALL)


def fill_readmes(script: str, tables: Mapping[str, Table]) -> None:
    for page in READMES:
        page.write_text(fill(page.read_text(encoding="utf-8"), script, tables), encoding="utf-8")
