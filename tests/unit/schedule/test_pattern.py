"""The table of movements in the code is the one that the documentation prints."""

from __future__ import annotations

from pathlib import Path

from hpcpar.schedule.pattern import ANYTHING_ELSE, ROWS, Fit, Row
from hpcpar.schedule.steps import Kind

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "schedule.md"
KINDS = {"nothing": None, "halo exchange": Kind.HALO, "allgather": Kind.ALLGATHER,
         "reduce-scatter": Kind.REDUCE_SCATTER, "allreduce": Kind.ALLREDUCE,
         "redistribution": Kind.REDISTRIBUTE}


def printed() -> list[tuple[str, Row]]:
    """Column "in the code", and the three kinds, of every row."""
    lines = PAGE.read_text(encoding="utf-8").split("| needed box |")[1].split("\n\n")[0]
    found = []
    for line in lines.splitlines()[2:]:
        code, *kinds = (cell.strip() for cell in line.strip().strip("|").split("|")[1:])
        there, back, summed = (KINDS[kind.split(":")[0].removesuffix(" that adds")]
                               for kind in kinds)
        found.append((code, (there, back, summed)))
    return found


def test_documentation_and_code_have_the_same_rows() -> None:
    rows: dict[Fit, Row] = {}
    for code, row in printed():
        words = code.replace("`", "").replace(",", " ").split()
        alternatives = [words]
        if "(and" in words:
            at = words.index("(and")
            alternatives = [words[:at], [*words[:at], words[at + 1].rstrip(")")]]
        for names in alternatives:
            fits = Fit.EQUAL if names else Fit.IRREGULAR
            for name in names:
                fits |= Fit[name]
            rows[fits] = row
    assert rows.pop(Fit.IRREGULAR) == ANYTHING_ELSE
    assert rows == ROWS
