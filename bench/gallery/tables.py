"""Tables of the page: how far the predictions are off, by device, network, machine; the worst."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from bench.gallery.prediction import Result

#: Further columns: title -> cell of some results.
COLUMNS: dict[str, Callable[[Sequence[Result]], str]] = {}
TITLES = ("rows", "accuracy", "median ratio", "within 20%", "within a factor of 2")


def line(label: str, results: Sequence[Result]) -> str:
    """A row of a table: `judgment`, then `COLUMNS`."""
    return (judgment(label, [result.log for result in results])
            + "".join(f" {cell(results)} |" for cell in COLUMNS.values()))


def judgment(label: str, log_ratios: Sequence[float]) -> str:
    """A row of a table: count, mean accuracy, median ratio, shares within 20% and a factor of 2."""
    logs = np.array(log_ratios)
    off = np.abs(np.exp(logs) - 1)
    return (f"| {label} | {len(logs)} | {100 * np.mean(1 - np.minimum(off, 1)):.0f}% | "
            f"{math.exp(np.median(logs)):.2f} | {100 * np.mean(off <= 0.2):.0f}% | "
            f"{100 * np.mean(np.abs(logs) <= math.log(2)):.0f}% |")


def table(title: str, of: Callable[[Result], str], results: list[Result]) -> list[str]:
    """A table with a row for each group."""
    titles = (title, *TITLES, *COLUMNS)
    out = [f"| {' | '.join(titles)} |", "|" + " --- |" * len(titles), line("all", results)]
    groups = sorted({of(result) for result in results},
                    key=lambda name: (len(name), name) if name.isdigit() else (0, name))
    return [*out, *(line(name, [r for r in results if of(r) == name]) for name in groups), ""]


def worst(results: list[Result]) -> list[str]:
    """The twenty rows that are furthest off."""
    out = ["| predicted / measured | network | device | devices | batch | framework | measured | "
           "reason |",
           "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for result in sorted(results, key=lambda r: -abs(r.log))[:20]:
        row = result.row
        out.append(f"| {math.exp(result.log):.2f} | {row.network} | {row.device} | {row.devices} | "
                   f"{row.batch:g} | {row.framework} | {row.iteration_ms} ms | {row.reason} |")
    return [*out, ""]
