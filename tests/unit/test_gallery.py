"""The gallery of published runs: speedups, forward passes, the figures left out, the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.gallery import allreduces, anchored, intervals, large, left_out, memory, picture, scaling
from bench.gallery.__main__ import Gallery, page
from bench.gallery.exchange import framework_of, machine_as_used, options_of
from bench.gallery.intervals import Residual
from bench.gallery.left_out import LeftOut
from bench.gallery.networks import NETWORKS
from bench.gallery.prediction import Result, predict, unpredictable
from bench.gallery.rows import Row, forward_passes, runs
from bench.gallery.series import levels, series
from bench.gallery.speedups import FAMILY, speedups
from hpcpar.cost.anchors import anchored_residuals
from hpcpar.cost.published_runs import published
from hpcpar.machine import catalog, files


def result(devices: int, sync: str, measured_ms: float, predicted_ms: float) -> Result:
    """A row of one family that differs in devices and exchange."""
    cells = dict.fromkeys(FAMILY, "same") | {
        "devices": str(devices), "sync": sync, "iteration_ms": str(measured_ms)}
    return Result(Row(cells), predicted_ms / 1e3)


def test_a_speedup_compares_with_the_fewest_devices_of_the_same_exchange() -> None:
    found = list(speedups([result(8, "nccl", 200, 125), result(1, "none", 100, 100),
                           result(2, "server", 100, 110)]))
    assert [(s.result.row.devices, s.measured, s.predicted) for s in found] == [
        ("2", 2.0, pytest.approx(2 / 1.1)), ("8", 4.0, pytest.approx(6.4))]
    assert found[1].ratio == pytest.approx(1.6)
    alone = list(speedups([result(8, "nccl", 200, 125), result(2, "server", 100, 110),
                           result(4, "server", 100, 110)]))
    assert [(s.first.row.devices, s.measured) for s in alone] == [("2", 2.0)]


def test_published_forward_passes_are_predicted() -> None:
    rows = [row for row in forward_passes() if not unpredictable(row)]
    single = [row for row in rows if row.precision == "fp32"]
    logs = np.array([predict(row).log for row in single if row.network == "resnet50"][::4])
    assert len(rows) == 214 and len(single) == 120 and len(logs) > 10
    assert np.mean(np.abs(np.exp(logs) - 1)) < 0.25


def test_published_runs_on_tensor_cores_are_predicted() -> None:
    """Runs of one device, in fused and plain frameworks."""
    rows = [row for row in runs() if row.devices == "1" and not row.doubt
            and row.precision in ("amp", "tf32") and not unpredictable(row)]
    logs = np.array([predict(row).log for row in rows[::6]])
    assert len(rows) == 93 and 1 - np.mean(np.abs(np.exp(logs) - 1)) > 0.75
    fused = next(row for row in rows if row.fused)
    plain = replace(fused, cells=fused.cells | {"framework": "PyTorch", "note": ""})
    assert not plain.fused and predict(fused).predicted_s < predict(plain).predicted_s


def test_new_figures_replace_old_ones_of_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "left_out.csv"
    path.write_text(left_out.FILE.read_text())
    found = LeftOut.of("network", "run", np.log([1.0, 1.1, 1.3, 3.0]))
    left_out.write([found], path)
    assert len(left_out.read(path)) == len(left_out.read())
    assert found in left_out.read(path)
    assert (found.rows, found.median_ratio, found.within_20, found.within_2) == (
        "4", "1.20", "0.50", "0.75")


def test_the_page_has_all_sections_and_the_picture(tmp_path: Path) -> None:
    training = Gallery(row for row in runs() if row.network == "alexnet_owt")
    forward = Gallery([row for row in forward_passes() if row.network == "alexnet"])
    assert training.counted and training.shown and forward.counted
    pairs = list(scaling.pairs(training.counted))
    many = [large.predicted(next(row for row in large.rows() if int(row.devices) >= large.LEAST))]
    text = page(training, forward, pairs, many, "../pictures/gallery.png", "../pictures/curves.png")
    assert "![Predicted" in text and "](../pictures/gallery.png)" in text
    for title in ("Parallel efficiency", "Large runs", "Speedups", "Memory", "90% intervals",
                  "Forward passes alone", "The twenty worst", "Not counted"):
        assert f"## {title}" in text
    picture.draw(training.counted, str(tmp_path / "gallery.png"))
    picture.draw_curves(scaling.curves(pairs), str(tmp_path / "curves.png"))
    for name in "gallery.png", "curves.png":
        assert (tmp_path / name).stat().st_size > 10_000


def test_a_pair_is_one_device_against_several_of_the_same_run() -> None:
    found = [row for row in series() if "OneFlow-Benchmark" in row.source]
    # as if every prediction took 1 s on one device and 10% more for each doubling
    results = [Result(row, 1 + 0.1 * np.log2(int(row.devices))) for row in found]
    pairs = list(scaling.pairs(results))
    assert {int(pair.many.row.devices) for pair in pairs} == {2, 4, 8, 16, 32}
    assert {pair.one.row.batch for pair in pairs} == {128.0, 160.0}
    for pair in pairs:
        assert pair.one.row.batch == pair.many.row.batch
        rate = float(pair.many.row.samples_per_s) / int(pair.many.row.devices)
        assert pair.measured == pytest.approx(rate / float(pair.one.row.samples_per_s), rel=1e-4)
    judged = scaling.Judgment.of(pairs)
    assert judged.count == 10 and judged.correlation > 0.5
    assert judged.error == pytest.approx(np.mean([p.measured - p.predicted for p in pairs]))
    assert [len(curve) for curve in scaling.curves(pairs)] == [5]


def test_every_series_that_is_read_has_a_device_and_known_interconnects() -> None:
    found = list(series())
    assert len(found) > 700
    assert not {row.device for row in found} - {*catalog.names()}
    unknown = {row.published_device for row in found if unpredictable(row).startswith("interc")}
    assert unknown == {"P100"}  # pods in a cloud, whose network is not stated
    alone = [row for row in found if row.devices == "1" and not row.machine]
    assert {row.published_device for row in alone} == {"P100", "Pascal GPU (model not named)"}
    assert predict(alone[0]).predicted_s > 0
    by_words = {row.interconnect_inter: levels(row.machine)[1] for row in found
                if "HKBU" in row.source}
    bandwidths = {words: 1e-9 / level.loaded_beta_s_per_byte for words, level in by_words.items()}
    assert bandwidths == pytest.approx({"10GbE with TCP/IP": 1.125, "100GbE with TCP/IP": 2.475,
                                        "100GbIB with RDMA": 9.375})


def test_the_package_has_the_intervals_of_anchored_runs() -> None:
    """Anchors of the same device help; 85% of rows lie in other devices' intervals."""
    sds, found = anchored.anchored()
    shipped = anchored_residuals()
    assert {"loss_sd": shipped.loss_sd, "doubling_sd": shipped.doubling_sd} == sds
    assert anchored.ratios_inside(found["batch"][1]) > 0.85
    assert list(shipped.distances) == [
        runs for name, (runs, _) in found.items() if name != anchored.REFUSED]
    for name, (like, some) in found.items():
        before, after = (np.mean([1 - min(1.0, abs(np.exp(log) - 1)) for log in logs])
                         for logs in ([a.log for a in some], [a.left(like.share) for a in some]))
        if name != anchored.REFUSED:
            assert after > before + (0.0 if name in anchored.SHARED else 0.015), name
        assert anchored.inside(name, some) > 0.84, name


def test_the_package_has_the_intervals_of_the_residuals() -> None:
    """Rows lie in the intervals that other devices' and other networks' rows give, 9 of 10."""
    every = list(intervals.residuals())
    found = intervals.classes(every)
    assert [*found, intervals.unstated(found)] == list(published().classes)
    for basis, by in ("tables", "network"), ("sheet", "device"):
        shares = intervals.coverage(intervals.covered(every, basis), lambda r, by=by: r.group(by))
        count, share = shares.pop("all")
        assert count == sum(rows for rows, _ in shares.values()) > 500
        assert 0.84 < share < 0.95, basis


def test_a_narrower_class_needs_rows_that_differ() -> None:
    def some(count: int, samples: str, log: float) -> list[Residual]:
        known = {"precision": "fp32", "samples": samples, "network": "images"}
        return [Residual("sheet", f"D{i % 4}", "net", known, log + 0.01 * (i % 9))
                for i in range(count)]

    def wheres(*rows: list[Residual]) -> list[str]:
        found = intervals.classes([r for each in rows for r in each])
        return [each.where.get("samples", "any") for each in found]

    assert wheres(some(60, "many", 0.0), some(40, "few", 0.5)) == ["any", "few", "many"]
    assert wheres(some(60, "many", 0.0), some(40, "few", 0.0)) == ["any"]
    assert "few" not in wheres(some(60, "many", 0.0), some(10, "few", 0.5))


@pytest.mark.parametrize(("name", "shape", "millions", "gigaflops"), [
    ("inception_bn", (3, 224, 224), 11.3, 4.1), ("efficientnet_b0", (3, 224, 224), 5.29, 0.78),
    ("efficientdet_d0", (3, 512, 512), 3.9, 5.0), ("ssd300_resnet50", (3, 300, 300), 22.9, 40),
    ("unet_industrial_tiny", (1, 512, 512), 1.82, 40), ("deepcam", (16, 768, 1152), 56.5, 909),
])
def test_networks_have_their_published_size(name: str, shape: tuple[int, ...], millions: float,
                                            gigaflops: float) -> None:
    """Published parameters, and multiplications of Inception's and the EfficientNets' papers;
    gigaflops of the others are this project's.
    """
    network = NETWORKS[name](shape)
    layers = [(layer, network.input_shape(layer)) for layer in network.layers[1:]]
    parameters = sum(layer.parameters(x) for layer, x in layers)
    flops = sum(layer.forward_flops(x) for layer, x in layers if layer.is_matmul)
    assert parameters / 1e6 == pytest.approx(millions, rel=0.09)
    assert flops / 1e9 == pytest.approx(gigaflops, rel=0.02)


def one(**words: str) -> Row:
    """The first training run whose cells contain these words."""
    return next(row for row in runs()
                if all(word in row.cells[cell] for cell, word in words.items()))


def test_the_framework_decides_the_exchange_of_gradients() -> None:
    assert options_of(one(sync="DDP")) == {"batch_norm": "local", "framework": "ddp"}
    older = one(framework="MXNet 1.6 (gluon", sync="horovod")
    assert options_of(older)["framework"] == "horovod-0.20"
    synchronized = options_of(one(network="efficientnet_v2_s", sync="horovod"))
    assert (synchronized["batch_norm"], synchronized["framework"]) == ("sync", "horovod")
    assert options_of(one(note="XLA", sync="horovod"))["framework"] == "horovod-xla"
    assert (options_of(one(framework="PaddlePaddle 1.8", sync="nccl"))["framework"],
            options_of(one(framework="PaddlePaddle NGC", sync="nccl"))["framework"]) == (
        "ddp", "paddle")
    assert options_of(one(sync="parameter server"))["synchronization"] == "server"
    first = one(sync="replicated, nccl")
    assert options_of(first)["framework"] == "replicated"
    assert [level.name for level in machine_as_used(first, files.load("dgx1-p100")).levels] == [
        "quad", "node", "network"]


def test_series_spell_exchanges_and_frameworks_in_any_case() -> None:
    """Notes name XLA for all frameworks of a report; it compiles TensorFlow's layers only."""
    several = [row for row in series() if row.devices != "1"]
    rules = {row.framework: framework_of(row) for row in several
             if "PaddlePaddle/Perf" in row.source or "OneFlow-Benchmark" in row.source}
    assert rules == {"paddlepaddle": "paddle", "pytorch NGC": "ddp", "mxnet NGC": "mxnet",
                     "tensorflow 1.15 NGC": "horovod-xla", "oneflow 0.1.8": "ddp"}
    assert {framework_of(row) for row in several if "XLA clusters" in row.sync} == {"horovod-xla"}
    assert all(framework_of(row) for row in several)


def test_runs_that_are_faster_with_synthetic_data_are_input_bound() -> None:
    limited = [row for row in runs() if row.doubt.startswith("input: ")]
    assert len(limited) == 6 and {row.machine for row in limited} == {"dgx1-p100"}


def test_devices_that_share_a_sample_cut_its_image() -> None:
    rows = [row for row in runs() if row.machine == "fugaku" and row.graph_name == "cosmoflow_2"]
    by_batch = {row.batch: predict(row).predicted_s for row in rows}
    assert by_batch[1.0] > by_batch[0.25] > by_batch[0.0625] > 0


def test_batches_that_fitted_are_predicted_to_fit() -> None:
    results = [predict(row) for row in runs() if not unpredictable(row) and row.devices == "1"
               and row.batch >= 64 and row.network in ("resnet50", "inception_v3")]
    cases = [*memory.fitted(results), *memory.unfitted()]
    assert len(cases) > 5 and not any(case.contradicts for case in cases)
    assert {case.fitted for case in cases} == {True, False}


def test_published_allreduces_are_priced() -> None:
    """Large messages are right within a factor of 2 in 8 of 10 rows; every class has rows."""
    found = list(allreduces.predicted())
    assert {each.machine for each in found} == set(allreduces.MACHINES)
    assert {each.size for each in found} == set(allreduces.SIZES) and len(found) > 300
    large = [each.log for each in found if each.n_bytes > 2 ** 22]
    assert np.mean(np.abs(large) < np.log(2)) > 0.8
