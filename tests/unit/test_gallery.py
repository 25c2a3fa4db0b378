"""The gallery of published runs: the page and its picture."""

from __future__ import annotations

from pathlib import Path

from bench.gallery import picture
from bench.gallery.__main__ import Gallery, page
from bench.gallery.rows import runs


def test_the_page_has_all_sections_and_the_picture(tmp_path: Path) -> None:
    training = Gallery(row for row in runs() if row.network == "alexnet_owt")
    assert training.counted and training.shown
    text = page(training, "../pictures/gallery.png")
    assert "![Predicted" in text and "](../pictures/gallery.png)" in text
    for title in "The twenty worst", "Not counted":
        assert f"## {title}" in text
    picture.draw(training.counted, str(tmp_path / "gallery.png"))
    assert (tmp_path / "gallery.png").stat().st_size > 10_000
