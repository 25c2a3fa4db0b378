"""The pictures of the explanations are what their script draws, and every page has one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib", reason="pictures come with the extra 'plot'")

from matplotlib import rc_context
from matplotlib.path import Path as Outline
from matplotlib.text import Text

from docs.drawings.__main__ import PICTURES
from docs.drawings.diagrams import ROOMS
from docs.drawings.style import FOLDER, STYLE, Canvas, canvas, save
from tests.unit import test_rooms

PAGES = sorted((FOLDER.parent / "explanation").glob("*.md"))
IMAGE = re.compile(r"!\[([^\]]*)\]\(\.\./pictures/([\w-]+)\.svg\)")
NUMBER = re.compile(r"-?\d+\.?\d*")
SVG = "{http://www.w3.org/2000/svg}"
COLOR = re.compile(r"(?:fill|stroke): *(#\w+|none)")
#: Largest difference of a coordinate (points): another release of NumPy may round otherwise.
CLOSE = 0.02


def seen(path: Path) -> tuple[list[str], list[float]]:
    """The words of a picture with the colors of its shapes, and their coordinates.

    Names of elements, the order of styles and the places of words are matplotlib's, and differ
    between its releases.
    """
    words, numbers = [], []
    for element in ElementTree.parse(path).iter():
        if element.tag == f"{SVG}text":
            words.append(element.text or "")
        elif element.tag == f"{SVG}path":
            numbers += [float(n) for n in NUMBER.findall(element.get("d", ""))]
            words += sorted(COLOR.findall(element.get("style", "")))
        elif element.tag == f"{SVG}use":
            numbers += [float(element.get("x", "0")), float(element.get("y", "0"))]
            words += sorted(COLOR.findall(element.get("style", "")))
    return words, numbers


@pytest.fixture(scope="module")
def drawn() -> dict[str, Canvas]:
    """All pictures."""
    with rc_context(STYLE):
        return {name: picture() for name, picture in PICTURES.items()}


def lines(figure: Any) -> Iterator[Outline]:
    """Lines, arrows, and outlines that are not filled, in pixels of the figure."""
    for axes in figure.axes:
        arrows = [arrow for text in axes.texts if (arrow := getattr(text, "arrow_patch", None))]
        hollow = [patch for patch in axes.patches if patch.get_facecolor()[3] == 0.0]
        for shape in (*axes.lines, *arrows, *hollow):
            outline = shape.get_transform().transform_path(shape.get_path())
            yield from map(Outline, outline.to_polygons(closed_only=False))


def crossed(page: Canvas) -> list[str]:
    """The labels that a line crosses."""
    page.figure.canvas.draw()
    words = [text for text in page.figure.findobj(Text) if text.get_text() and text.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent().padded(-1.0)) for text in words]
    return [word for outline in lines(page.figure) for word, box in boxes
            if outline.intersects_bbox(box, filled=False)]


def test_no_line_crosses_a_label(drawn: dict[str, Canvas]) -> None:
    with rc_context(STYLE):
        assert {name: found for name, page in drawn.items() if (found := crossed(page))} == {}


def test_crossed_labels_are_found() -> None:
    """A line, an arrow and a dashed box each cross one of four labels."""
    with rc_context(STYLE):
        page = canvas(100)
        for i, word in enumerate(("line", "arrow", "box", "free")):
            page.text(50, 20 + 20 * i, word)
        page.line((50, 10), (50, 30))
        page.arrow((10, 40), (90, 40))
        page.box(45, 50, 300, 20, filled=False, dashed=True)
        assert sorted(crossed(page)) == ["arrow", "box", "line"]


def test_drawings_are_current(drawn: dict[str, Canvas], tmp_path: Path) -> None:
    """``python -m docs.drawings`` draws them."""
    with rc_context(STYLE):
        for name, page in drawn.items():
            save(page, name, tmp_path)
    names = {path.name for path in tmp_path.glob("*.svg")}
    assert {path.name for path in FOLDER.glob("*.svg")} == names
    for name in sorted(names):
        (words, numbers), (old_words, old_numbers) = seen(tmp_path / name), seen(FOLDER / name)
        remedy = f"{name} is not what the script draws: run python -m docs.drawings"
        assert words == old_words, remedy
        assert numbers == pytest.approx(old_numbers, abs=CLOSE), remedy


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_explanation_has_a_picture(page: Path) -> None:
    found = IMAGE.findall(page.read_text(encoding="utf-8"))
    assert found
    for alt, name in found:
        assert name in PICTURES and len(alt) > 40, f"{page.name}: say what {name}.svg shows"


def test_every_picture_is_on_a_page() -> None:
    shown = {name for page in PAGES for _, name in IMAGE.findall(page.read_text(encoding="utf-8"))}
    assert shown == set(PICTURES)


def test_the_picture_of_rooms_has_their_order() -> None:
    folders = [room for room in test_rooms.ROOMS if (test_rooms.ROOT / room).is_dir()]
    assert list(ROOMS) == folders
