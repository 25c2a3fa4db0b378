"""A scaling study as one self-contained HTML page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from hpcpar.errors import InputError
from hpcpar.report.sweep_points import Point
from hpcpar.report.sweep_table import COLUMNS, LEFT, notes, rows

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem;
  padding: 0 1rem; color: #222; background: #fff; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd;
  white-space: nowrap; }
th { border-bottom: 2px solid #888; } .text { text-align: left; }
.wide { overflow-x: auto; } img { max-width: 100%; height: auto; }
.note { color: #555; margin: 0.2rem 0; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0.1rem 1rem; }
dt { color: #555; } dd { margin: 0; }
"""


def _cells(tag: str, cells: Sequence[str]) -> str:
    """One row of the table."""
    kinds = [" class=text"] * LEFT + [""] * (len(cells) - LEFT)
    row = [f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)]
    return f"<tr>{''.join(row)}</tr>"


def _image(path: str, heading: str) -> str:
    try:
        with open(path, "rb") as f:
            data = base64.b64encode(f.read()).decode()
    except OSError as err:
        raise InputError(f"cannot read picture {path}: {err.strerror}") from err
    title = escape(heading)
    return f'<h2>{title}</h2>\n<img alt="{title}" src="data:image/svg+xml;base64,{data}">'


def page(title: str, settings: Sequence[tuple[str, str]], points: Sequence[Point],
         images: Sequence[tuple[str, str]], missing: str) -> str:
    """The HTML text of the page.

    Parameters
    ----------
    images : sequence of (str, str)
        Heading and SVG file of every picture.
    missing : str
        Why there are no pictures; empty where there are.
    """
    lines = ["<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
             f"<title>{escape(title)}</title>",
             '<meta name="viewport" content="width=device-width, initial-scale=1">',
             f"<style>{_STYLE}</style></head><body>", f"<h1>{escape(title)}</h1>", "<dl>"]
    lines += [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in settings]
    lines += ["</dl>", '<div class="wide"><table>', _cells("th", COLUMNS)]
    lines += [_cells("td", row) for row in rows(points)]
    lines.append("</table></div>")
    lines += [f'<p class="note">{escape(note)}</p>' for note in notes(points)]
    lines += [_image(path, heading) for heading, path in images]
    if missing:
        lines.append(f'<p class="note">{escape(missing)}</p>')
    return "\n".join([*lines, "</body></html>", ""])
