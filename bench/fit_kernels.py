"""Fit the numbers of the model of kernels to published measurements, and judge it by leaving out.

Usage: python -m bench.fit_kernels [--leave device|network] [--write]

It reads ``bench/gallery/*.csv``: kernels of DeepBench, and training runs on one device. Runs in
TF32 and mixed precision fit the numbers of tensor cores, once float32's numbers are known.
``--leave`` fits again without each device (network) in turn and predicts it; ``--write`` writes
``hpcpar/cost/compute/kernel_model.toml``. It needs SciPy and takes a minute (``--leave``: five).
``--leave`` writes its figures to ``bench/gallery/left_out.csv``, which the gallery's page shows.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tomli_w
from numpy.typing import NDArray
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from bench.gallery import left_out
from bench.gallery.left_out import LeftOut
from bench.gallery.networks import NETWORKS
from bench.gallery.rows import ALIASES, KERNEL_YEARS, Row, read, runs
from hpcpar.cost.compute import kernel_model
from hpcpar.cost.compute.kernel_model import (
    KernelModel,
    Product,
    TensorCores,
    product_of,
    product_s,
    tensor_product_s,
)
from hpcpar.cost.compute.work import Work, Workload
from hpcpar.machine import catalog
from hpcpar.machine.model import Device
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv2d
from hpcpar.network.spec import NetworkSpec
from hpcpar.plan.frameworks import ELEMENTWISE, FUSED
from hpcpar.plan.plan import make_plan
from hpcpar.plan.precision import PRECISIONS
from hpcpar.schedule.lower import lower
from hpcpar.schedule.steps import Compute, Op

PASSES = ("forward", "backward", "backward_weight")
Floats = NDArray[np.float64]
Model = TypeVar("Model", KernelModel, TensorCores)
#: Weight of all runs, convolutions and products in the fit.
WEIGHTS = {"run": 6.0, "conv": 1.5, "gemm": 0.5}
#: Kinds of samples, and the number formats of runs that use tensor cores.
LABELS = (*WEIGHTS, "amp", "tf32")
#: Launches of the kernel tables are timed with the call.
TABLE_LAUNCH_S = 2e-5
#: Residuals (logarithms) beyond which a row counts less than its square.
ROBUST = 0.2
#: Where the fit begins, and to where it is drawn weakly: what a textbook would say.
START = KernelModel(
    share=dict(zip(PASSES, (0.8, 0.8, 0.5), strict=True)), winograd=dict.fromkeys(PASSES, 2.25),
    bandwidth={"matmul": 0.9, "activation": 0.75, "normalization": 0.75, "pooling": 0.6,
               "lrn": 0.4, "update": 0.9, "other": 0.5},
    winograd_traffic=2.0, large_window=1.5, strided=2.0, volumes=1.5, tile_words=32.0, fill=16.0,
    direct=0.12, yearly=1.1, host_s=3e-5, tensor=TensorCores(
        share=dict(zip(PASSES, (0.6, 0.5, 0.4), strict=True)), tile_words=100.0, fill=40.0,
        tf32=0.8, direct=0.12))
#: Devices of one data sheet, left out together.
TOGETHER = ("A100", "P100", "V100")


class Sample(NamedTuple):
    """A measured time: counts of pieces of work on a device; kernels have one, without a host."""

    kind: str
    device: str
    network: str
    library_year: float
    works: Counter[Work]
    seconds: float
    precision: str = "fp32"
    fused: bool = False

    @property
    def label(self) -> str:
        """Its kind, or its number format."""
        return self.kind if self.precision == "fp32" else self.precision


def works_of(network: Network, batch: int, updates: bool, precision: str) -> Counter[Work]:
    """The pieces of work of an iteration of one rank."""
    plan = make_plan(NetworkSpec.of(network), "data", 1, batch, precision=precision)
    load, found = Workload(network, plan), {}
    counts: Counter[str] = Counter()
    for step in lower(network, plan, lambda move: ("ring", 1)).steps:
        if isinstance(step, Compute) and (updates or step.op is not Op.UPDATE):
            work = load.of(step)
            counts[work.key] += 1
            found[work.key] = replace(work, layer=work.layer and replace(work.layer, inputs=()))
    return Counter({found[key]: count for key, count in counts.items() if found[key].bytes})


def counted(row: Row) -> bool:
    """True for rows of one device that the model can predict."""
    return (row.devices == "1" and row.precision in PRECISIONS and row.batch >= 1 and not row.doubt
            and row.device in catalog.names() and row.graph_name in NETWORKS)


def run_samples() -> Iterator[Sample]:
    """The training runs on one device."""
    known: dict[tuple[str, str, int, bool, str], Counter[Work]] = {}
    for row in filter(counted, runs()):
        key = row.graph_name, row.input, int(row.batch), row.updates, row.precision
        if key not in known:
            known[key] = works_of(row.graph, *key[2:])
        yield Sample("run", row.device, row.graph_name, row.library_year, known[key],
                     row.iteration_s, row.precision, row.fused)


def conv_samples() -> Iterator[Sample]:
    """The passes of DeepBench's convolutions."""
    for cells in read("conv.csv"):
        w, h, c, n, k, s, r, pw, ph, sw, sh = (int(cells[name]) for name in (
            "W", "H", "C", "N", "K", "S", "R", "pad_w", "pad_h", "stride_w", "stride_h"))
        layer = Conv2d("conv", (), k, (r, s), (sh, sw), (ph, pw), bias=False)
        y = layer.output_shape((c, h, w))
        flops = n * layer.forward_flops((c, h, w))
        moved = 4 * (n * (c * h * w + math.prod(y)) + c * k * r * s)
        for op in PASSES:
            name = {"backward": "backward_data"}.get(op, op)
            seconds = float(cells[f"{name}_ms"] or 0) / 1e3
            if seconds:
                work = Work("conv2d", op, (n, c, h, w), (n, *y), flops, moved, "", "float32",
                            family="matmul", layer=layer)
                yield Sample("conv", cells["device"], "", KERNEL_YEARS[cells["device"]],
                             Counter([work]), seconds)


def gemm_samples() -> Iterator[Sample]:
    """DeepBench's matrix products, as forward passes of linear layers."""
    for cells in read("gemm.csv"):
        m, n, k = (int(cells[name]) for name in "MNK")
        work = Work("linear", "forward", (m, k), (m, n), 2.0 * m * n * k,
                    4 * (m * n + m * k + n * k), "", "float32", family="matmul")
        yield Sample("gemm", cells["device"], "", KERNEL_YEARS[cells["device"]], Counter([work]),
                     float(cells["ms"]) / 1e3)


def _rate(sample: Sample) -> float:
    """The rate of products in the sample's number format; 0 in float32."""
    formats = PRECISIONS[sample.precision].rates
    figures = catalog.figures(ALIASES.get(sample.device, sample.device), "fit")
    return Device(**figures).rate_of(formats)  # type: ignore[arg-type]


class Table:
    """Samples as arrays, all in float32 or none: their predicted times for any numbers of the
    model.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self.seconds = np.array([sample.seconds for sample in samples])
        self._rates = np.array([_rate(sample) for sample in samples])
        self._tf32 = np.array([sample.precision == "tf32" for sample in samples])
        self._fused = np.array([sample.fused for sample in samples])
        entries = [(i, count, work) for i, sample in enumerate(samples)
                   for work, count in sample.works.items()]
        self._products = [self._arrays([e for e in entries if e[2].family == "matmul"
                                        and e[2].op == op], op) for op in PASSES]
        families = sorted({e[2].family for e in entries} - {"matmul"})
        self._moves = [(family, *self._columns([e for e in entries if e[2].family == family]))
                       for family in families]

    def _columns(self, entries: list[tuple[int, int, Work]]) -> tuple[Any, Any, Device, Any]:
        rows = np.array([i for i, _, _ in entries], int)
        return (rows, np.array([count for _, count, _ in entries]), self._device(rows),
                np.array([work.bytes for _, _, work in entries], float))

    def _arrays(self, entries: list[tuple[int, int, Work]], op: str) -> tuple[Any, ...]:
        """Pass, columns and product of the entries."""
        products = [product_of(work) for _, _, work in entries]
        arrays = (np.array([getattr(p, f.name) for p in products]) for f in fields(Product))
        return op, *self._columns(entries), Product(*arrays)

    def _device(self, rows: NDArray[np.int64]) -> Device:
        """The data sheet of each entry, as arrays."""
        sheets: dict[str, Any] = {name: catalog.figures(ALIASES.get(name, name), "fit")
                  for name in {sample.device for sample in self.samples}}

        def column(field: str) -> Any:
            values = [sheets[sample.device][field] for sample in self.samples]
            return np.array(values, float)[rows]

        launch_s = np.array([sheets[s.device]["launch_s"] if s.kind == "run" else TABLE_LAUNCH_S
                             for s in self.samples], float)[rows]
        years = np.array([sample.library_year for sample in self.samples])[rows]
        return SimpleNamespace(  # type: ignore[return-value]
            flops_per_s=column("flops_per_s"), launch_s=launch_s,
            bandwidth_bytes_per_s=column("bandwidth_bytes_per_s"), lanes=column("lanes"),
            multiprocessors=column("multiprocessors"), software_year=years,
            has_tf32=np.array(["tf32" in sheets[sample.device].get("rates", ())
                               for sample in self.samples])[rows])

    def logs(self, model: KernelModel, fused: float = FUSED) -> Floats:
        """Logarithms of predicted over measured times."""
        total = np.zeros(len(self.samples))
        is_run = np.array([sample.kind == "run" for sample in self.samples])
        parts = [("matmul", rows, count, device, self._product_s(model, device, op, rows, product))
                 for op, rows, count, device, _, product in self._products]
        parts += [(family, rows, count, device,
                   moved / (model.bandwidth[family] * device.bandwidth_bytes_per_s))
                  for family, rows, count, device, moved in self._moves]
        for family, rows, count, device, busy_s in parts:
            seconds = busy_s + device.launch_s + np.where(is_run[rows], model.host_s, 0)
            if family in ELEMENTWISE:
                seconds = seconds * np.where(self._fused[rows], fused, 1)
            np.add.at(total, rows, count * seconds)
        return np.log(total / self.seconds)

    def _product_s(self, model: KernelModel, device: Device, op: str, rows: NDArray[np.int64],
                   product: Product) -> Floats:
        """Seconds of products in the samples' number format."""
        if not self._rates.any():
            return np.asarray(product_s(model, device, op, product, model.direct))
        return np.asarray(tensor_product_s(model, device, op, product, self._rates[rows],
                                           self._tf32[rows]))

    def weights(self) -> Floats:
        """Weight of each sample: many runs of one network on one device count less each."""
        many = Counter((s.kind, s.device, s.network) for s in self.samples)
        each = np.array([many[s.kind, s.device, s.network] ** -0.5 if s.kind == "run" else 1.0
                         for s in self.samples])
        for kind, weight in WEIGHTS.items():
            own = np.array([s.kind == kind for s in self.samples])
            if own.any():
                each[own] *= weight / each[own].sum()
        return each


def _numbers(model: Model) -> list[str]:
    """The fields that are numbers, or mappings to them."""
    return [f.name for f in fields(model) if f.name != "tensor"]


def packed(model: Model) -> Floats:
    """Logarithms of all numbers."""
    values: list[float] = []
    for name in _numbers(model):
        value = getattr(model, name)
        values += value.values() if isinstance(value, dict) else [value]
    return np.log(values)


def unpacked(logs: Floats, like: Model) -> Model:
    """The model of these logarithms."""
    numbers = iter(np.exp(logs).tolist())
    changed: dict[str, Any] = {
        name: {key: next(numbers) for key in value} if isinstance(value, dict) else next(numbers)
        for name, value in ((name, getattr(like, name)) for name in _numbers(like))}
    return replace(like, **changed)


def _unbounded(value: Any) -> Any:
    return dict.fromkeys(value, math.inf) if isinstance(value, dict) else math.inf


def fit(samples: Sequence[Sample]) -> KernelModel:
    """Robust least squares of logarithms; `START` draws weakly. Shares are at most 1."""
    table, first = Table(samples), packed(START)
    root = np.sqrt(table.weights())

    def residuals(logs: Floats) -> Floats:
        errors = table.logs(unpacked(logs, START))
        bounded = errors / (1 + (errors / ROBUST) ** 2) ** 0.25
        return np.concatenate([root * bounded, 0.03 * (logs - first)])

    whole = {name: dict.fromkeys(getattr(START, name), 1.0) for name in ("share", "bandwidth")}
    bounds: dict[str, Any] = {name: whole.get(name) or _unbounded(getattr(START, name))
                              for name in _numbers(START)}
    most = packed(replace(START, **bounds))
    found = least_squares(residuals, np.minimum(first, most - 1e-3), max_nfev=60,
                          diff_step=1e-3, bounds=(-np.inf, most))
    return unpacked(found.x, START)


def fit_tensor(samples: Sequence[Sample], base: KernelModel) -> tuple[KernelModel, float]:
    """The numbers of tensor cores, and time of fused element-wise kernels, by `fit`'s rules; the
    numbers of float32 come from `base`.
    """
    table, like = Table(samples), START.tensor
    first = np.append(packed(like), math.log(FUSED))
    root = np.sqrt(table.weights() / WEIGHTS["run"])

    def residuals(logs: Floats) -> Floats:
        errors = table.logs(replace(base, tensor=unpacked(logs[:-1], like)), math.exp(logs[-1]))
        bounded = errors / (1 + (errors / ROBUST) ** 2) ** 0.25
        return np.concatenate([root * bounded, 0.02 * (logs - first)])

    unbounded = {name: _unbounded(getattr(like, name)) for name in _numbers(like)}
    whole = replace(like, **(unbounded | {"share": dict.fromkeys(PASSES, 1.0), "tf32": 1.0}))
    found = least_squares(residuals, first, max_nfev=60, diff_step=1e-3,
                          bounds=(-np.inf, np.append(packed(whole), 0.0)))
    return replace(base, tensor=unpacked(found.x[:-1], like)), math.exp(found.x[-1])


def fit_all(samples: Sequence[Sample]) -> tuple[KernelModel, float]:
    """The numbers of float32, then of tensor cores, and the time of fused kernels."""
    base = fit([s for s in samples if s.precision == "fp32"])
    return fit_tensor([s for s in samples if s.precision != "fp32"], base)


def accuracy(logs: Floats) -> str:
    """A line on errors."""
    off = np.abs(np.exp(logs) - 1)
    return (f"{len(logs):5d} rows  accuracy {np.mean(1 - np.minimum(off, 1)):.3f}  median ratio "
            f"{np.exp(np.median(logs)):.2f}  within 20% {np.mean(off <= 0.2):.2f}  within a factor "
            f"of 2 {np.mean(np.abs(logs) <= math.log(2)):.2f}")


def leave_out(samples: Sequence[Sample], by: str) -> list[LeftOut]:
    """Predict the samples of each device or network by a fit to all others."""
    def name(sample: Sample) -> str:
        if by == "network":
            return sample.network
        return sample.device[:4] if sample.device[:4] in TOGETHER else sample.device

    found: dict[str, list[Floats]] = {}
    for left in sorted({name(sample) for sample in samples} - {""}):
        model, fused = fit_all([s for s in samples if name(s) != left])
        for kind in LABELS:
            own = [s for s in samples if name(s) == left and s.label == kind]
            if own:
                logs = Table(own).logs(model, fused)
                found.setdefault(kind, []).append(logs)
                print(f"without {by} {left:22s} {kind:5s}", accuracy(logs), flush=True)
    together = {kind: np.concatenate(parts) for kind, parts in found.items()}
    for kind, logs in together.items():
        print(f"all, each {by} left out: {kind:5s}", accuracy(logs))
    return [LeftOut.of(by, kind, logs) for kind, logs in together.items()]


def main() -> None:
    """Fit, and show what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--leave", choices=("device", "network"))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    samples = [*run_samples(), *conv_samples(), *gemm_samples()]
    gpus = [s for s in samples if s.device != "KNL-7250"]
    model, fused = fit_all(gpus)
    print(f"fused element-wise kernels take {fused:.2f} of the time; the gallery says {FUSED:.2f}")
    for kind in LABELS:
        for label, some in ("fitted", gpus), ("KNL, not fitted", [
                s for s in samples if s.device == "KNL-7250"]):
            if own := [s for s in some if s.label == kind]:
                print(f"{label:16s} {kind:5s}", accuracy(Table(own).logs(model, fused)))
    if args.leave:
        fitted = [LeftOut.of("nothing", kind, Table([s for s in gpus if s.label == kind]).logs(
            model, fused)) for kind in ("run", "amp", "tf32")]
        left_out.write([*fitted, *leave_out(gpus, args.leave)])
    if args.write:
        path = Path(kernel_model.__file__).with_suffix(".toml")
        numbers = rounded(asdict(model))
        head = "# Fitted by bench/fit_kernels.py; kernel_model.py explains them.\n"
        path.write_text(head + tomli_w.dumps(numbers), encoding="utf-8")


def rounded(value: Any) -> Any:
    """Three digits."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return float(f"{value:.3g}")


if __name__ == "__main__":
    main()
