"""The paper benches run, and agree with the papers' own accounting."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench.papers import common, deepa, deepa_tables, integrated, layerwise, optcnn, owt, paradl
from bench.papers.common import Report, Section
from bench.papers.paradl_settings import MODELS


def check(report: Report) -> dict[str, common.Claim]:
    """Claims by name, after a check that all numbers are finite and all bars complete."""
    assert report.claims
    for claim in report.claims:
        for value in (claim.published, claim.ours):
            assert not isinstance(value, float) or math.isfinite(value), claim.what
    for panel in report.panels:
        parts = {tuple(bar) for bar in panel.bars.values()}
        assert len(parts) == 1 and set(panel.marks) <= set(panel.bars)
        assert all(value >= 0 and math.isfinite(value) for bar in panel.bars.values()
                   for value in bar.values()), panel.title
    return {c.what: c for c in report.claims}


def test_owt_is_within_a_tenth_of_table_1() -> None:
    claims = check(owt.report((1, 2, 8)))
    rows = [c for what, c in claims.items() if what.startswith("Table 1")]
    assert len(rows) == 9 and all(0.9 < (c.ratio or 0.0) < 1.1 for c in rows)
    assert owt.variable_s(8, "owt-c") < owt.fixed_s(8) < owt.variable_s(8)


def test_optcnn_on_four_gpus() -> None:
    claims = check(optcnn.report(("alexnet", "vgg16"), (1, 4)))
    assert claims["Table 5, VGG-16, 4 GPUs: published plan over data"].ours > 1.2  # type: ignore[operator]
    for title in ("AlexNet", "VGG-16"):
        gain = claims[f"{title}: layer-wise over the best other"]
        published = gain.also["published plan, one server"]
        assert gain.ours >= max(0.999, published * 0.999)  # type: ignore[operator,type-var]


def test_a_single_layer_is_priced_by_its_shape() -> None:
    """The model of kernels on a data sheet; the preset's links stay."""
    sheet, preset = optcnn.SHEET, layerwise.machine(optcnn.PRESET, "vgg16")
    assert sheet.device.multiprocessors and not preset.device.multiprocessors
    assert sheet.levels == preset.levels
    assert sheet.device.software_year == 2017


def test_distributed_servers_are_fastest_on_four_gpus() -> None:
    """Fig 3's last layer; one server is fastest on one GPU."""
    spread, one = ({p: optcnn.synchronized_s("fc", p, distributed) for p in optcnn.RANKS}
                   for distributed in (True, False))
    assert min(spread, key=lambda p: spread[p]) == 4
    assert min(one, key=lambda p: one[p]) == 1


def test_eq_1_counts_the_way_back_of_parameters_alone() -> None:
    found = layerwise.Eq1(compute_s=3.0, update_s=2.0, transfer_s=0.5)
    assert (found.printed_s, found.there_and_back_s, found.hidden_s) == (5.5, 7.5, 3.5)


def test_published_configurations() -> None:
    """Table 5, and DeePa's Figures 9 and 15."""
    vgg = layerwise.configurations("vgg16", "layer-wise", 4)
    assert [
        str(vgg[name]) for name in ("conv4_3", "conv5_1", "pool5", "fc6", "fc7", "fc8", "loss")
    ] == ["{n=4}", "{h=2, w=2}", "{h=2, w=2}", "{c=4}", "{c=4}", "{c=2}", "{}"]
    fewer = layerwise.configurations("vgg16", "fc-only", 4)
    assert str(fewer["conv5_3"]) == "{n=4}" and str(fewer["fc6"]) == "{c=2}"
    alexnet = layerwise.configurations("alexnet", "layer-wise", 16)
    assert str(alexnet["conv5"]) == "{n=16}" and str(alexnet["fc6"]) == "{c=2}"


def test_deepa_volumes() -> None:
    """Printed volumes: VGG-16 on 4 GPUs, and AlexNet with 21,841 classes."""
    check(Report("DeePa", [Section("Fig 8", deepa.claims_of_fig_8(("alexnet",))),
                           Section("Fig 7", deepa.claims_of_owt(("alexnet",)))]))
    data = layerwise.volume("alexnet", "data", 16, deepa.CLASSES_22K).total_bytes
    least = deepa.deepa_bytes("alexnet", 16, deepa.CLASSES_22K)
    assert data / least == pytest.approx(44.5, rel=0.02)
    assert layerwise.volume("vgg16", "data", 4).total_bytes == 4 * 4 * 2 * 138_357_544
    assert layerwise.volume("vgg16", "fc-only", 4).total_bytes == pytest.approx(490e6, rel=0.02)


def test_deepa_tables_and_integrated() -> None:
    claims = check(integrated.report())
    once = "one tower, activations once"
    assert claims["best grid"].also[once] == claims["best grid"].published
    for what in ("communication, best grid", "total, best grid", "Fig 7: communication, best grid",
                 "Fig 7: total"):
        ours, published = claims[what].also[once], claims[what].published
        assert ours == pytest.approx(published, rel=common.NEAR)
    rows = [c for c in check(deepa_tables.report()).values() if not c.what.startswith("...")]
    assert all(c.ratio is None or abs(c.ratio - 1) < 0.01 for c in rows)


def test_paradl(tmp_path: Path) -> None:
    report = paradl.report(MODELS[2:], (16,))
    claims = check(report)
    assert [round(c.ours, 2) for c in list(claims.values())[:3]] == [256.98, 18.19, 18.56]  # type: ignore[arg-type]
    assert claims["5.3.4, VGG-16: most GPUs of filter parallelism"].ratio == 1
    options = common.parser(paradl.__doc__).parse_args(["--json", str(tmp_path / "out.json")])
    common.publish(report, options)
    assert len(json.loads((tmp_path / "out.json").read_text())["claims"]) == len(claims)
