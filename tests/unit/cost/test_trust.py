"""The sources of a prediction, its 90% interval, and rates that are a data sheet's peak."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from bench.gallery import cpus
from hpcpar.cost.compute import step_time
from hpcpar.cost.compute.kernel_model import CPU_SLOWDOWN
from hpcpar.cost.published_runs import (
    FEW_SAMPLES,
    ResidualClass,
    Residuals,
    published,
    traits,
)
from hpcpar.errors import InputError
from hpcpar.io.schema import convert
from hpcpar.machine import catalog, files
from hpcpar.machine.catalog import peak_warning, sheets_of_rate
from hpcpar.machine.model import Device, Machine
from hpcpar.network.builtin import built_in
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.prediction.prediction import Prediction, PredictionFile
from hpcpar.prediction.price import price
from hpcpar.report.tables import span, trusted
from hpcpar.simulation.simulate import Simulator

SPEC = NetworkSpec("lenet5", (1, 28, 28), 10)


#: Basis of a GPU of another maker.
OTHERS = "and a model fitted to NVIDIA's"


def made(name: str) -> Machine:
    """A preset, or a machine of one of these data sheets."""
    sheet = {"memory": "24 GB", "rate": "30 Tflop/s", "bandwidth": "600 GB/s",
             "multiprocessors": 72, "lanes": 128}
    devices: dict[str, Any] = {
        "xeon": "Xeon-8480", "unknown": sheet, "unnamed": {**sheet, "kind": "gpu"},
        "own": {**sheet, "kind": "gpu", "vendor": "Nvidia", "name": "my card"}}
    if name not in devices:
        return files.load(name)
    level = {"name": "all", "ranks": 0, "alpha_s": 1e-6, "beta_s_per_byte": 1e-10}
    return files.from_dict({"name": name, "device": devices[name], "levels": [level]})


def predicted(machine: Machine, batch: int = 64, precision: str = "fp32") -> Prediction:
    return price(SPEC.build(), make_plan(SPEC, "data", 2, batch, precision=precision), machine)


@pytest.mark.parametrize(("machine", "basis", "source"), [
    ("dgx1-v100", "tables", "data sheet of the V100-SXM2-16GB and published runs"),
    ("dgx-h100", "sheet", "data sheet of the H100-SXM"),
    ("lumi-g", "others", f"data sheet of the MI250X-GCD {OTHERS}"),
    ("xeon", "cpu", "data sheet of the Xeon-8480 and a few published runs on CPUs"),
    ("unknown", "unstated", "a data sheet that does not say kind = \"gpu\" or \"cpu\""),
    ("unnamed", "others", f"a data sheet {OTHERS}"),
    ("own", "sheet", "data sheet of the my card"),
    ("p100x4x4", "rate", "one rate fitted to VGG-16 and AlexNet"),
    ("local", "guess", "one rate of unknown origin"),
])
def test_a_prediction_names_its_sources(machine: str, basis: str, source: str) -> None:
    p = predicted(made(machine))
    assert (p.trust.basis, p.trust.source) == (basis, f"{source}, not calibrated")
    assert p.trust.words.endswith("; hpcpar calibrate on one node narrows it")
    assert p.interval_s[0] < p.iteration_s < p.interval_s[1]
    document = p.to_json()
    assert convert(document, PredictionFile, "p", "").interval_s == p.interval_s
    assert (document["iteration_low_s"], document["iteration_high_s"]) == p.interval_s
    assert (document["interval_basis"], document["interval_source"]) == (basis, p.trust.source)


@pytest.mark.parametrize("name", files.presets())
def test_every_preset_has_an_interval_and_a_rate_below_its_data_sheet(name: str) -> None:
    machine = files.load(name)
    low, high = predicted(machine).trust.ratios
    assert 0.3 < low < 1 < high < 8
    assert sheets_of_rate(machine) == [] and peak_warning(machine) == ""


def test_less_knowledge_widens_the_interval() -> None:
    def width(machine: str) -> float:
        low, high = predicted(files.load(machine)).trust.ratios
        return high / low

    names = "dgx-h100", "p100x4x4", "local"
    assert sorted(map(width, names)) == [width(name) for name in names]
    # of 16 samples or more, devices that were left out are predicted as well as networks
    assert width("dgx1-v100") == pytest.approx(width("dgx-h100"), rel=0.05)


def test_a_data_sheet_without_kind_or_vendor_has_a_wider_interval() -> None:
    runs = {name: predicted(made(name)).trust.runs for name in ("own", "unnamed", "unknown")}
    own, unnamed, unknown = (found for found in runs.values() if found)
    assert unknown.high > unnamed.high > own.high and unknown.low <= unnamed.low < own.low
    cpu, unstated = (published().of(name, {"precision": "fp32"}) for name in ("cpu", "unstated"))
    assert unstated.high == pytest.approx(cpu.high * CPU_SLOWDOWN, rel=0.01)


def test_published_runs_on_cpus_are_centered_and_none_of_them_is_fast() -> None:
    """Two Xeons were 12 to 29 times too fast with the figures of a GPU."""
    ratios = {(row.device, row.network): math.exp(-log) for row, log in cpus.logs()}
    cpu = published().of("cpu", {"precision": "fp32"})
    assert cpu.median == pytest.approx(1, abs=0.05) and cpu.rows == len(list(cpus.rows()))
    xeons = [ratio for (device, _), ratio in ratios.items() if device.startswith("2xE5")]
    assert len(xeons) == 10 and sum(cpu.low < r < cpu.high for r in xeons) >= 9


@pytest.mark.parametrize(("preset", "sheet"), [
    ("abci-v100", "V100-SXM2-16GB"), ("p100x4x4", "P100-SXM2"), ("cori-knl", "KNL-7250"),
    ("k80x16", "K80"), ("h100x8", "H100-SXM"), ("fugaku", "A64FX")])
def test_presets_with_one_rate_price_amp_by_the_data_sheet(preset: str, sheet: str) -> None:
    machine = files.load(preset)
    assert machine.device.sheet == sheet
    by_sheet = replace(machine, device=replace(
        catalog.device(sheet), memory_bytes=machine.device.memory_bytes))
    amp, other = predicted(machine, precision="amp"), predicted(by_sheet, precision="amp")
    assert amp.iteration_s == other.iteration_s and amp.trust == other.trust
    assert predicted(machine).trust.basis == "rate"


def test_a_format_that_the_data_sheet_lacks_is_still_refused() -> None:
    with pytest.raises(InputError, match="V100-SXM2-16GB has no tensor cores for tf32"):
        predicted(files.load("abci-v100"), precision="tf32")
    with pytest.raises(InputError, match="machine k20x8 gives only a float32 rate"):
        predicted(files.load("k20x8"), precision="amp")


# -- lopsided classes ------------------------------------------------------------------------------
def volumes(precision: str, machine: str = "dgx-a100", strategy: str = "data",
            ranks: int = 1) -> tuple[Prediction, Plan]:
    spec = NetworkSpec("unet3d", (1, 32, 32, 32), 3)
    plan = make_plan(spec, strategy, ranks, 2 * ranks, precision=precision)
    return price(spec.build(), plan, files.load(machine)), plan


def test_a_lopsided_class_moves_the_time_and_not_the_ends() -> None:
    """A 3-D U-Net in amp was 1.4 times too fast in the median."""
    runs = published().of("tables", {"precision": "amp", "network": "volumes"})
    p, _ = volumes("amp")
    with patch.object(step_time, "class_factor", lambda *_: 1.0):
        model_s = volumes("amp")[0].iteration_s
    assert p.iteration_s == pytest.approx(runs.median * model_s) and runs.median > 1.15
    assert p.interval_s == pytest.approx((runs.low * model_s, runs.high * model_s))
    assert p.trust.runs is not None and p.trust.runs.median == pytest.approx(1)
    assert "x 1.43, the median of 26 published" in p.trust.source
    document = p.to_json()
    assert document["compute_factor"] == p.trust.factor == runs.median
    read = convert(document, PredictionFile, "p", "").trust
    assert read is not None and read.factor == runs.median


@pytest.mark.parametrize(("precision", "machine"), [
    ("fp32", "dgx-a100"), ("tf32", "dgx-a100"), ("fp64", "dgx-a100"), ("fp32", "abci-v100"),
    ("fp32", "local")])
def test_other_classes_and_stand_ins_move_nothing(precision: str, machine: str) -> None:
    p, _ = volumes(precision, machine)
    assert p.trust.factor == 1.0
    with patch.object(step_time, "class_factor", lambda *_: 1.0):
        assert volumes(precision, machine)[0].iteration_s == p.iteration_s


def test_the_moved_time_is_the_only_one() -> None:
    p, plan = volumes("amp", strategy="spatial", ranks=4)
    played = Simulator(plan.network.build(), plan, files.load("dgx-a100")).play()
    assert played.mean_s == pytest.approx(p.iteration_s, rel=1e-9)
    assert sum(s.seconds for s in p.steps if not s.is_comm) == pytest.approx(p.compute_s, rel=1e-9)


def test_calibrated_machines_keep_their_times() -> None:
    sheet = files.load("dgx-a100")
    plan = make_plan(SPEC, "data", 1, 64, precision="amp")
    calibrated = replace(sheet, compute={"any amp": 1.0})
    with patch.object(step_time, "class_factor", lambda *_: 2.0):
        assert (2 * price(SPEC.build(), plan, calibrated).compute_s
                == pytest.approx(price(SPEC.build(), plan, sheet).compute_s))


def test_few_samples_per_rank_widen_the_interval() -> None:
    few, many = (predicted(files.load("dgx-h100"), batch).trust for batch in
                 (2 * FEW_SAMPLES - 2, 2 * FEW_SAMPLES))
    assert few.runs is not None and few.runs.where["samples"] == "few"
    assert few.ratios[0] < many.ratios[0] and few.ratios[1] > many.ratios[1]


def test_a_format_without_published_runs_has_the_interval_of_one_rate() -> None:
    def runs(machine: str) -> ResidualClass | None:
        return predicted(files.load(machine), precision="fp64").trust.runs

    bases = {name: getattr(runs(name), "basis", "") for name in ("dgx-h100", "abci-v100", "local")}
    assert bases == {"dgx-h100": "rate", "abci-v100": "rate", "local": "peak"}


@pytest.mark.parametrize(("network", "shape", "kind"), [
    ("resnet50", (3, 224, 224), "images"), ("unet3d", (1, 64, 64, 64), "volumes"),
    ("mobilenet_v2", (3, 224, 224), "depthwise convolutions"), ("alexnet", (3, 227, 227), "images"),
])
def test_networks_have_their_kind(network: str, shape: tuple[int, ...], kind: str) -> None:
    found = traits(built_in(network, shape), 2, "fp32")
    assert found == {"precision": "fp32", "network": kind,
                     "samples": "many" if kind == "volumes" else "few"}


def test_the_narrowest_class_counts() -> None:
    def made(rows: int, **where: str) -> ResidualClass:
        return ResidualClass("sheet", where, rows, 0.5, 1.0, 2.0)

    runs = Residuals((made(90), made(80, samples="few"), made(20, network="volumes")))
    assert runs.of("sheet", {"samples": "many", "network": "images"}).rows == 90
    assert runs.of("sheet", {"samples": "few", "network": "volumes"}).rows == 20


def test_the_package_names_devices_of_the_catalog() -> None:
    runs = published()
    assert {*runs.devices} < set(catalog.names())
    assert {catalog.device(name).vendor for name in runs.devices} == {"NVIDIA"}
    assert all(each.rows >= 20 and each.low < each.median < each.high for each in runs.classes)


def test_intervals_in_words() -> None:
    trust = predicted(files.load("dgx-h100")).trust
    known = replace(trust, basis="calibration", source="calibrated", ratios=(0.9, 1.1))
    assert trusted(0.03125, "per iteration", known) == (
        "31.25 ms per iteration (28.12 to 34.38 ms: calibrated)")
    assert trusted(0.03125, "per iteration", replace(trust, ratios=(0.7, 1.4))) == (
        "about 31 ms per iteration (22 to 44 ms: data sheet of the H100-SXM, not calibrated; "
        "hpcpar calibrate on one node narrows it)")
    assert span(0.9, known) == "810 to 990 ms: calibrated"
    assert span(0.95, known) == "855 ms to 1.045 s: calibrated"
    assert span(200, known) == "3 min to 3 min 40 s: calibrated"


def with_rate(flops_per_s: float, **device: object) -> Machine:
    made = Device(80_000_000_000, flops_per_s, 2e12)
    return replace(files.load("local"), device=replace(made, **device))


def test_a_rate_that_is_a_data_sheet_s_peak_gets_a_warning() -> None:
    warning = peak_warning(with_rate(19.5e12))
    assert warning.startswith("warning: the rate of local, 19.5 Tflop/s, is the peak of a data ")
    assert "device = \"A100-PCIE-40GB\"" in warning and "hpcpar calibrate" in warning
    assert predicted(with_rate(19.4e12)).trust.basis == "peak"
    assert predicted(with_rate(19.5e12)).trust.warning == warning


def test_other_rates_get_no_warning() -> None:
    measured = with_rate(19.5e12)
    assert peak_warning(with_rate(17e12)) == ""
    assert peak_warning(replace(measured, quality={"origin": {}})) == ""
    assert peak_warning(replace(measured, compute={"a": 1.0})) == ""
    assert peak_warning(with_rate(19.5e12, multiprocessors=108, lanes=64)) == ""
    assert sheets_of_rate(with_rate(19.5e12, name="T4")) == []
    assert sheets_of_rate(with_rate(8.1e12, name="T4")) == ["T4"]
    assert sheets_of_rate(with_rate(3e12, peak_flops_per_s=3e12)) == ["its own"]
