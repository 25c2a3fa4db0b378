"""OptCNN and DeePa: DeePa's two tables to the printed digits, and invariants."""

from __future__ import annotations

import itertools
import math

import pytest

from bench.papers.equations import optcnn
from bench.papers.equations.optcnn import Configuration, TensorEdge
from hpcpar.network import builtin
from hpcpar.network.receptive_field import Full, Same, Window

BANDWIDTH = 2.247e9  # bytes/s, what Table 2's digits imply
BATCH = 512
SAMPLES = Configuration(n=16)
ALEXNET = builtin.network("alexnet-owt")

FC1 = TensorEdge(("n", "c"), (BATCH, 9216), {"n": BATCH, "c": 4096}, (Same(), Full()))
FC1_BYTES = 9216 * 4096 * 4
#: configuration, then transfer, compute, update and total in milliseconds as printed
TABLE_2 = [
    (Configuration(n=16), "0", 1.28, "1075", "1076"),
    (Configuration(c=16), "134.4", 1.28, "0", "135.7"),
    (Configuration(c=4), "33.6", 5.1, "0", "38.7"),
    (Configuration(c=2), "16.8", 10.2, "0", "27.0"),
    (Configuration(), "8.4", 20.4, "0", "28.8"),
]

IMAGE = ("n", "c", "h", "w")
#: Without the 3 x 3 window's halo, which Table 3 does not count.
CONV = TensorEdge(IMAGE, (BATCH, 512, 14, 14), dict(zip(IMAGE, (BATCH, 512, 14, 14), strict=True)),
            (Same(), Full(), Same(), Same()))
CONVS_BYTES = 2 * 3 * 3 * 512 * 512 * 4
TABLE_3 = [
    (Configuration(n=16), "0", 15.9, "134.4", "150.3"),
    (Configuration(n=8), "39.2", 31.8, "67.2", "138.2"),
    (Configuration(n=4), "39.2", 63.7, "33.6", "136.5"),
    (Configuration(h=2, w=2), "39.2", 54.7, "33.6", "127.5"),
    (Configuration(n=2), "39.2", 127.4, "16.8", "183.4"),
]


def as_printed(ms: float, printed: str) -> bool:
    """Rounded to the decimals of the table."""
    return f"{ms:.{len(printed.partition('.')[2])}f}" == printed


@pytest.mark.parametrize(("config", "transfer", "compute_ms", "update", "total"), TABLE_2)
def test_deepa_table_2(config: Configuration, transfer: str, compute_ms: float, update: str,
                       total: str) -> None:
    transfer_ms = 1e3 * optcnn.tx_s(FC1, SAMPLES, config, BANDWIDTH, whole=True)
    update_ms = 1e3 * optcnn.ts_s(FC1_BYTES, config, BANDWIDTH)
    assert as_printed(transfer_ms, transfer) and as_printed(update_ms, update)
    assert as_printed(transfer_ms + compute_ms + update_ms, total)


@pytest.mark.parametrize(("config", "transfer", "compute_ms", "update", "total"), TABLE_3)
def test_deepa_table_3(config: Configuration, transfer: str, compute_ms: float, update: str,
                       total: str) -> None:
    """Table 3 at the bandwidths implied by its printed digits."""
    transfer_ms = 1e3 * optcnn.tx_s(CONV, SAMPLES, config, 5.0 * 2**20 * 1e3, whole=True)
    update_ms = 1e3 * optcnn.ts_s(CONVS_BYTES, config, BANDWIDTH)
    assert as_printed(transfer_ms, transfer) and as_printed(update_ms, update)
    assert as_printed(transfer_ms + compute_ms + update_ms, total)


def test_devices_do_not_move_data_that_they_have() -> None:
    """OptCNN's tX excludes the data that a device already has."""
    all_s = optcnn.tx_s(FC1, SAMPLES, Configuration(c=16), BANDWIDTH, whole=True)
    assert optcnn.tx_s(FC1, SAMPLES, Configuration(c=16),
                       BANDWIDTH) == pytest.approx(15 / 16 * all_s, rel=1e-12)
    for config in (SAMPLES, Configuration(n=2), Configuration()):
        assert optcnn.tx_s(FC1, config, config, BANDWIDTH) == 0.0


def test_halo_between_image_parts() -> None:
    """A 3 x 3 convolution needs one row of each neighbor if split by rows, none by samples."""
    conv = TensorEdge(IMAGE, (8, 16, 14, 14), dict(zip(IMAGE, (8, 32, 14, 14), strict=True)),
                (Same(), Full(), Window(3, 1, 1), Window(3, 1, 1)))
    row = 8 * 16 * 14 * 4
    rows = Configuration(h=2)
    assert optcnn.flows_bytes(conv, rows, rows) == {(0, 0): 7 * row, (0, 1): row, (1, 0): row,
                                                    (1, 1): 7 * row}
    assert optcnn.tx_s(conv, rows, rows, 1.0) == 2 * row
    assert optcnn.tx_s(conv, Configuration(n=2), Configuration(n=2), 1.0) == 0
    assert conv.n_bytes == 14 * row


@pytest.mark.parametrize("name", ["conv2", "pool1", "norm1", "relu1", "flatten", "fc6", "loss"])
def test_edges_of_a_network(name: str) -> None:
    """Flows add up to the regions that readers need, in every configuration."""
    layer = ALEXNET.by_name[name]
    e = optcnn.edge(ALEXNET, layer, 16)
    assert e.n_bytes == 16 * 4 * math.prod(ALEXNET.input_shape(layer))
    image = [Configuration(h=2), Configuration(h=2, w=2)] if len(e.axes) > 2 else []
    ours = [Configuration(), Configuration(n=4), Configuration(c=2), Configuration(n=2, c=2)]
    readers = ours + (image if len(e.reader_extents) > 2 else [])
    for producer, reader in itertools.product(ours + image, readers):
        flows = optcnn.flows_bytes(e, producer, reader)
        assert sum(flows.values()) == sum(optcnn.flows_bytes(e, Configuration(), reader).values())
        lacking = optcnn.tx_s(e, producer, reader, 1.0)
        assert 0 <= lacking <= sum(flows.values())


def test_bandwidth_by_pair_of_devices() -> None:
    """Bandwidths of OptCNN's device graph: double within a node of four."""

    def between(i: int, j: int) -> float:
        return 2.0 if i // 4 == j // 4 else 1.0

    flows = optcnn.flows_bytes(FC1, Configuration(n=8), Configuration(c=8))
    expected = sum(size / between(i, j) for (i, j), size in flows.items() if i != j)
    fast, mixed, slow = (optcnn.tx_s(FC1, Configuration(n=8), Configuration(c=8), b)
                         for b in (2.0, between, 1.0))
    assert fast < mixed == expected < slow


def test_synchronization() -> None:
    """Replicas are parts of samples and images; channel parts send their own weights."""
    assert (
        Configuration(n=2, c=3, h=2, w=2).devices == 24
        and Configuration(n=2, c=3, h=2, w=2).replicas == 8
    )
    assert optcnn.ts_s(100.0, Configuration(c=8), 10.0) == 0.0
    assert (
        optcnn.ts_s(100.0, Configuration(n=4), 10.0)
        == optcnn.ts_s(100.0, Configuration(n=4, c=2), 10.0)
        == 40.0
    )
    for n in (2, 4, 16):
        assert optcnn.ts_s(100.0, Configuration(n=n), 10.0,
                           distributed=True) == pytest.approx((n - 1) / n * 10.0)
    assert optcnn.ts_s(100.0, Configuration(n=4, c=2), 10.0,
                       distributed=True) == pytest.approx(3.75)


def test_eq1_sums_layers_and_edges() -> None:
    strategy = {"a": Configuration(n=2), "b": Configuration(c=2), "c": Configuration()}
    edges = [("a", "b"), ("a", "c"), ("b", "c"), ("b", "c")]
    cost = optcnn.eq1_step_s(strategy, edges, lambda name, c: 1.0 * c.n, lambda name,
                             c: 10.0 * c.replicas, lambda e, ci, cj: 100.0 * ci.c)
    assert cost == (2 + 1 + 1) + 10 * (2 + 1 + 1) + 100 * (1 + 1 + 2 + 2)
