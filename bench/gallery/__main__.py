"""Predict the published training runs from the catalog of devices and the presets alone.

Usage: python -m bench.gallery [-o docs/results/gallery.md] [--picture docs/pictures/gallery.png]

It predicts every row in float32, TF32 and mixed precision of ``runs.csv`` and ``inference.csv``
that it can, prints how far it is off by device, network and number of devices, the speedups and the
worst rows, and writes the page and its pictures. Under 20 minutes.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterable

from bench.gallery import (
    allreduces,
    anchored,
    intervals,
    large,
    left_out,
    memory,
    picture,
    scaling,
    scaling_left_out,
    speedups,
)
from bench.gallery.prediction import Result, predict, unpredictable
from bench.gallery.rows import Row, forward_passes, runs
from bench.gallery.series import series
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


def page(training: Gallery, forward: Gallery, pairs: list[scaling.Pair],
         many_devices: list[large.Large], image: str, curves: str) -> str:
    """The page, as Markdown."""
    one = [r for r in training.counted if r.row.devices == "1"]
    many = [r for r in training.counted if r.row.devices != "1"]
    faster = list(speedups.speedups(training.counted))
    out = ["# Other people's machines", "",
           f"![Predicted against measured time of an iteration, by device]({image})", "",
           "Published training runs in float32, TF32 and mixed precision (data and sources:",
           "`bench/gallery/README.md`), predicted from data sheets alone: devices of the",
           "catalog, levels of the presets, no calibration. Written by",
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
           *scaling.lines(pairs, curves), *scaling_left_out.lines(), *large.lines(many_devices),
           *allreduces.lines(),
           *speedup_lines(faster), *anchored.lines(), *shared_lines(training.shown),
           *memory.lines([*training.counted, *training.shown]), *forward_lines(forward),
           *intervals.lines(),
           "## The twenty worst", "", *worst(training.counted), "## Not counted", "",
           *training.not_counted(), "Predicted, but not counted:", "",
           *table("why", lambda r: r.row.doubt, training.shown)]
    return "\n".join(out)


def speedup_lines(faster: list[speedups.Speedup]) -> list[str]:
    """The section on speedups."""
    return ["## Speedups", "",
            "Samples per second, as a multiple of the samples per second on the fewest devices",
            "with the same source, network, input, machine, framework, batch per device, exchange,",
            "data and note. A run on one device has no exchange and fits any. Counted rows only;",
            "the error is |predicted speedup / measured speedup - 1|. How gradients are exchanged",
            "comes from each framework's documentation (`--framework`): buckets, Horovod's cycle,",
            "what overlaps, when weights are updated. Two rules (`bench/gallery/README.md`)",
            "were chosen with these residuals in view.", "",
            *speedups.table(faster), "The five worst:", "", *speedups.worst(faster)]


def shared_lines(shown: list[Result]) -> list[str]:
    """The section on runs in which several devices share a sample."""
    alone = next((r for r in shown if r.row.machine == "fugaku" and r.row.batch == 1
                  and r.row.graph_name == "cosmoflow_2"), None)
    out = ["## A sample on several nodes", "",
           "CosmoFlow on Fugaku (MLPerf HPC v0.7), the image cut in depth, or in depth and height;",
           "times as fast as with a sample per node. What is measured fits 85 ms that every node",
           "spends and 145 ms that nodes share. Neither messages (7 ms) nor tiles of a small box",
           "on 48 cores make 85 ms; reading and decoding the whole sample on the same cores may",
           "(input is part of the figures, and is not predicted). A64FX and KNL keep one rate",
           "each: the model of kernels is not fitted to them.", "",
           "| nodes | nodes per sample | measured | predicted | times as fast, measured | "
           "predicted |", "| --- | --- | --- | --- | --- | --- |"]
    for result in sorted((r for r in shown if r.row.batch < 1), key=lambda r: -r.row.batch):
        row = result.row
        assert alone is not None
        out.append(f"| {int(row.devices):,} | {1 / row.batch:g} | {1e3 * row.iteration_s:.0f} ms | "
                   f"{1e3 * result.predicted_s:.0f} ms | "
                   f"{alone.row.iteration_s / row.iteration_s:.2f} | "
                   f"{alone.predicted_s / result.predicted_s:.2f} |")
    return [*out, ""] if alone else []


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
    parser.add_argument("--curves", default="docs/pictures/efficiency.png")
    args = parser.parse_args()
    training, forward = Gallery(runs()), Gallery(forward_passes())
    several = [predict(row) for row in series() if not row.doubt and not unpredictable(row)]
    pairs = list(scaling.pairs([*training.counted, *several]))
    picture.draw(training.counted, args.picture)
    picture.draw_curves(scaling.curves(pairs), args.curves)
    images = (os.path.relpath(each, os.path.dirname(args.o) or ".")
              for each in (args.picture, args.curves))
    text = page(training, forward, pairs, list(map(large.predicted, large.rows())), *images)
    print(text)
    with open(args.o, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
