"""A scaling study as one self-contained HTML page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from hpcpar.errors import InputError
from hpcpar.report.sweep_points import Point
from hpcpar.report.tables.sweep_table import LEFT, columns, conclusion, notes, rows

_STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --faint: #555; --rule: #ddd; }
@media (prefers-color-scheme: dark) {
  :root { --text: #ddd; --page: #181818; --faint: #aaa; --rule: #444; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem;
  padding: 0 1rem; color: var(--text); background: var(--page); }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 0 0 0.5rem; }
.answer { font-size: 1.15rem; font-weight: 600; max-width: 60rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.85rem; }
th, td { padding: 0.25rem 0.5rem; text-align: right; border-bottom: 1px solid var(--rule); }
td { white-space: nowrap; } th { border-bottom-width: 2px; vertical-align: bottom; }
.text { text-align: left; } .wide { overflow-x: auto; }
@media (max-width: 64rem) { table { font-size: 0.75rem; } th, td { padding: 0.2rem 0.25rem; } }
.pictures { display: grid; gap: 1.5rem; margin-top: 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(34rem, 100%), 1fr)); }
figure { margin: 0; } img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
.note { color: var(--faint); margin: 0.2rem 0; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0.1rem 1rem; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
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
    return (f'<figure><h2>{title}</h2>'
            f'<img alt="{title}" src="data:image/svg+xml;base64,{data}"></figure>')


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
    lines = ["<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
             f"<title>{escape(title)}</title>",
             '<meta name="viewport" content="width=device-width, initial-scale=1">',
             f"<style>{_STYLE}</style></head><body>", f"<h1>{escape(title)}</h1>",
             f'<p class="answer">{escape(conclusion(points))}</p>', "<dl>"]
    lines += [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in settings]
    lines += ["</dl>", '<div class="wide"><table>', _cells("th", columns(points))]
    lines += [_cells("td", row) for row in rows(points)]
    lines.append("</table></div>")
    lines += [f'<p class="note">{escape(note)}</p>' for note in notes(points)]
    lines += ['<div class="pictures">', *(_image(path, heading) for heading, path in images),
              "</div>"]
    if missing:
        lines.append(f'<p class="note">{escape(missing)}</p>')
    return "\n".join([*lines, "</body></html>", ""])
