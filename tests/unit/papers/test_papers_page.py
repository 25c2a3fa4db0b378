"""docs/results/papers.md is what bench/papers/page.py writes: a stale figure fails."""

from __future__ import annotations

import pytest

from bench.papers import page
from bench.papers.common import Claim, Report, Section

#: Benches that take a few seconds at most; ``page.py --check`` compares all.
FAST = ("integrated", "deepa_tables", "owt")
AGAIN = "docs/results/papers.md is stale; write it again with: python bench/papers/page.py"


@pytest.mark.parametrize("name", FAST)
def test_a_section_is_the_output_of_its_bench(name: str) -> None:
    assert page.part(name, *page.bench(name)) in page.PAGE.read_text(encoding="utf-8"), AGAIN


def test_every_bench_has_its_section() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text.startswith(page.INTRODUCTION), AGAIN
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("python bench")] == [
        f"bench/papers/{name}.py" for name in page.BENCHES], AGAIN


def test_a_table_has_the_columns_that_are_filled() -> None:
    claims = [Claim("a|b", 2.0, 1.0, "x", also={"other way": 3.0}), Claim("c", None, "text")]
    assert page.table(Section("Title", claims, "searched")) == "\n".join((
        "Title:", "", "|  | published | searched | ratio | other way |",
        "| --- | --- | --- | --- | --- |", "| a/b | 2x | 1x | 0.50 | 3x |",
        "| c | - | text | - |  |", ""))
    text = page.part("owt", "One line.\n\n    command\n\nSettings\nof it.\n",
                     Report("Paper", [Section("Title", claims)], remarks=["Why."]))
    assert text.startswith("## Paper\n\n```sh\npython bench/papers/owt.py\n```\n\nSettings\nof it.")
    assert text.endswith("\n* Why.\n")
