"""A page of text, tables and a picture, as Markdown, LaTeX or HTML."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from hpcpar.errors import unknown

#: Parts of a page, in order: ``title``, ``heading``, ``text``; ``picture``, which is the name of a
#: file, or in HTML the picture as SVG; ``table``, whose first row names the columns; only in HTML
#: ``answer`` and ``note``.
Parts = Sequence[tuple[str, str | Sequence[Sequence[str]]]]

_PREAMBLE = r"""\documentclass[10pt]{article}
\usepackage[a4paper,margin=16mm]{geometry}
\usepackage{graphicx,textcomp}
\setlength{\parindent}{0pt}\setlength{\parskip}{3pt}\setlength{\tabcolsep}{4pt}
\renewcommand{\arraystretch}{1.2}
\pagestyle{empty}\sloppy
\begin{document}
"""
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
          "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
          "-": "{-}"}
_HEAD = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><meta name="generator" content="hpcpar">
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root { color-scheme: light dark; --text: #222; --page: #fff; --faint: #555; --rule: #ddd; }
@media (prefers-color-scheme: dark) {
  :root { --text: #ddd; --page: #181818; --faint: #aaa; --rule: #444; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
  padding: 0 1rem; color: var(--text); background: var(--page); }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 1.5rem 0 0.3rem; }
p { margin: 0.3rem 0; max-width: 62rem; }
.answer { font-size: 1.15rem; font-weight: 600; } .note { color: var(--faint); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
td { padding: 0.2rem 0.5rem; text-align: right; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
td:first-child { text-align: left; } tr:first-child { font-weight: 600; }
@media (max-width: 64rem) { table { font-size: 0.75rem; } td { padding: 0.2rem 0.3rem; } }
figure { margin: 0.5rem 0; } svg, img { max-width: 100%; height: auto; background: #fff; }
</style>
"""


@dataclass(frozen=True)
class PageFormat:
    """The suffix of the picture's file, if any; beginning, end and templates of a page; a table of
    its rows and number of columns; and text with its special characters escaped.
    """

    beside: str
    ends: tuple[str, str]
    parts: dict[str, str]
    table: Callable[[list[str], int], list[str]]
    escape: Callable[[str], str]

    def page(self, parts: Parts) -> str:
        """The text of a page."""
        texts = []
        for kind, content in parts:
            if isinstance(content, str):
                plain = content if kind == "picture" else self.escape(content)
                texts.append(self.parts[kind].format(plain))
            else:
                cells = [self.parts["cell"].join(map(self.escape, row)) for row in content]
                rows = [self.parts["row"].format(text) for text in cells]
                texts.append("\n".join(self.table(rows, len(content[0]))))
        return self.ends[0] + "\n\n".join(texts) + self.ends[1]


_FORMATS = {
    ".md": PageFormat(
        ".png", ("", "\n"), {"title": "# {}", "heading": "## {}", "text": "{}",
                             "picture": "![scaling](<{}>)", "row": "| {} |", "cell": " | "},
        lambda rows, columns: [rows[0], f"| --- |{' ---: |' * (columns - 1)}", *rows[1:]],
        lambda text: re.sub(r"([\\`*_<>|\[\]])", r"\\\1", text)),
    ".tex": PageFormat(
        ".pdf", (_PREAMBLE, "\n\\end{document}\n"),
        {"title": r"{{\Large\bfseries {}\par}}", "heading": r"\subsection*{{{}}}", "text": "{}",
         "picture": r"\includegraphics[width=\linewidth]{{{}}}", "row": r"{} \\", "cell": " & "},
        lambda rows, columns: [
            rf"{{\footnotesize\begin{{tabular}}{{l{'r' * (columns - 1)}}}\hline",
            rows[0] + r"\hline", *rows[1:], r"\hline\end{tabular}\par}"],
        lambda text: re.sub(r'[\\~^<>|"{}$&#_%]|-(?=-)',
                            lambda c: _LATEX.get(c[0], f"\\{c[0]}"), text)),
    ".html": PageFormat(
        "", (_HEAD, "\n</html>\n"),
        {"title": "<title>{0}</title><h1>{0}</h1>", "heading": "<h2>{}</h2>", "text": "<p>{}</p>",
         "answer": '<p class="answer">{}</p>', "note": '<p class="note">{}</p>', "picture": "{}",
         "row": "<tr><td>{}</td></tr>", "cell": "</td><td>"},
        lambda rows, _: ['<div class="wide"><table>', *rows, "</table></div>"], escape),
}


def image(svg: bytes, heading: str) -> str:
    """A picture for a page in HTML; several may use the same names inside."""
    data = base64.b64encode(svg).decode()
    return f'<figure><img alt="{escape(heading)}" src="data:image/svg+xml;base64,{data}"></figure>'


def page_format(path: str) -> PageFormat:
    """The format of a page by its suffix; an `InputError` where that is unknown."""
    suffix = os.path.splitext(path)[1]
    if suffix not in _FORMATS:
        raise unknown("suffix of a page", suffix, _FORMATS)
    return _FORMATS[suffix]
