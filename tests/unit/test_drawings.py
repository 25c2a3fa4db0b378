"""The pictures of the explanations are what their script draws, and every page has one."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib", reason="pictures come with the extra 'plot'")

from docs.drawings.__main__ import PICTURES, draw
from docs.drawings.diagrams import ROOMS
from docs.drawings.style import FOLDER
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


def test_drawings_are_current(tmp_path: Path) -> None:
    """``python -m docs.drawings`` draws them."""
    draw(folder=tmp_path)
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
