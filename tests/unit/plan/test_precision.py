"""Number formats of plans: their files, their bytes, and who refuses them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcpar
from hpcpar.cli.main import main
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.network.builtin import network as builtin
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.plan.precision import PRECISIONS
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import price
from hpcpar.schedule.steps import Comm, Role

SPEC = NetworkSpec("alexnet", (3, 227, 227), 1000)
NETWORK = builtin("alexnet")
A100 = files.load("dgx-a100")


def plan_of(precision: str, strategy: str = "data", batch: int = 64, **options: Any) -> Plan:
    return make_plan(SPEC, strategy, 4, batch, network=NETWORK, machine=A100, precision=precision,
                     **options)


def priced(precision: str, strategy: str = "data", **options: Any) -> Prediction:
    return price(NETWORK, plan_of(precision, strategy, **options), A100)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_plan_file_keeps_its_precision(precision: str, tmp_path: Path) -> None:
    plan = plan_of(precision)
    plans.save(plan, str(tmp_path / "p.json"))
    assert plans.load(str(tmp_path / "p.json")) == plan


def test_a_file_that_names_a_type_is_refused() -> None:
    """Plans had ``dtype`` in place of ``precision`` before the first release."""
    with pytest.raises(InputError, match="unknown field 'dtype'"):
        plans.from_json(plans.to_json(plan_of("fp64")) | {"dtype": "float64"}, "p")


def test_mixed_precision_halves_activations_but_not_weights() -> None:
    for strategy in ("data", "domain:2x2", "grid:2x2", "filter"):
        single, mixed = priced("fp32", strategy).memory, priced("amp", strategy).memory
        assert 2 * mixed.activations_bytes == single.activations_bytes
        assert 2 * mixed.gradients_bytes == single.gradients_bytes
        assert mixed.optimizer_bytes == single.optimizer_bytes
    # weights and gradients in float32, a copy in 2 bytes for products: biases have one, too
    single, mixed = priced("fp32").memory, priced("amp").memory
    assert mixed.weights_bytes * 4 == single.weights_bytes * 5
    assert priced("tf32").memory == single


def test_messages_of_activations_are_halved_those_of_weights_are_not() -> None:
    for strategy in ("domain:2x2", "grid:2x2", "data", "pipeline:2x2"):
        single, mixed = (schedule_for(NETWORK, plan_of(p, strategy)) for p in ("fp32", "amp"))
        roles = set()
        for one, half in zip(single.steps, mixed.steps, strict=True):
            if isinstance(one, Comm) and isinstance(half, Comm):
                of_activations = one.tensor.role in (Role.INPUT, Role.OUTPUT)
                assert half.item_bytes == one.item_bytes / (2 if of_activations else 1)
                roles.add(of_activations)
        assert roles == ({False} if strategy == "data" else {True, False})
    for synchronization in ("allreduce", "sharded", "server"):
        sent = [priced(p, synchronization=synchronization).communication_bytes
                for p in ("fp32", "amp")]
        assert sent[0] == sent[1]


def test_mixed_precision_has_the_published_gain_on_an_a100() -> None:
    spec, network = NetworkSpec("resnet50", (3, 224, 224), 1000), builtin("resnet50")
    seconds = {p: price(network, make_plan(spec, "data", 1, 256, network=network, precision=p),
                        A100).iteration_s for p in ("fp32", "tf32", "amp")}
    # NVIDIA publishes 2.5 to 3.3; an H200 was measured at 3.6 (bench/gallery/h200.csv)
    assert 2.5 < seconds["fp32"] / seconds["amp"] < 4.0
    assert 1.3 < seconds["fp32"] / seconds["tf32"] < 2.2


@pytest.mark.parametrize("strategy", ["data", "grid:2x2", "pipeline:2x2", "auto"])
def test_float16_costs_as_much_as_bfloat16_and_a_vote(strategy: str) -> None:
    half, scaled = (hpcpar.plan(network="lenet5", input="1x28x28", ranks=4, batch=64,
                                machine="dgx-a100", strategy=strategy, precision=p)
                    for p in ("amp", "amp-fp16"))
    assert half.prediction.iteration_s < scaled.prediction.iteration_s
    assert scaled.prediction.iteration_s < 1.5 * half.prediction.iteration_s
    assert scaled.prediction.memory == half.prediction.memory
    times = [hpcpar.simulate(p.plan).simulated.played.mean_s for p in (half, scaled)]
    assert times[0] < times[1]


@pytest.mark.parametrize("command", [
    "run --data d.h5 --plan", "verify --precision amp-fp16 --plan"])
def test_gpus_do_not_run_float16(command: str, tmp_path: Path,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "p.json"
    plans.save(plan_of("amp-fp16", batch=8), str(made))
    assert main([*command.split(), str(made), "--device", "gpu"]) == 2
    assert "precision amp-fp16 runs on CPUs only; use --precision amp on GPUs" in (
        capsys.readouterr().err)


@pytest.mark.parametrize(("machine", "precision", "told"), [
    ("dgx1-v100", "tf32", "V100-SXM2-16GB has no tensor cores for tf32; use --precision fp32 or"),
    ("p2.8xlarge", "tf32", "K80 has no tensor cores for tf32"),
    ("k20x8", "amp", "machine k20x8 gives only a float32 rate, which cannot price amp"),
    ("local", "tf32", "machine local gives only a float32 rate, which cannot price tf32"),
])
@pytest.mark.parametrize("command", [
    "plan --strategy auto", "plan --strategy data", "predict --strategy data,filter"])
def test_formats_that_a_machine_cannot_price_are_refused(
        command: str, machine: str, precision: str, told: str,
        capsys: pytest.CaptureFixture[str]) -> None:
    words = [*command.split(), "--network", "lenet5", "--ranks", "2", "--batch", "32"]
    assert main([*words, "--machine", machine, "--precision", precision]) == 2
    said = capsys.readouterr()
    assert told in said.err and said.err.count("\n") == 1 and not said.out


def test_a_calibrated_machine_prices_its_measured_format() -> None:
    measured = replace(A100, name="mine", compute={"conv2d.forward x=1 y=1 float32": 1e-3})
    with pytest.raises(InputError, match="machine mine was not calibrated in amp"):
        price(NETWORK, plan_of("amp"), measured)
    assert price(NETWORK, plan_of("fp32"), measured).iteration_s > 0
    cores = replace(measured, compute={"conv2d.forward x=1 y=1 tf32": 1e-3})
    assert price(NETWORK, plan_of("tf32"), cores).iteration_s > 0


def test_a_processor_without_tensor_cores_stores_less() -> None:
    k80 = files.load("p2.8xlarge")
    single, mixed = (price(NETWORK, plan_of(p, batch=1024), k80) for p in ("fp32", "amp"))
    assert 0.6 * single.compute_s < mixed.compute_s < single.compute_s


def test_one_rate_prices_a_format_with_a_stated_rate() -> None:
    old = files.load("k80x16")
    device = replace(old.device, rates={"float16": 8 * old.device.flops_per_s})
    single, mixed = (price(NETWORK, plan_of(p, batch=1024), replace(old, device=device))
                     for p in ("fp32", "amp"))
    assert mixed.compute_s < single.compute_s / 2
    assert single.compute_s == price(NETWORK, plan_of("fp32", batch=1024), old).compute_s


def test_types_of_items_and_weights_have_their_bytes() -> None:
    """The bytes that are priced, sent and allocated follow from the types."""
    import ml_dtypes

    for formats in PRECISIONS.values():
        for name, size in ((formats.dtype, formats.weight_bytes),
                           (formats.item_dtype, formats.item_bytes)):
            assert np.dtype(getattr(ml_dtypes, name, name)).itemsize == size
    amp = PRECISIONS["amp"]
    assert (amp.item_bytes, amp.weight_bytes, amp.copy_bytes) == (2, 4, 2)
    assert not any(PRECISIONS[p].copy_bytes for p in ("fp64", "fp32", "tf32"))
