"""The speed of a machine now, against its calibration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcpar.calibrate.rescale import Slowdown, slowdown
from hpcpar.calibrate.work_index import WorkIndex
from hpcpar.cost.compute.step_time import compute_s
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.cost.price_plan import price
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import NetworkSpec, make_plan
from tests.unit.calibrate.test_calibrate import Alone

LOCAL = files.load("local")
SPEC = NetworkSpec("lenet5", (1, 28, 28), 10)
NETWORK = SPEC.build()
PLAN = make_plan(SPEC, "data", 2, 16, machine=files.to_dict(LOCAL))


def calibrated(**quality: Any) -> Machine:
    works = WorkIndex(NETWORK, PLAN, schedule_for(NETWORK, PLAN)).works
    table = {key: float(compute_s(LOCAL, work)) for key, work in works.items()}
    told = {"rounds": 7, "origin": {"nodes": "n#", "threads": 1, "device": "cpu"}} | quality
    return replace(LOCAL, compute=table, quality=told)


def test_a_machine_of_half_the_speed_computes_twice_as_long() -> None:
    machine = calibrated()
    before, after, same = (price(NETWORK, PLAN, m) for m in (
        machine, Slowdown(2.0, 2.0).rescaled(machine, NETWORK),
        Slowdown(1.0, 1.0).rescaled(machine, NETWORK)))
    assert after.compute_s == pytest.approx(2 * before.compute_s)
    assert after.communication_s == before.communication_s
    assert same.iteration_s == before.iteration_s


def test_products_and_other_work_change_apart() -> None:
    before, slow = (price(NETWORK, PLAN, m) for m in (
        calibrated(), Slowdown(3.0, 1.0).rescaled(calibrated(), NETWORK)))
    for step, now in zip(before.steps, slow.steps, strict=True):
        product = step.layer.startswith(("conv", "fc")) and step.phase != "update"
        factor = 3 if product and not step.is_comm else 1
        assert now.seconds == pytest.approx(factor * step.seconds), step
    copies = Slowdown(1.0, 2.0).rescaled(LOCAL, NETWORK).device
    assert copies.bandwidth_bytes_per_s == LOCAL.device.bandwidth_bytes_per_s / 2


def test_the_speed_is_measured_where_a_calibration_measured_it() -> None:
    world: Any = Alone()
    found = slowdown(world, NumpyBackend(), calibrated())
    assert found is not None and 0 < found.product < 1e3 and 0 < found.copy < 1e3
    faster = replace(LOCAL.device, flops_per_s=1e6 * LOCAL.device.flops_per_s)
    slower = slowdown(world, NumpyBackend(), replace(calibrated(), device=faster))
    assert slower is not None and slower.product > 1e3 * found.product
    other = {"nodes": "n#", "threads": 1, "device": "gpu"}
    without = [LOCAL, replace(calibrated(), quality={"origin": other, "rounds": 7}),
               replace(calibrated(), quality={"origin": other | {"device": "cpu"}})]
    assert [slowdown(world, NumpyBackend(), machine) for machine in without] == [None] * 3
