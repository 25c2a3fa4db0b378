"""ParaDL's closed forms against figures of its own tool, and among each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.equations import paradl
from bench.papers.equations.paradl import Exchange
from bench.papers.equations.paradl_values import Table3Layer, Table3Row, TrainingRun, layer_values
from hpcpar.network import builtin
from hpcpar.papers.gholami import HockneyLink

ALEXNET = builtin.network("alexnet-owt")
TIMES = {layer.name: (1e-4 * (i + 1), 2e-4 * (i + 1), 1e-5 * (i + 1))
         for i, layer in enumerate(ALEXNET.layers)}
LAYERS = layer_values(ALEXNET, seconds=TIMES)
JOB = TrainingRun(samples=1_280_000, batch=512)
LINK = HockneyLink(1e-5, 4 * 8e-11)
INNER = HockneyLink(1e-6, 4 * 2e-11)
GROUPS = (5, 5, 5, len(LAYERS) - 15)
EXCHANGES: tuple[Exchange, ...] = ("flat", "leaders", "segmented")


def rows(job: TrainingRun = JOB, link: HockneyLink = LINK, inner: HockneyLink = INNER,
         layers: list[Table3Layer] = LAYERS) -> dict[str, Table3Row]:
    """Rows of Table 3 for all strategies on 16 PEs (pipeline: 4)."""
    out = {
        "serial": paradl.table3_serial(layers, job),
        "data": paradl.table3_data(layers, job, 16, link),
        "spatial": paradl.table3_spatial(layers, job, (4, 4), link, gathered_items=9216),
        "pipeline": paradl.table3_pipeline(layers, job, GROUPS, 8, link),
        "filter": paradl.table3_filter(layers, job, 16, link),
        "channel": paradl.table3_channel(layers, job, 16, link),
        "df": paradl.table3_df(layers, job, 4, 4, link, inner),
    }
    return out | {f"ds {name}": paradl.table3_ds(layers, job, 4, (2, 2), link, inner, name)
                  for name in EXCHANGES}


def same_terms(a: Table3Row, b: Table3Row) -> None:
    """Compare all terms, but not the parts and limits."""
    for name in ("compute_s", "update_s", "gradient_s", "halo_s", "layerwise_s", "p2p_s",
                 "memory_bytes", "pes"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-12), name


@pytest.mark.parametrize(
    ("weights", "images", "alpha_s", "published_s"),
    [(169_801_408, 32, 30.31e-6, 256.98), (22_734_016, 64, 30.31e-6, 18.19),
     (22_734_016, 64, 40.31e-6, 18.56)],
    ids=["vgg16", "resnet50", "resnet50-slower"],
)
def test_figures_of_the_public_tool(weights: int, images: int, alpha_s: float,
                                    published_s: float) -> None:
    """Data parallelism on 16 PEs, 1.28 M samples: the figures of ParaDL's tool."""
    row = paradl.table3_data([Table3Layer("all", w=weights)], TrainingRun(1_280_000, 16 * images),
                             16, HockneyLink(alpha_s, 4 * 8e-11))
    assert round(row.communication_s, 2) == published_s


def test_collectives() -> None:
    link = HockneyLink(1.0, 0.25)
    assert paradl.p2p_s(8, link) == 3.0
    assert paradl.ring_allreduce_s(4, 16, link) == 2 * 3 * (1 + 16 / 4 * 0.25)
    assert paradl.ring_allgather_s(4, 16, link) == 3 * (1 + 16 * 0.25)
    assert paradl.tree_allreduce_s(8, 16, link, 2) == 2 * (3 + 2) * (1 + 16 / 4 * 0.25)
    assert paradl.contended(link, 2) == HockneyLink(1.0, 0.5)
    for alone in (paradl.ring_allreduce_s(1, 16, link), paradl.ring_allgather_s(1, 16, link),
                  paradl.tree_allreduce_s(1, 16, link, 2)):
        assert alone == 0.0


def test_trees_suit_small_messages() -> None:
    for items, ring_is_faster in ((16, False), (1 << 26, True)):
        assert (
            paradl.ring_allreduce_s(64, items, LINK) < paradl.tree_allreduce_s(64, items, LINK, 4)
        ) == ring_is_faster


def test_values_of_a_network() -> None:
    by_name = {layer.name: layer for layer in LAYERS}
    assert set(by_name) == {layer.name for layer in ALEXNET.layers} - {"input", "loss"}
    conv2 = by_name["conv2"]
    assert (conv2.x, conv2.y, conv2.w, conv2.bias) == (64 * 27 * 27, 192 * 27 * 27, 192 * 64 * 25,
                                                       192)
    assert (conv2.channels, conv2.filters, conv2.extents) == (64, 192, (27, 27))
    # halos have all channels: two rows of x, two of y
    assert conv2.halo_x == (2 * 27 * 64,) * 2 and conv2.halo_dy == (2 * 27 * 192,) * 2
    # a stride of 4: five rows of x each way are read by two of y
    assert by_name["conv1"].halo_x[0] == 5 * 224 * 3 and by_name["conv1"].halo_dy[0] == 2 * 55 * 64
    assert by_name["pool1"].halo_x[0] == 55 * 64 and by_name["relu1"].halo_x == (0.0, 0.0)
    assert by_name["fc6"].extents == () and by_name["flatten"].extents == ()
    assert [layer.name for layer in LAYERS if layer.gathers] == [
        layer.name for layer in ALEXNET.matmul_layers]
    assert sum(layer.w + layer.bias for layer in LAYERS) == ALEXNET.parameters
    assert (conv2.fw_s, conv2.bw_s, conv2.wu_s) == TIMES["conv2"]
    assert [layer.name for layer in layer_values(ALEXNET, ALEXNET.matmul_layers)] == [
        layer.name for layer in ALEXNET.matmul_layers]


def test_serial_is_every_strategy_on_one_pe() -> None:
    serial = paradl.table3_serial(LAYERS, JOB)
    assert serial.communication_s == 0.0
    assert serial.epoch_s == pytest.approx(JOB.samples * sum(a.fw_s + a.bw_s for a in LAYERS) + 2500
                                           * sum(a.wu_s for a in LAYERS))
    for row in (
        paradl.table3_data(LAYERS, JOB, 1, LINK),
        paradl.table3_spatial(LAYERS, JOB, (1, 1), LINK),
        paradl.table3_pipeline(LAYERS, JOB, [len(LAYERS)], 8, LINK),
        paradl.table3_filter(LAYERS, JOB, 1, LINK),
        paradl.table3_channel(LAYERS, JOB, 1, LINK),
    ):
        same_terms(row, serial)


def test_hybrids_contain_the_pure_strategies() -> None:
    data = paradl.table3_data(LAYERS, JOB, 16, LINK)
    same_terms(paradl.table3_df(LAYERS, JOB, 16, 1, LINK, INNER), data)
    same_terms(paradl.table3_df(LAYERS, JOB, 1, 16, LINK),
               paradl.table3_filter(LAYERS, JOB, 16, LINK))
    same_terms(paradl.table3_ds(LAYERS, JOB, 1, (4, 4), LINK),
               paradl.table3_spatial(LAYERS, JOB, (4, 4), LINK))
    for exchange in EXCHANGES:
        same_terms(paradl.table3_ds(LAYERS, JOB, 16, (1, 1), LINK, INNER, exchange), data)


def test_spatial_adds_halos_to_data() -> None:
    """Eq 10 on AlexNet's conv2: rows over 4 PEs, then 2 x 2 parts."""
    conv2 = [layer for layer in LAYERS if layer.name == "conv2"]
    data, rows4 = (paradl.table3_data(conv2, JOB, 4, LINK),
                   paradl.table3_spatial(conv2, JOB, (4, 1), LINK))
    assert (
        rows4.gradient_s == data.gradient_s
        and rows4.compute_s == data.compute_s
        and rows4.memory_bytes == data.memory_bytes
    )
    assert rows4.halo_s == pytest.approx(2 * 2500
                                         * (2 * 1e-5 + 512 * 4 * 8e-11 * 2 * 27 * (64 + 192)),
                                         rel=1e-12)
    no_latency = HockneyLink(0.0, LINK.beta_s)
    square = paradl.table3_spatial(conv2, JOB, (2, 2), no_latency)
    assert square.halo_s == pytest.approx(paradl.table3_spatial(conv2, JOB, (4, 1),
                                                                no_latency).halo_s, rel=1e-12)
    with pytest.raises(ValueError):
        paradl.table3_spatial(conv2, JOB, (2, 2, 2), LINK)


def test_spatial_gathers_before_fully_connected_layers() -> None:
    row = paradl.table3_spatial(LAYERS, JOB, (4, 1), LINK, gathered_items=9216)
    assert row.layerwise_s == pytest.approx(2500 * paradl.ring_allgather_s(4, 512 * 9216 / 4, LINK),
                                            rel=1e-12)


def test_filter_and_channel() -> None:
    """Eq 15 with the activations of all matmul layers but the last; weights divided by p once."""
    row = paradl.table3_filter(LAYERS, JOB, 16, LINK)
    products = [layer for layer in LAYERS if layer.gathers]
    assert row.layerwise_s == pytest.approx(3 * 2500 * 15 * sum(1e-5 + 512 * a.y / 16 * LINK.beta_s
                                                                for a in products[:-1]), rel=1e-12)
    assert row.memory_bytes == pytest.approx(4 * sum(2 * 512 * (a.x + a.y) + 2 * a.w / 16 + a.bias
                                                     for a in LAYERS), rel=1e-12)
    assert row.update_s == paradl.table3_serial(LAYERS, JOB).update_s / 16
    same_terms(paradl.table3_channel(LAYERS, JOB, 16, LINK), row)
    for less in (paradl.table3_filter(LAYERS, JOB, 16, LINK, reduce_scatter=True),
                 paradl.table3_channel(LAYERS, JOB, 16, LINK, True)):
        assert less.layerwise_s == pytest.approx(2 / 3 * row.layerwise_s, rel=1e-12)


def test_pipeline() -> None:
    layers = [Table3Layer(str(i), x=10, y=20 + i, w=100, fw_s=1e-3, bw_s=2e-3, wu_s=1e-2)
              for i in range(4)]
    job = TrainingRun(1024, 64)
    row = paradl.table3_pipeline(layers, job, [1, 2, 1], 8, HockneyLink(1e-3, 1e-5))
    assert row.compute_s == pytest.approx(1024 * (3 + 8 - 1) / 8 * (2e-3 + 4e-3))
    assert row.update_s == pytest.approx(16 * 2e-2)
    assert row.p2p_s == pytest.approx(2 * 16 * (3 + 8 - 2) * (1e-3 + 64 / 8 * 22 * 1e-5))
    assert row.memory_bytes == pytest.approx(4 * (2 * 64 * (10 + 21 + 10 + 22) + 2 * 200))
    with pytest.raises(ValueError, match="do not add up to 4 layers"):
        paradl.table3_pipeline(layers, job, [1, 2], 8, LINK)


def test_limits() -> None:
    """Limits of AlexNet: 64 filters and channels, smallest image 13 x 13."""
    expected = {"data": 512, "spatial": 169, "pipeline": len(LAYERS), "filter": 64, "channel": 64,
                "df": 512 * 64, "ds flat": 512 * 169}
    found = rows()
    assert {name: found[name].limit for name in expected} == expected
    assert all(row.within_limits for row in found.values())
    beyond = (
        paradl.table3_data(LAYERS, JOB, 513, LINK),
        paradl.table3_spatial(LAYERS, JOB, (14, 1), LINK),
        paradl.table3_filter(LAYERS, JOB, 65, LINK),
        paradl.table3_channel(LAYERS, JOB, 65, LINK),
        paradl.table3_df(LAYERS, JOB, 2, 128, LINK),
        paradl.table3_ds(LAYERS, JOB, 1024, (2, 1), LINK),
    )
    assert not any(row.within_limits or row.fits(1e18) for row in beyond)


def test_memory_halves() -> None:
    for name, row in rows(replace(JOB, reuse=0.5)).items():
        assert row.memory_bytes == pytest.approx(rows()[name].memory_bytes / 2, rel=1e-12)
    activations = [replace(layer, w=0.0, bias=0.0) for layer in LAYERS]
    for layers, strategy in ((activations, paradl.table3_data),
                             ([Table3Layer("w", w=1e6)], paradl.table3_filter)):
        assert (
            strategy(layers, JOB, 8, LINK).memory_bytes
            == strategy(layers, JOB, 4, LINK).memory_bytes / 2
        )
    row = rows()["data"]
    assert row.fits(row.memory_bytes) and not row.fits(row.memory_bytes - 1)


def test_leaders_cost_more_than_twice_the_allreduce_of_data() -> None:
    """Section 5.3.1: segmented exchange costs less than leaders."""
    flat, leaders, segmented = (paradl.table3_ds(LAYERS, JOB, 16, (2, 2), LINK,
                                                 exchange=name).gradient_s for name in EXCHANGES)
    assert leaders > 2 * flat and segmented < leaders


seconds = st.floats(1e-8, 1e-3)


@given(seconds, seconds, st.floats(1.0, 8.0))
def test_communication_grows_with_alpha_beta_and_phi(alpha_s: float, beta_s: float,
                                                     factor: float) -> None:
    few = LAYERS[:3] + LAYERS[-3:]
    link = HockneyLink(alpha_s, beta_s)

    def all_rows(changed: HockneyLink) -> dict[str, Table3Row]:
        return {
            "data": paradl.table3_data(few, JOB, 16, changed),
            "spatial": paradl.table3_spatial(few, JOB, (4, 4), changed),
            "pipeline": paradl.table3_pipeline(few, JOB, [3, 3], 8, changed),
            "channel": paradl.table3_channel(few, JOB, 16, changed),
            "df": paradl.table3_df(few, JOB, 4, 4, changed),
            "ds": paradl.table3_ds(few, JOB, 4, (2, 2), changed, exchange="leaders"),
        }

    base = all_rows(link)
    for slower in (replace(link, alpha_s=alpha_s * factor), replace(link, beta_s=beta_s * factor),
                   paradl.contended(link, factor)):
        for name, row in all_rows(slower).items():
            assert base[name].communication_s <= row.communication_s * (1 + 1e-12)
            assert row.communication_s <= factor * base[name].communication_s * (1 + 1e-12)
            assert row.compute_s == base[name].compute_s
