"""Tables between the markers of a page."""

from __future__ import annotations

import pytest

from benchmarks.pages import fill


def test_pages_get_the_tables_they_ask_for() -> None:
    tables = {"One": (("a", "b"), [("1", "2")])}
    page = "before\n<!-- made: One -->\n| old |\n<!-- end -->\nafter <!-- end -->\n"
    filled = (
        "before\n<!-- made: One -->\n| a | b |\n| --- | --- |\n| 1 | 2 |\n<!-- end -->\nafter <!-- end -->\n"
    )
    assert fill(page, "made", tables) == filled
    assert fill(filled, "made", tables) == filled
    with pytest.raises(KeyError, match="One"):
        fill("<!-- made: Two -->\n<!-- end -->", "made", tables)
