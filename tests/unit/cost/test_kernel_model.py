"""The model of kernels: what makes them slow, and published training runs that it predicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.gallery.__main__ import predict, unpredictable
from bench.gallery.rows import runs
from hpcpar.cost.compute.kernel_model import fitted, kernel_s, product_of
from hpcpar.cost.compute.step_time import slowest
from hpcpar.cost.compute.work import Work, Workload
from hpcpar.errors import InputError
from hpcpar.machine import catalog, files
from hpcpar.machine.model import Device
from hpcpar.network.builder import Graph
from hpcpar.network.builtin import built_in
from hpcpar.network.layers import Conv2d, ConvTranspose2d, Flatten, Linear, SoftmaxCrossEntropy
from hpcpar.network.spec import NetworkSpec
from hpcpar.plan.plan import make_plan
from hpcpar.prediction.price import price
from hpcpar.schedule.steps import Op

V100 = Device(**catalog.figures("V100-SXM2-16GB", "here"))  # type: ignore[arg-type]


def work(batch: int = 32, op: Op = Op.FORWARD, channels: int = 64, size: int = 28,
         layer: Any = Conv2d, **options: Any) -> Work:
    """The work of a convolution behind one that has as many channels."""
    net = Graph("one", (channels, size, size))
    net.add(Conv2d, "first", out_channels=channels, kernel=1)
    net.add(layer, "conv", **{"out_channels": channels, "kernel": 1, "bias": False} | options)
    net.add(Flatten, "flatten")
    net.add(Linear, "fc", out_features=10)
    net.add(SoftmaxCrossEntropy, "loss")
    network = net.build()
    plan = make_plan(NetworkSpec.of(network), "data", 1, batch)
    return Workload(network, plan).work(network.by_name["conv"], op, batch)


def rate(w: Work, device: Device = V100) -> float:
    """Flops a second."""
    return float(w.flops / kernel_s(device, w))


def test_the_product_has_the_flops_of_the_layer() -> None:
    cases = ({"kernel": 3, "padding": 1}, {"kernel": 3, "stride": 2, "padding": 1}, {},
             {"kernel": 3, "padding": 1, "groups": 8},
             {"layer": ConvTranspose2d, "kernel": 2, "stride": 2})
    for options in cases:
        for op in Op.FORWARD, Op.BACKWARD, Op.BACKWARD_WEIGHT:
            w = work(op=op, **options)
            p = product_of(w)
            assert 2 * p.m * p.n * p.k * p.count == pytest.approx(w.flops)
    p = product_of(work(kernel=3, padding=1, groups=8))
    assert (p.n, p.k, p.count) == (8, 72, 8)


def test_what_makes_kernels_slow() -> None:
    plain = rate(work(batch=64, channels=256))
    assert rate(work(batch=64, channels=16)) < plain / 3  # short sums, few columns
    assert rate(work(batch=1, channels=256, size=7)) < plain / 5  # few tiles, launch, host
    square = {"kernel": 3, "padding": 1, "channels": 128}
    assert rate(work(**square)) > 1.5 * rate(work(**square, dilation=1, stride=2))
    assert rate(work(**square, groups=32)) < rate(work(**square)) / 5
    assert rate(work(batch=64, channels=256, op=Op.BACKWARD_WEIGHT)) < plain


def test_every_kernel_has_the_same_fixed_time() -> None:
    small, large = work(batch=1, size=7), work(batch=64, channels=256)
    for each in small, large:
        two_parts = [kernel_s(V100, replace(each, fraction=part)) for part in (0.25, 0.75)]
        fixed_s = fitted().host_s + V100.launch_s
        assert sum(two_parts) - kernel_s(V100, each) == pytest.approx(fixed_s)


def test_a_library_without_winograd_is_slower() -> None:
    old = replace(V100, software_year=2015)
    square = work(kernel=3, padding=1, channels=128)
    assert rate(square, old) < 0.6 * rate(square)
    assert 0.5 * rate(work()) < rate(work(), old) < rate(work())


def test_doubles_take_longer_and_families_agree_with_single_cases() -> None:
    one = work(batch=64, channels=256)
    assert kernel_s(V100, replace(one, dtype="float64")) > 1.5 * kernel_s(V100, one)
    each = [work(batch=b) for b in (1, 8, 64)]
    family = replace(
        each[0], x=(np.array([w.x[0] for w in each]), *each[0].x[1:]),
        y=(np.array([w.y[0] for w in each]), *each[0].y[1:]),
        flops=np.array([w.flops for w in each]), bytes=np.array([w.bytes for w in each]))
    np.testing.assert_allclose(kernel_s(V100, family), [kernel_s(V100, w) for w in each])


def test_tensor_cores_speed_up_only_large_products() -> None:
    a100 = Device(**catalog.figures("A100-SXM-80GB", "here"))  # type: ignore[arg-type]

    def gain(precision: str, device: Device = a100, **options: Any) -> float:
        single = work(**options)
        mixed = replace(single, dtype=precision, bytes=single.bytes * (
            0.5 if precision == "amp" else 1.0))
        return float(kernel_s(device, single) / kernel_s(device, mixed))

    large: dict[str, Any] = {"batch": 256, "channels": 512, "size": 28}
    assert 1.5 < gain("tf32", **large) < gain("amp", **large) < 16
    assert gain("amp", batch=1, channels=16, size=7) == pytest.approx(1, abs=0.1)
    depthwise: dict[str, Any] = {"kernel": 3, "padding": 1, "channels": 256, "groups": 256}
    in_tf32, in_amp = (gain(name, batch=256, **depthwise) for name in ("tf32", "amp"))
    assert in_amp < 1  # no tiles, no tensor cores, and layouts for tensor cores
    assert in_amp == pytest.approx(2 * in_tf32, rel=0.05)  # waits for half the words
    assert gain("amp", V100, **large) > 3
    slow = replace(V100, rates={})
    assert gain("amp", slow, **large) < 1.3


def test_a_layer_of_an_unknown_family_is_refused() -> None:
    with pytest.raises(InputError, match="unknown kernel_family of a layer conv2d 'pool'"):
        kernel_s(V100, replace(work(), family="pool"))


def test_published_runs_are_predicted() -> None:
    """Every eighth row of one device: the whole gallery is `python -m bench.gallery`."""
    rows = [row for row in runs()
            if row.devices == "1" and row.precision == "fp32" and not row.doubt
            and not unpredictable(row)][::8]
    logs = np.array([predict(row).log for row in rows])
    off = np.abs(np.exp(logs) - 1)
    assert len(rows) > 30 and 1 - off.mean() > 0.83
    assert 0.95 < np.exp(np.median(logs)) < 1.05 and np.mean(off <= 0.2) > 0.7


def test_an_iteration_waits_for_the_slowest_device() -> None:
    assert slowest(V100, 1) == 1
    factors = [slowest(V100, ranks) for ranks in (2, 8, 64, 4096)]
    assert factors == pytest.approx([1.021, 1.050, 1.082, 1.126], abs=0.001)
    assert slowest(replace(V100, multiprocessors=0, lanes=0), 64) == 1
    network = built_in("lenet5", (1, 32, 32))
    times = []
    for ranks in 1, 8:
        plan = make_plan(NetworkSpec.of(network), "data", ranks, 16 * ranks)
        found = price(network, plan, files.load("dgx1-v100"))
        times.append(sum(step.seconds for step in found.steps if not step.is_comm))
    assert times[1] / times[0] == pytest.approx(slowest(V100, 8))
