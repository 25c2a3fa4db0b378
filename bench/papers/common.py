"""Tables, panels and options shared by the paper benches.

A bench prints published and own figures as tables, as JSON, as bars in the terminal and as a plot.
``page.py`` writes them, and the prose of the bench, into the documentation.

A bench is a module whose docstring says how to run it, and a function that makes its `Report`:

    def report() -> Report:
        return Report("Title", [Section("Fig 1", [Claim("speedup", 2.0, 1.9, "x")])])

    if __name__ == "__main__":
        sys.exit(main(__doc__, report))

A bench with options of its own adds them to `parser` and passes the parsed options and the report
to `publish`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hpcpar.machine import files
from hpcpar.machine.model import Machine

#: Width of the tables without a terminal.
PLAIN_WIDTH = 170

#: Heading of the column whose figures are a paper's.
PUBLISHED = "published"
Value = float | str | None
#: Parts of a published number: what its printed digits leave open, and what counts as near.
PRINTED, NEAR = 0.025, 0.2
#: A published bound or range, as in "> 2x", "up to 4x" (it is reached) and "10 to 30%".
_BOUNDS = re.compile(r"(?:([<>]|up to) )?([\d.]+)(?: to ([\d.]+))?\D*")


@dataclass(frozen=True)
class Claim:
    """A row of the table.

    Attributes
    ----------
    published, ours : float, str or None
        None where there is nothing to say; only two numbers have a ratio.
    unit : str
        Written behind both ("x", " ms").
    note : str
        The difference, and its reason.
    also : mapping
        Further columns: our value counted in other ways.
    because : str
        Why ours differs from the published value, where that is known.
    judged : str
        The verdict, where numbers do not give it.
    """

    what: str
    published: Value
    ours: Value
    unit: str = ""
    note: str = ""
    also: Mapping[str, Value] = field(default_factory=dict)
    because: str = ""
    judged: str = ""

    @property
    def ratio(self) -> float | None:
        """Ratio of our value to the published one; None without two numbers."""
        ours, published = self.ours, self.published
        return (
            ours / published
            if isinstance(ours, int | float) and isinstance(published, int | float) and published
            else None
        )

    @property
    def verdict(self) -> str:
        """The comparison in words; empty where nothing is published."""
        if self.judged or self.published is None:
            return self.judged
        off = self._off
        if off <= PRINTED:
            return "reproduced"
        if off <= NEAR:
            return f"within {math.ceil(100 * off)}%"
        return f"not reproduced because {self.because}" if self.because else "not understood"

    @property
    def _off(self) -> float:
        """Relative distance from the published value; infinity where it is not a number."""
        if self.ratio is not None:
            return abs(self.ratio - 1)
        bounds = _BOUNDS.fullmatch(self.published) if isinstance(self.published, str) else None
        if bounds is None or not isinstance(self.ours, int | float):
            return 0.0 if self.ours == self.published else math.inf
        sign, low, high = bounds[1], float(bounds[2]), float(bounds[3] or bounds[2])
        least = -math.inf if sign == "<" else low
        most = math.inf if sign == ">" else high
        return 0.0 if least <= self.ours <= most else math.inf


@dataclass(frozen=True)
class Panel:
    """One panel of stacked bars.

    Attributes
    ----------
    figure, title : str
        Panels of one figure stand in a row.
    bars : mapping
        Label -> part -> value, every bar with the same parts.
    marks : mapping
        Label -> text over that bar; marks are also printed.
    """

    figure: str
    title: str
    bars: Mapping[str, Mapping[str, float]]
    unit: str = "s"
    marks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """A table: its title, its rows, and the headings of both columns.

    Only rows under the heading "published" have verdicts: another heading names a figure of ours,
    such as a paper's formula with our values.
    """

    title: str
    claims: Sequence[Claim]
    ours: str = "ours"
    reference: str = PUBLISHED

    @property
    def published(self) -> list[Claim]:
        """The rows with a published figure."""
        return [c for c in self.claims if c.published is not None and self.reference == PUBLISHED]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows as text, without columns that are empty."""
        others = dict.fromkeys(name for c in self.claims for name in c.also)
        heads = ["", self.reference, self.ours, "ratio", *others, "verdict", "note"]
        judged = self.published
        rows = []
        for c in self.claims:
            ratio = "-" if c.ratio is None else f"{c.ratio:.2f}"
            also = [text(c.also[name], c.unit) if name in c.also else "" for name in others]
            rows.append([c.what, text(c.published, c.unit), text(c.ours, c.unit), ratio, *also,
                         c.verdict if c in judged else "", c.note])
        kept = [i for i in range(len(heads)) if any(row[i] not in ("", "-") for row in rows)]
        return [heads[i] for i in kept], [[row[i] for i in kept] for row in rows]


@dataclass(frozen=True)
class Report:
    """Results of a bench.

    Attributes
    ----------
    remarks : sequence of str
        Sentences below the tables.
    reproduced, missing : str
        The reproduced and the missing parts of the paper, in a few words.
    """

    title: str
    sections: Sequence[Section]
    panels: Sequence[Panel] = ()
    remarks: Sequence[str] = ()
    reproduced: str = ""
    missing: str = ""

    @property
    def claims(self) -> list[Claim]:
        return [claim for section in self.sections for claim in section.claims]

    @property
    def counts(self) -> str:
        """How many published figures have each verdict."""
        return counted([c.verdict for section in self.sections for c in section.published])


def counted(verdicts: Sequence[str]) -> str:
    """How often each kind of verdict occurs, as in: 3 reproduced, 2 within 20%."""
    kinds = {"reproduced": "reproduced", "within": f"within {NEAR:.0%}",
             "not reproduced": "not reproduced", "not understood": "not understood"}
    found = {name: sum(v.startswith(kind) for v in verdicts) for kind, name in kinds.items()}
    return ", ".join(f"{count} {kind}" for kind, count in found.items() if count)


def on_data_sheet(machine: Machine, device: str, year: float) -> Machine:
    """The machine with a device of the catalog and libraries of this year.

    The model of kernels prices it, by the shapes of a layer's parts.
    """
    data = files.to_dict(machine) | {"device": {"name": device, "software_year": year}}
    return files.from_dict(data, device)


def listed(values: Mapping[str, float], form: str = ".3g", unit: str = "") -> str:
    """Names and numbers in one line, as in: AlexNet 1.6x, VGG-16 1.1x."""
    return ", ".join(f"{name} {value:{form}}{unit}" for name, value in values.items())


def span(values: Iterable[Value], form: str = ".3g", unit: str = "x") -> str:
    """Least and most of some numbers, as in: 1.1 to 1.6x."""
    numbers = sorted(float(value) for value in values if value is not None)
    return f"{numbers[0]:{form}} to {numbers[-1]:{form}}{unit}"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Command line options of a bench, described by the first line of its docstring."""
    out = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    out.add_argument("--bars", action="store_true", help="also print every bar of the figures")
    out.add_argument("--json", type=Path, metavar="FILE", help="also write claims and bars here")
    out.add_argument("--plot", type=Path, metavar="FILE",
                     help="also draw the bars here (PNG, PDF or SVG)")
    return out


def text(value: Value, unit: str = "") -> str:
    """A value as table text: four digits, and `unit` after a number."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}") + unit


def _table(title: str, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]],
           out: Console) -> None:
    """Print a table; a column is a name and whether its cells are text (to the left, wrapped)."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, is_text in columns:
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text,
                         overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _print(report: Report, bars: bool) -> None:
    out = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    out.print(report.title)
    for section in report.sections:
        heads, rows = section.table()
        words = ("", "verdict", "note")
        _table(section.title, [(head, head in words) for head in heads], rows, out)
    for panel in report.panels:
        if bars:
            parts = list(next(iter(panel.bars.values())))
            lines = [
                [label, *(f"{bar[part]:.2f}" for part in parts), f"{sum(bar.values()):.2f}",
                 panel.marks.get(label, "")]
                for label, bar in panel.bars.items()
            ]
            names = [(f"{part} ({panel.unit})", False) for part in (*parts, "total")]
            _table(f"{panel.figure}, {panel.title}", [("", True), *names, ("", True)], lines, out)
        else:
            for label, mark in panel.marks.items():
                out.print(f"{panel.figure}, {panel.title}: {label} {mark}")
    for remark in report.remarks:
        out.print(remark)


def _plain(report: Report) -> dict[str, Any]:
    claims = [
        {"what": c.what, "published": c.published, "ours": c.ours, "ratio": c.ratio,
         "unit": c.unit.strip(), "note": c.note, "also": dict(c.also),
         "verdict": c.verdict if c in section.published else ""}
        for section in report.sections for c in section.claims
    ]
    panels = [
        {"figure": p.figure, "title": p.title, "unit": p.unit,
         "bars": {k: dict(v) for k, v in p.bars.items()}, "marks": dict(p.marks)}
        for p in report.panels
    ]
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"title": report.title, "date": date, "claims": claims, "panels": panels,
            "remarks": list(report.remarks)}


def _draw_panel(axes: Any, panel: Panel, colors: Mapping[str, str]) -> None:
    at = range(len(panel.bars))
    bottom = [0.0] * len(panel.bars)
    for part in next(iter(panel.bars.values())):
        heights = [bar[part] for bar in panel.bars.values()]
        axes.bar(at, heights, bottom=bottom, width=0.7, color=colors[part], label=part)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    for i, label in enumerate(panel.bars):
        if label in panel.marks:
            # the text is wider than a bar
            clear = max(bottom[max(0, i - 2): i + 3]) + 0.03 * max(bottom)
            line = {"arrowstyle": "-", "linewidth": 0.6}
            axes.annotate(panel.marks[label], (i, bottom[i]), (i, clear), ha="center", fontsize=7,
                          weight="bold", arrowprops=line)
    axes.set_xticks(list(at), list(panel.bars), rotation=60, ha="right", fontsize=7)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_title(panel.title, fontsize=9)
    axes.set_ylim(0, 1.15 * max(bottom))
    axes.set_ylabel(f"{panel.figure} ({panel.unit})", fontsize=8)


def draw(report: Report, path: Path) -> None:
    """Draw all panels, one row per figure."""
    try:
        import matplotlib
    except ImportError as err:
        raise SystemExit(
            f"plots need matplotlib ({err}); install it with: pip install matplotlib") from err
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows: dict[str, list[Panel]] = {}
    for panel in report.panels:
        rows.setdefault(panel.figure, []).append(panel)
    parts = list(dict.fromkeys(part for panel in report.panels for bar in panel.bars.values()
                               for part in bar))
    colors = {part: f"C{i}" for i, part in enumerate(parts)}
    across = max(len(panels) for panels in rows.values())
    figure, grid = plt.subplots(len(rows), across, figsize=(3.6 * across, 2.9 * len(rows) + 0.6),
                                squeeze=False, layout="constrained")
    for line, panels in zip(grid, rows.values(), strict=True):
        for axes in line[len(panels):]:
            axes.set_visible(False)
        for axes, panel in zip(line, panels, strict=False):
            _draw_panel(axes, panel, colors)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in colors.values()]
    figure.legend(handles, colors, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(report.title, fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def publish(report: Report, options: argparse.Namespace) -> None:
    """Print the report, and write the files that the options name."""
    _print(report, options.bars)
    if options.json:
        options.json.write_text(json.dumps(_plain(report), indent=1) + "\n")
    if options.plot:
        draw(report, options.plot)


def main(doc: str | None, make: Callable[[], Report],
         arguments: Sequence[str] | None = None) -> int:
    """Run a bench without options of its own; `doc` is its docstring."""
    options = parser(doc).parse_args(arguments)
    publish(make(), options)
    return 0
