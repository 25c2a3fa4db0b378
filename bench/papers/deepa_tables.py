"""Tables 2 and 3 of DeePa (ICLR 2018 submission), costs of two layers: published and closed forms.

    python bench/papers/deepa_tables.py [--bars] [--json FILE] [--plot FILE]

Transfer and update are computed; compute times were measured on a K80 and are given. The layers
before are split by samples over 16 GPUs; a batch is 512 images in float32. The paper prints no
bandwidth: Table 2's digits imply 2.247e9 bytes/s.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.papers.common import Claim, Panel, Report, Section, main
from bench.papers.equations.optcnn import Configuration, TensorEdge, ts_s, tx_s
from hpcpar.network.receptive_field import Full, Same, Window

BATCH, ITEM_BYTES = 512, 4
BEFORE = Configuration(n=16)
#: Bytes per second, from the printed digits: all of Table 2 and the updates of Table 3; the
#: transfers of Table 3.
BANDWIDTH, CONV_BANDWIDTH = 2.247e9, 5.0 * 2**20 * 1e3
IMAGE = ("n", "c", "h", "w")


@dataclass(frozen=True)
class Row:
    """A configuration with its printed milliseconds."""

    name: str
    config: Configuration
    transfer_ms: float
    compute_ms: float
    update_ms: float
    total_ms: float


@dataclass(frozen=True)
class Table:
    """A table: the transferred tensor, the updated weights, and the bandwidths of both."""

    title: str
    edge: TensorEdge
    weight_bytes: float
    transfer_bytes_per_s: float
    update_bytes_per_s: float
    rows: Sequence[Row]

    def transfer_ms(self, config: Configuration) -> float:
        return 1e3 * tx_s(self.edge, BEFORE, config, self.transfer_bytes_per_s, whole=True)

    def update_ms(self, config: Configuration) -> float:
        return 1e3 * ts_s(self.weight_bytes, config, self.update_bytes_per_s)


TABLE_2 = Table(
    "Table 2, AlexNet's first FC layer",
    TensorEdge(("n", "c"), (BATCH, 9216), {"n": BATCH, "c": 4096}, (Same(), Full()), ITEM_BYTES),
    9216 * 4096 * ITEM_BYTES,
    BANDWIDTH,
    BANDWIDTH,
    (
        Row("n=16", Configuration(n=16), 0, 1.28, 1075, 1076),
        Row("c=16", Configuration(c=16), 134.4, 1.28, 0, 135.7),
        Row("c=4", Configuration(c=4), 33.6, 5.1, 0, 38.7),
        Row("c=2", Configuration(c=2), 16.8, 10.2, 0, 27.0),
        Row("c=1", Configuration(), 8.4, 20.4, 0, 28.8),
    ),
)


def conv_edge(window: Same | Window) -> TensorEdge:
    """The input of a 14 x 14 x 512 convolution that reads image axes through `window`."""
    extents = (BATCH, 512, 14, 14)
    return TensorEdge(IMAGE, extents, dict(zip(IMAGE, extents, strict=True)),
                (Same(), Full(), window, window), ITEM_BYTES)


TABLE_3 = Table(
    "Table 3, VGG-16's last three convolutions",
    conv_edge(Same()),
    2 * 3 * 3 * 512 * 512 * ITEM_BYTES,
    CONV_BANDWIDTH,
    BANDWIDTH,
    (
        Row("n=16", Configuration(n=16), 0, 15.9, 134.4, 150.3),
        Row("n=8", Configuration(n=8), 39.2, 31.8, 67.2, 138.2),
        Row("n=4", Configuration(n=4), 39.2, 63.7, 33.6, 136.5),
        Row("h=2,w=2", Configuration(h=2, w=2), 39.2, 54.7, 33.6, 127.5),
        Row("n=2", Configuration(n=2), 39.2, 127.4, 16.8, 183.4),
    ),
)


def claims(table: Table) -> list[Claim]:
    """Claims: transfer, update and total of each row."""
    out = []
    for row in table.rows:
        transfer_ms, update_ms = table.transfer_ms(row.config), table.update_ms(row.config)
        what = f"{table.title.partition(',')[0]}, {row.name}"
        out += [
            Claim(f"{what}: transfer", row.transfer_ms, transfer_ms, " ms"),
            Claim(f"{what}: update", row.update_ms, update_ms, " ms"),
            Claim(f"{what}: total", row.total_ms, transfer_ms + row.compute_ms + update_ms, " ms",
                  f"compute {row.compute_ms} ms given"),
        ]
    return out


def without_fits() -> list[Claim]:
    """Claims: Table 3 with the halo, and with the weights of all three convolutions."""
    halo_ms = 1e3 * tx_s(conv_edge(Window(3, 1, 1)), BEFORE, Configuration(h=2, w=2),
                         CONV_BANDWIDTH, whole=True)
    three_ms = 1e3 * ts_s(3 / 2 * TABLE_3.weight_bytes, BEFORE, BANDWIDTH)
    same_ms = 1e3 * tx_s(TABLE_3.edge, BEFORE, Configuration(n=8), BANDWIDTH, whole=True)
    return [
        Claim("... h=2,w=2: transfer with the 3 x 3 halo", 39.2, halo_ms, " ms",
              because="the table leaves the halo out"),
        Claim("... n=16: update of three convolutions", 134.4, three_ms, " ms",
              because="the table has two, or a bandwidth of 3.37e9 bytes/s"),
        Claim("... n=8: transfer at Table 2's bandwidth", 39.2, same_ms, " ms",
              because="no single bandwidth fits both tables"),
    ]


def panel(table: Table) -> Panel:
    """A panel with one bar per configuration."""
    bars = {
        row.name: {"transfer": table.transfer_ms(row.config), "compute": row.compute_ms,
                   "update": table.update_ms(row.config)}
        for row in table.rows
    }
    best = min(bars, key=lambda name: sum(bars[name].values()))
    return Panel("DeePa", table.title, bars, "ms", {best: "fastest"})


REMARKS = (
    "No single bandwidth fits both tables: one gives Table 2 and all updates, another Table 3's "
    "transfers.",
)


def report() -> Report:
    """All claims and panels of both tables, and the inconsistencies."""
    sections = [Section(t.title, claims(t), "closed form") for t in (TABLE_2, TABLE_3)]
    sections.append(Section("Table 3 without what was fitted", without_fits(), "closed form"))
    return Report("DeePa, Tables 2 and 3", sections, [panel(TABLE_2), panel(TABLE_3)], REMARKS,
                  "both tables, with two bandwidths", "both tables with one bandwidth")


if __name__ == "__main__":
    sys.exit(main(__doc__, report))
