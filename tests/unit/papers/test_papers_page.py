"""docs/results/papers.md is what bench/papers/page.py writes: a stale figure fails."""

from __future__ import annotations

import pytest

from bench.papers import page, recount
from bench.papers.common import Claim, Report, Section, Value

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


def test_a_table_has_no_empty_columns() -> None:
    claims = [Claim("a|b", 2.0, 1.0, "x", also={"other way": 3.0}), Claim("c", None, "text")]
    assert page.table(Section("Title", claims, "searched")) == "\n".join((
        "Title:", "", "|  | published | searched | ratio | other way | verdict |",
        "| --- | --- | --- | --- | --- | --- |", "| a/b | 2x | 1x | 0.50 | 3x | not understood |",
        "| c | - | text | - |  |  |", ""))
    text = page.part("owt", "One line.\n\n    command\n\nSettings\nof it.\n",
                     Report("Paper", [Section("Title", claims)], remarks=["Why."]))
    assert text.startswith("## Paper\n\n```sh\npython bench/papers/owt.py\n```\n\nSettings\nof it.")
    assert text.endswith("\n* Why.\n")


@pytest.mark.parametrize(("published", "ours", "verdict"), [
    (12.0, 12.25, "reproduced"), (0.0, 0.0, "reproduced"), (64.0, 52.07, "within 19%"),
    (5.0, 2.2, "not understood"), (None, 3.0, ""), ("> 2x", 2.1, "reproduced"),
    ("> 2x", 1.9, "not understood"), ("< 16 GB", 5.4, "reproduced"),
    ("10 to 30%", 20.0, "reproduced"), ("10 to 30%", 4.8, "not understood"),
    ("up to 4x", 1.35, "not understood"), ("data < ds", "data < ds", "reproduced"),
    ("data < ds", "ds < data", "not understood"), (96.1, None, "not understood"),
])
def test_verdicts_are_words(published: Value, ours: Value, verdict: str) -> None:
    assert Claim("a", published, ours).verdict == verdict
    known = Claim("a", published, ours, because="it rains").verdict
    assert known == verdict.replace("not understood", "not reproduced because it rains")


def test_figures_of_our_own_have_no_verdict_and_do_not_count() -> None:
    claims = [Claim("a", 2.0, 2.0), Claim("b", None, 3.0), Claim("c", 1.0, 5.0)]
    published, formula = Section("Fig 1", claims), Section("Table 3", claims, "ours", "formula")
    assert page.table(formula).splitlines()[2] == "|  | formula | ours | ratio |"
    assert Report("Paper", [published, formula]).counts == "1 reproduced, 1 not understood"


def test_the_counts_of_the_page_are_those_of_its_published_figures() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert recount.recounted(text) == recount.stated(text)
    assert len(recount.stated(text)) == len(page.BENCHES)


def test_a_recount_finds_a_wrong_count() -> None:
    claims = [Claim("a", 2.0, 2.0), Claim("b", None, 3.0)]
    paper = Report("Paper", [Section("Fig 1", claims), Section("Own", claims, "ours", "formula")])
    text = "\n".join([page.summary([paper]), page.part("owt", "One line.", paper)])
    assert recount.recounted(text) == recount.stated(text) == {"Paper": "1 reproduced"}
    assert recount.stated(text.replace("1 reproduced |", "2 reproduced |")) != recount.recounted(
        text)


def test_every_published_figure_of_the_page_has_a_verdict() -> None:
    words = ("reproduced", "within ", "not reproduced because ", "not understood")
    kept = page.PAGE.read_text(encoding="utf-8").split("\n\n")
    for table in [t.splitlines() for t in kept if t.startswith("|  | published")]:
        heads = [cell.strip() for cell in table[0].split("|")[1:-1]]
        for line in table[2:]:
            row = dict(zip(heads, (cell.strip() for cell in line.split("|")[1:-1]), strict=True))
            assert row["published"] == "-" or row["verdict"].startswith(words), line
