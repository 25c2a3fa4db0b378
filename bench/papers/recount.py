"""Counts the verdicts of docs/results/papers.md again, from its published figures alone.

    python bench/papers/recount.py

Prints each paper's counts, and exits with 1 where the page's first table has others. Tables without
the heading "published", and rows without a figure under it, do not count.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.papers.common import PUBLISHED, counted
from bench.papers.page import PAGE


def rows(table: list[str]) -> Iterator[dict[str, str]]:
    """The rows of a Markdown table, by heading."""
    heads, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table)
    for cells in lines:
        yield dict(zip(heads, cells, strict=True))


def tables(page: str) -> Iterator[tuple[str, list[str]]]:
    """The tables of the page, each with the heading of its section."""
    heading = ""
    for block in page.split("\n\n"):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith("## "):
            heading = lines[0].removeprefix("## ")
        if lines and lines[0].startswith("|"):
            yield heading, lines


def recounted(page: str) -> dict[str, str]:
    """The verdicts of each section's published figures, counted."""
    found: dict[str, list[str]] = defaultdict(list)
    for heading, table in tables(page):
        if heading:
            found[heading] += [row["verdict"] for row in rows(table)
                               if row.get(PUBLISHED, "-") != "-"]
    return {heading: counted(verdicts) for heading, verdicts in found.items()}


def stated(page: str) -> dict[str, str]:
    """The counts in the page's first table."""
    _, table = next(tables(page))
    return {row["paper"]: row["published figures"] for row in rows(table)}


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    found = recounted(page)
    for paper, counts in found.items():
        print(f"{paper}: {counts}")
    return int(found != stated(page))


if __name__ == "__main__":
    sys.exit(main())
