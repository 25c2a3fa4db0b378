"""Predict the published training runs from the catalogue of devices and the presets alone.

Usage: python -m bench.gallery [-o docs/results/gallery.md] [--picture docs/pictures/gallery.png]

It predicts every row in float32, TF32 and mixed precision of ``runs.csv`` and ``inference.csv``
that it can, prints how far it is off by device, network and number of devices, the speedups and the
worst rows, and writes the page and its picture. Under 10 minutes.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterable

from bench.gallery import intervals, left_out, picture, speedups
from bench.gallery.prediction import Result, predict, unpredictable
from bench.gallery.rows import Row, forward_passes, runs
from bench.gallery.tables import table, worst


class Gallery:
    """Rows with their predictions, and how many have none for which reason."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.counted: list[Result] = []
        self.shown: list[Result] = []
        self.left: Counter[str] = Counter()
        for row in rows:
            why = unpredictable(row)
            if why:
                self.left[why] += 1
            else:
                (self.shown if row.doubt else self.counted).append(predict(row))

    def not_counted(self) -> list[str]:
        """The reasons and their rows."""
        return ["| why | rows |", "| --- | --- |",
                *(f"| {why} | {count} |" for why, count in self.left.most_common()), ""]


def page(training: Gallery, forward: Gallery, image: str) -> str:
    """The page, as Markdown."""
    one = [r for r in training.counted if r.row.devices == "1"]
    many = [r for r in training.counted if r.row.devices != "1"]
    faster = list(speedups.speedups(training.counted))
    out = ["# Other people's machines", "",
           f"![Predicted against measured time of an iteration, by device]({image})", "",
           "Published training runs in float32, TF32 and mixed precision (data and sources:",
           "`bench/gallery/README.md`), predicted from data sheets alone: devices of the",
           "catalogue, levels of the presets, no calibration. Written by",
           "`python -m bench.gallery`. Accuracy is the mean of",
           "1 - |predicted / measured - 1|, at least 0.", "",
           *left_out.lines(),
           "## One device", "", *table("number format", lambda r: r.row.precision, one),
           *table("device", lambda r: r.row.device, one),
           *table("network", lambda r: r.row.network, one),
           "## Several devices", "", *table("number format", lambda r: r.row.precision, many),
           *table("devices", lambda r: r.row.devices, many),
           *table("machine", lambda r: r.row.machine, many),
           *table("exchange", lambda r: r.row.sync, many),
           *speedup_lines(faster), *forward_lines(forward), *intervals.lines(),
           "## The twenty worst", "", *worst(training.counted), "## Not counted", "",
           *training.not_counted(), "Predicted, but not counted:", "",
           *table("why", lambda r: r.row.doubt, training.shown)]
    return "\n".join(out)


def speedup_lines(faster: list[speedups.Speedup]) -> list[str]:
    """The section on speedups."""
    return ["## Speedups", "",
            "Samples a second, as a multiple of the samples a second on the fewest devices with",
            "the same source, network, input, machine, framework, batch per device, exchange, data",
            "and note. A run on one device has no exchange and fits any. Counted rows only; the",
            "error is |predicted speedup / measured speedup - 1|.", "",
            *speedups.table(faster), "The five worst:", "", *speedups.worst(faster)]


def forward_lines(forward: Gallery) -> list[str]:
    """The section on forward passes alone."""
    return ["## Forward passes alone", "",
            "Rows of `bench/gallery/inference.csv`, all on one device; they take no part in the",
            "fit. All rows count whose network is written down, with synthetic and with real data.",
            "", *table("number format", lambda r: r.row.precision, forward.counted),
            *table("device", lambda r: r.row.device, forward.counted),
            *table("network", lambda r: r.row.network, forward.counted),
            *table("batch", lambda r: f"{r.row.batch:g}", forward.counted),
            *table("framework", lambda r: r.row.framework, forward.counted),
            "Not counted:", "", *forward.not_counted()]


def main() -> None:
    """Predict, print, draw, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", default="docs/results/gallery.md")
    parser.add_argument("--picture", default="docs/pictures/gallery.png")
    args = parser.parse_args()
    training, forward = Gallery(runs()), Gallery(forward_passes())
    picture.draw(training.counted, args.picture)
    image = os.path.relpath(args.picture, os.path.dirname(args.o) or ".")
    text = page(training, forward, image)
    print(text)
    with open(args.o, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
