"""Every code block of the site and of README runs as printed, and prints what the page says it prints.

A page is a script: its ``python`` blocks share one process, in a directory of its own. What would train for
long trains for two rollouts (``short_trainings.py``). A ``text`` block right after a ``python`` block is its
output. ``bash`` blocks run, too, in their turn, but for README's, which set up the whole house;
``<!-- not run: why -->`` before a block leaves it out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.forks import ROOT, Forks

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"^(?P<skip><!-- not run: [^\n]+ -->\n)?```(?P<language>python|bash)\n(?P<code>.*?)^```\n"
    r"(\n```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
FENCE = re.compile(r"^```(python|bash)\b", re.MULTILINE)
INCLUDE = re.compile(r"^```\{include\} (?P<file>\S+)\n(?P<options>(?::.*\n)*)", re.MULTILINE)


class Block(NamedTuple):
    language: str
    code: str
    output: str | None


def blocks(text: str) -> list[Block]:
    found = [match for match in BLOCK.finditer(text) if not match["skip"]]
    return [Block(match["language"], match["code"], match["output"]) for match in found]


def script(page: list[Block]) -> str:
    """One program that runs the blocks in turn, and marks where the output of each ends."""
    lines = ["import subprocess", "from tests.docs import short_trainings", "short_trainings.begin()"]
    for number, block in enumerate(page):
        if block.language == "python":
            lines.append(f"exec(compile({block.code!r}, 'block {number}', 'exec'), globals())")
        else:
            lines.append(f"subprocess.run(['bash', '-euo', 'pipefail', '-c', {block.code!r}], check=True)")
        lines.append(f"print('\\n=== end of block {number}', flush=True)")
    return "\n".join(lines)


def run(page: list[Block], process: Forks, directory: Path) -> list[str]:
    """What each block printed."""
    # Paths of the repository that a page names (benchmarks/studies/smoke.toml) are there.
    for name in ("benchmarks", "tests"):
        (directory / name).symlink_to(ROOT / name)
    done = process.run(script(page), directory)
    assert done.code == 0, f"{done.out[-2000:]}\n{done.err[-4000:]}"
    return re.split(r"\n=== end of block \d+\n", done.out)[:-1]


#: the pages that one begins with; the others' blocks are run with the slow tests
FIRST = ("README", "start", "sppo", "exact")


def to_run(path: Path) -> list[Block]:
    found = blocks(path.read_text())
    return [block for block in found if path.stem != "README" or block.language == "python"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(page, id=page.stem, marks=() if page.stem in FIRST else pytest.mark.slow)
        for page in PAGES
        if to_run(page)
    ],
)
def test_a_page_runs_as_printed(path: Path, fresh_process: Forks, tmp_path: Path) -> None:
    page = to_run(path)
    for block, printed in zip(page, run(page, fresh_process, tmp_path), strict=True):
        if block.output is not None:
            assert printed.strip() == block.output.strip(), block.code


def test_every_block_is_seen() -> None:
    # A fence that the pattern does not match would silently not be run.
    for path in PAGES:
        text = path.read_text()
        assert len(FENCE.findall(text)) == len(BLOCK.findall(text)), path


def test_what_is_included_is_there() -> None:
    # Building the site says so, too, and takes a minute.
    for path in PAGES:
        for match in INCLUDE.finditer(path.read_text()):
            text = (path.parent / match["file"]).read_text()
            for words in re.findall(r'^:(?:start-after|end-before): "(.+)"$', match["options"], re.MULTILINE):
                assert words in text, f"{path.name}: {match['file']} has no {words}"


def test_a_wrong_output_and_an_error_are_noticed(fresh_process: Forks, tmp_path: Path) -> None:
    text = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    (block,) = blocks(text)
    (tmp_path / "a").mkdir()
    assert run([block], fresh_process, tmp_path / "a")[0].strip() != block.output
    (tmp_path / "b").mkdir()
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run(blocks("```python\n1 / 0\n```\n"), fresh_process, tmp_path / "b")


def test_contributing_prints_the_surrogate_that_is_tested() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    printed = next(block.code for block in blocks(text) if "class SPO" in block.code)
    assert printed in (ROOT / "tests" / "surrogates" / "spo.py").read_text()
