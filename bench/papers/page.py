"""Writes docs/results/papers.md: tables, settings and remarks of all paper benches.

    python bench/papers/page.py [--check]

``--check`` writes nothing, and exits with 1 where the page is not what it would write. The prose is
each bench's: its docstring, and the remarks of its report.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.papers.common import Report, Section

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "papers.md"
BENCHES = ("integrated", "paradl", "optcnn", "deepa", "deepa_tables", "owt")
INTRODUCTION = """\
# Five papers, regenerated

What five papers published, beside what hpcpar says. This page is the output of
`python bench/papers/page.py`; every section is that of the command above it, which also prints
every bar (`--bars`), writes everything (`--json FILE`) and draws it (`--plot FILE`). *Closed form*
is the paper's own formula (`hpcpar/papers/`, `bench/papers/equations/`), *schedule* is what hpcpar
would execute, priced on the machine preset. Most of the papers' figures are drawings without
numbers: compared is what their text prints. Nothing is measured here. Presets and their sources:
[machines](../reference/machines.md).

Every row with a published figure has a verdict on the first column of ours: *reproduced* (to the
digits that are printed), *within x%* (up to 20), *not reproduced because* of what is known to
differ in this row, or *not understood*. Tables that compare a paper's formula with our schedule
have another heading, and no verdict. `python bench/papers/recount.py` counts the verdicts again,
from this page alone.
"""


def bench(name: str) -> tuple[str, Report]:
    """The docstring and the report of a bench."""
    module = importlib.import_module(f"bench.papers.{name}")
    return str(module.__doc__), module.report()


def table(section: Section) -> str:
    """A section's title and table in Markdown."""
    heads, rows = section.table()
    lines = [heads, ["---"] * len(heads), *rows]
    text = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in lines)
    return f"{section.title}:\n\n{text}\n"


def part(name: str, doc: str, report: Report) -> str:
    """The section of a bench: title, command, settings, tables, remarks."""
    settings = [text for text in doc.split("\n\n")[1:] if not text.startswith(" ")]
    remarks = "".join(f"* {remark}\n" for remark in report.remarks)
    return "\n".join([f"## {report.title}\n", f"```sh\npython bench/papers/{name}.py\n```\n",
                      "\n\n".join(settings).strip() + "\n", *map(table, report.sections), remarks])


def summary(reports: list[Report]) -> str:
    """The table of reproduced and missing parts."""
    rows = [f"| {r.title} | {r.reproduced} | {r.missing or 'nothing'} | {r.counts} |"
            for r in reports]
    return "\n".join(["| paper | reproduced | not reproduced | published figures |",
                      "| --- | --- | --- | --- |", *rows, ""])


def page() -> str:
    """The whole page."""
    found = {name: bench(name) for name in BENCHES}
    parts = [part(name, *given) for name, given in found.items()]
    return "\n".join([INTRODUCTION, summary([r for _, r in found.values()]), *parts])


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options, text = parser.parse_args(), page()
    if options.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
