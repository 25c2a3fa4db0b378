"""Errors of predictions of published runs that another published run anchors.

Usage: python -m bench.gallery.anchored [--write]

It takes the predictions of ``residuals.csv`` (each device left out of the fit), pairs rows of one
series that differ in one thing, and lets each row anchor the other. ``--write`` writes
``hpcpar/cost/anchors.toml``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

from bench.gallery.intervals import PERCENTILES, Residual, percentiles
from bench.gallery.residuals import family, read, rows
from bench.gallery.rows import Row
from hpcpar.cost import anchors
from hpcpar.cost.anchors import MORE_RANKS, AnchoredRuns
from hpcpar.machine.anchored import TimeFactors

FILE = Path(anchors.__file__).with_suffix(".toml")
#: Cells that the rows of a series share.
SERIES = ("source", "network", "input", "device", "machine", "framework", "precision", "devices",
          "batch_per_device", "data", "sync")
#: Distance between an anchor and a row -> the cells that may, and the cells that must.
DISTANCES = {
    "number of ranks": (("devices", "sync", "machine"), ("devices",)),
    "batch": (("batch_per_device",), ("batch_per_device",)),
    "number of ranks and batch": (("devices", "sync", "machine", "batch_per_device"),
                                  ("devices", "batch_per_device")),
    "number format": (("precision",), ("precision",)),
    "device": (("device", "machine"), ("device",)),
    "network": (("network", "input", "batch_per_device"), ("network",)),
}
#: Distances that change the share; at others it is 1, so that times keep the model's ratios.
SHARED = ("number format", "device", "network")
#: Distance at which an anchor is worth nothing, for the page alone.
REFUSED = "network"


@dataclass(frozen=True)
class Anchored:
    """A row, the logarithm of predicted over measured time, and the same of its anchor; for two
    numbers of ranks, `remains` is what remains.
    """

    row: Row
    log: float
    anchor: float
    remains: float | None = None
    anchor_row: Row | None = None

    def left(self, share: float) -> float:
        """The deviation that remains if the anchor's carries over by this share."""
        return self.log - share * self.anchor if self.remains is None else self.remains


def known() -> list[tuple[Row, float]]:
    """Training runs with their residuals."""
    logs = read()
    return [(row, logs[row.id]["device"]) for row in rows()
            if not row.forward_only and "device" in logs.get(row.id, {})]


def pairs(every: Iterable[tuple[Row, float]], distance: str) -> list[Anchored]:
    """Rows of one series that differ in this and nothing else, in both directions."""
    may, must = DISTANCES[distance]
    series: dict[tuple[str, ...], list[tuple[Row, float]]] = defaultdict(list)
    for row, log in every:
        series[tuple(row.cells[name] for name in SERIES if name not in may)].append((row, log))
    return [Anchored(row, log, anchor_log, anchor_row=anchor) for some in series.values()
            for (row, log), (anchor, anchor_log) in permutations(some, 2)
            if all(row.cells[name] != anchor.cells[name] for name in must)
            and ("sync" not in may or "none" in (row.sync, anchor.sync)
                 or (row.sync, row.machine) == (anchor.sync, anchor.machine))]


@dataclass(frozen=True)
class Scaling:
    """A row of several devices, with measured and predicted seconds of the same on one device."""

    row: Row
    log: float
    one_s: float
    predicted_one_s: float

    @property
    def predicted_s(self) -> float:
        return self.row.iteration_s * math.exp(self.log)

    @property
    def lost_s(self) -> float:
        """Predicted seconds beyond one device's."""
        return max(0.0, self.predicted_s - self.predicted_one_s)

    def factors(self, sd: float) -> TimeFactors:
        """Factors that fit this row and the one on one device; `sd` is the loss's."""
        times = (lambda loss: self.predicted_one_s,
                 lambda loss: self.predicted_one_s + loss * self.lost_s)
        return anchors.posterior(times, (self.one_s, self.row.iteration_s), (1.0, sd))


def scalings(every: Sequence[tuple[Row, float]]) -> dict[tuple[str, ...], list[Scaling]]:
    """Rows of several devices by series, where the same run on one device is published."""
    def series(row: Row, *names: str) -> tuple[str, ...]:
        cells = [name for name in SERIES if name not in ("devices", "sync", "machine")]
        return tuple(row.cells[name] for name in (*cells, *names))

    ones = {series(row): (row.iteration_s, row.iteration_s * math.exp(log))
            for row, log in every if row.devices == "1" and row.sync == "none"}
    out: dict[tuple[str, ...], list[Scaling]] = defaultdict(list)
    for row, log in every:
        if row.devices != "1" and series(row) in ones:
            out[series(row, "sync", "machine", "note")].append(
                Scaling(row, log, *ones[series(row)]))
    return out


def loss_sd(found: Iterable[Sequence[Scaling]]) -> float:
    """Standard deviation of the logarithm of measured over predicted loss, where both are lost."""
    logs = [math.log((s.row.iteration_s / s.one_s - 1) / (s.lost_s / s.predicted_one_s))
            for some in found for s in some
            if s.lost_s and s.row.iteration_s > 1.005 * s.one_s]
    return float(np.sqrt(np.mean(np.square(logs))))


def doublings(a: Anchored) -> float:
    """Doublings from the smaller batch per device to the larger one."""
    assert a.anchor_row is not None
    return abs(math.log2(a.row.batch / a.anchor_row.batch))


def doubling_sd(some: Iterable[Anchored]) -> float:
    """Standard deviation of the logarithm of a ratio's error, for each doubling of the batch."""
    both = [(doublings(a), a.left(1.0)) for a in some]
    return math.sqrt(sum(log ** 2 for _, log in both) / sum(count ** 2 for count, _ in both))


def ratios_inside(some: Sequence[Anchored]) -> float:
    """Share of ratios in the interval that the rows of other devices give."""
    inside = 0
    for left in {family(a.row.device) for a in some}:
        sd = doubling_sd(a for a in some if family(a.row.device) != left)
        inside += sum(abs(a.left(1.0)) <= anchors.ENDS_90 * math.hypot(
            anchors.MEASUREMENT_ERROR, sd * doublings(a))
            for a in some if family(a.row.device) == left)
    return inside / len(some)


def by_two(found: Iterable[Sequence[Scaling]], sd: float) -> Iterator[Anchored]:
    """Rows that one device and another number of devices anchor."""
    for some in found:
        for s, anchor in permutations(some, 2):
            if s.row.devices == anchor.row.devices:
                continue

            factors = anchor.factors(sd)
            anchored_s = factors.computing * s.predicted_one_s + factors.loss * s.lost_s
            yield Anchored(s.row, s.log, 0.0, math.log(anchored_s / s.row.iteration_s))


def share_of(some: Sequence[Anchored]) -> float:
    """The share of an anchor's deviation that the row has too, by least squares.

    Many rows of one network on one device count less each, by the root of their number.
    """
    many = Counter((a.row.device, a.row.network) for a in some)
    weights = [many[a.row.device, a.row.network] ** -0.5 for a in some]
    both = sum(w * a.log * a.anchor for w, a in zip(weights, some, strict=True))
    own = sum(w * a.anchor ** 2 for w, a in zip(weights, some, strict=True))
    return float(np.clip(both / own, 0.0, 1.0))


def used_share(name: str, some: Sequence[Anchored]) -> float:
    """The share that predictions use."""
    return round(share_of(some), 2) if name in SHARED else 1.0


def ends(some: Iterable[Anchored], share: float) -> list[float]:
    """The `PERCENTILES` of measured over anchored times."""
    return percentiles([Residual("anchor", a.row.device, a.row.network, {}, a.left(share))
                        for a in some])


def inside(name: str, some: Sequence[Anchored]) -> float:
    """Share of rows in the interval that the rows of other devices give."""
    count = 0
    for left in {family(a.row.device) for a in some}:
        others = [a for a in some if family(a.row.device) != left]
        share = used_share(name, others)
        low, _, high = ends(others, share)
        count += sum(low <= math.exp(-a.left(share)) <= high for a in some
                     if family(a.row.device) == left)
    return count / len(some)


def anchored() -> tuple[dict[str, float], dict[str, tuple[AnchoredRuns, list[Anchored]]]]:
    """The standard deviations that the package uses, and what remains at each distance."""
    every = known()
    found = scalings(every)
    sd = loss_sd(found.values())
    cases = {name: pairs(every, name) for name in DISTANCES}
    cases[MORE_RANKS] = list(by_two(found.values(), sd))
    out = {}
    for name, some in cases.items():
        share = used_share(name, some)
        out[name] = AnchoredRuns(name, len(some), share, *ends(some, share)), some
    return {"loss_sd": round(sd, 2), "doubling_sd": round(doubling_sd(cases["batch"]), 3)}, out


def accuracy(logs: Sequence[float]) -> str:
    """Mean accuracy, in percent."""
    return f"{100 * np.mean([1 - min(1.0, abs(math.exp(log) - 1)) for log in logs]):.0f}%"


def lines() -> list[str]:
    """The section of the page."""
    sds, found = anchored()
    batches = found["batch"][1]
    out = ["## One run anchors another", "",
           "A measured iteration corrects the predictions of others (`--measured`). Each pair of",
           "published runs that differs in one thing lets one run anchor the other; devices are",
           "left out of the fit. `share` is the part of the anchor's deviation that the other run",
           "has too, by least squares. It is used for other formats and devices; the same device",
           "keeps the whole deviation, so that batches and numbers of ranks keep the model's",
           "ratios. `low` to `high` is the 90% interval of measured over anchored times, from",
           f"percentiles {PERCENTILES[0]} and {PERCENTILES[2]}; `inside` are the rows in the",
           "interval that other devices' rows give.",
           f"What several devices lose differs by a factor of {math.exp(sds['loss_sd']):.1f} from",
           "the prediction (one standard deviation). An anchor of another network says next to",
           "nothing, and `--measured` refuses it.", "",
           "| differs from the anchor in | pairs | not anchored | whole deviation | share | "
           "that share | used | low | median | high | inside |",
           "|" + " --- |" * 11]
    for name, (runs, some) in found.items():
        least = "-", "-"
        if name != MORE_RANKS:
            share = share_of(some)
            least = f"{share:.2f}", accuracy([a.left(share) for a in some])
        cells = (name, runs.rows, accuracy([a.log for a in some]),
                 accuracy([a.left(1.0) for a in some]),
                 *least, f"{runs.share:.2f}",
                 *(f"{end:.2f}" for end in (runs.low, runs.median, runs.high)),
                 f"{100 * inside(name, some):.0f}%")
        out.append(f"| {' | '.join(map(str, cells))} |")
    return [*out, "",
            "The ratio of two batches is less sure, the more their sizes differ: the standard",
            f"deviation of its logarithm is {sds['doubling_sd']:.3f} for each doubling. The 90%",
            f"intervals that follow from other devices' rows hold "
            f"{100 * ratios_inside(batches):.0f}% of the pairs.", ""]


def write() -> None:
    """Writes the file of the package."""
    sds, found = anchored()
    lines = (", ".join(f'{key} = {json.dumps(value)}' for key, value in asdict(runs).items())
             for name, (runs, _) in found.items() if name != REFUSED)
    table = "".join(f"    {{{line}}},\n" for line in lines)
    head = ("# Measured over anchored times of published runs; anchors.py explains them.\n"
            "# Written by: python -m bench.gallery.anchored --write\n")
    numbers = "".join(f"{name} = {value}\n" for name, value in sds.items())
    FILE.write_text(f"{head}{numbers}distances = [\n{table}]\n", encoding="utf-8")


def main() -> None:
    """Prints the table, and writes the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    print("\n".join(lines()))
    if parser.parse_args().write:
        write()


if __name__ == "__main__":
    main()
