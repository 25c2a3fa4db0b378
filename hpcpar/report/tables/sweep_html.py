"""A scaling study as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcpar.errors import InputError
from hpcpar.report.sweep_points import Point
from hpcpar.report.tables.document import image, page_format
from hpcpar.report.tables.sweep_table import columns, conclusion, notes, rows


def _image(path: str, heading: str) -> str:
    try:
        with open(path, "rb") as f:
            return image(f.read(), heading)
    except OSError as err:
        raise InputError(f"cannot read picture {path}: {err.strerror}") from err


def page(title: str, settings: Sequence[tuple[str, str]], points: Sequence[Point],
         images: Sequence[tuple[str, str]], missing: str) -> str:
    """The HTML text of the page.

    Parameters
    ----------
    images : sequence of (str, str)
        Heading and SVG file of every picture.
    missing : str
        The reason if there are no pictures, else empty.
    """
    parts: list[Any] = [("title", title), ("answer", conclusion(points)),
                        ("table", [columns(points), *rows(points)])]
    parts += [("note", note) for note in notes(points)]
    for heading, path in images:
        parts += [("heading", heading), ("picture", _image(path, heading))]
    parts += [("note", missing)] * bool(missing)
    parts += [("heading", "Settings"), *(("text", f"{name}: {value}") for name, value in settings)]
    return page_format("report.html").page(parts)
