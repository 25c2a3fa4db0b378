"""The published training runs and forward passes, and the assumptions about each."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.gallery.networks import NETWORKS
from hpcpar.network.graph import Network

HERE = Path(__file__).parent
#: Devices of the kernel tables under their names in the catalog.
ALIASES = {"P100": "P100-PCIE-16GB", "1080Ti": "GTX1080Ti"}
#: Year of the library behind the kernel tables, from the versions that they name.
KERNEL_YEARS = {"M40": 2016.3, "TitanX-Maxwell": 2016.3, "TitanX-Pascal": 2016.6, "P100": 2017.3,
                "1080Ti": 2017.3, "V100-SXM2-16GB": 2019.6, "MI25": 2018.0, "KNL-7250": 2017.3}
#: Year in which a version of cuDNN came out.
CUDNN_YEARS = {"2": 2015.2, "4": 2016.0, "4.0": 2016.0, "5.0": 2016.3, "5.1": 2016.6,
               "7.0": 2017.8}
#: Year for kernels without cuDNN: im2col and a product for each sample.
WITHOUT_CUDNN = 2012.0
#: Frameworks that fuse element-wise layers into fewer kernels, with Paddle's own benchmarks; XLA is
#: in the note. DLPerf's Paddle 1.8.3 does not: on one V100 in mixed precision, its times over the
#: predicted are 0.97 to 1.12 without fused layers, and 1.14 to 1.32 with them.
FUSING = re.compile(r"mxnet (ngc|1\.6\.0 \(ngc)|paddlepaddle( ngc|$)", re.IGNORECASE)
#: Input limits a run whose twin with synthetic data is this many times as fast.
INPUT_COSTS = 1.1
_DOUBTS = (
    ("suspected", "note: input suspected"), ("leave out", "note: leave out"),
    ("do not fit each other", "note: figures of the table do not fit each other"),
)
#: Words of a row and why its prediction is far off, as far as that is understood.
_REASONS = (
    ("framework", "no cuDNN", "im2col and a product for each sample are not in the model"),
    ("framework", "native", "im2col and a product for each sample are not in the model"),
    ("device", "K40c", "clock not stated; cuDNN 5.0 has no Winograd kernels for Kepler (likely)"),
    ("network", "alexnet_owt", "Fourier transforms of 5 x 5 kernels gain more in this library"),
    ("network", "unet2d", "XLA or deterministic kernels (likely)"),
    ("batch_per_device", "1.0", "host time, which differs by framework"),
    ("sync", "replicated, nccl", "NCCL 1 is taken not to run beside layers"),
)
#: Names of ``h200.csv`` and ours.
OWN_NAMES = {"alexnet": "alexnet_owt", "NVIDIA H200": "H200-SXM"}
_OTHER_LIBRARIES = ("fbfft", "neon", "Chainer")


@dataclass(frozen=True)
class Row:
    """A published training run."""

    cells: dict[str, str]

    def __getattr__(self, name: str) -> str:
        return self.cells[name]

    @property
    def graph_name(self) -> str:
        """Name of the network in `NETWORKS`: its variant."""
        if self.network == "alexnet" and "MXNet" in self.framework:
            return "alexnet_mxnet"
        return "cosmoflow_2" if "kernel 2x2x2" in self.note else self.network

    @property
    def graph(self) -> Network:
        """The network."""
        return NETWORKS[self.graph_name](tuple(map(int, self.input.split("x"))))

    @property
    def batch(self) -> float:
        """Samples of a device; below 1 where devices share one."""
        return float(self.batch_per_device)

    @property
    def iteration_s(self) -> float:
        """Measured seconds of an iteration."""
        return float(self.iteration_ms) / 1e3

    @property
    def updates(self) -> bool:
        """False for forward and backward passes alone."""
        return not self.forward_ms

    @property
    def library_year(self) -> float:
        """Year of the library of convolutions: from its version, else the row's own."""
        if "no cuDNN" in self.framework or "native" in self.framework:
            return WITHOUT_CUDNN
        version = re.search(r"cuDNN R?(\d(?:\.\d)?)", self.framework)
        if version:
            return CUDNN_YEARS[version[1]]
        if "finetuner" in self.framework or "tensorflow-1.x" in self.framework:
            return CUDNN_YEARS["5.1"]
        if "TensorFlow (2016)" in self.framework:
            return CUDNN_YEARS["4"]
        return float(self.year)

    @property
    def fuses(self) -> bool:
        """True where element-wise layers share kernels by the framework's own rules."""
        return FUSING.match(self.framework) is not None

    @property
    def xla(self) -> bool:
        """True where TensorFlow compiles its layers together."""
        tensorflow = "tensorflow" in self.framework.lower()
        return tensorflow and "XLA" in self.note + self.sync

    @property
    def fused(self) -> bool:
        """True where element-wise layers share kernels; runs in float32 do not show it."""
        return self.precision != "fp32" and (self.fuses or self.xla)

    @property
    def forward_only(self) -> bool:
        """True for rows of ``inference.csv``."""
        return "latency_ms" in self.cells

    @property
    def reason(self) -> str:
        """Why the prediction is far off, if it is."""
        return next((why for cell, words, why in _REASONS if words in self.cells[cell]),
                    "not understood")

    @property
    def doubt(self) -> str:
        """Why the row is neither fitted nor counted; empty where it is."""
        if any(name in self.framework for name in _OTHER_LIBRARIES):
            return "another library than cuDNN"
        if "MLPerf HPC" in self.source or self.id.startswith("mlperf-"):
            return "MLPerf HPC: input and staging are part of the figure"
        if "slow input on 8 GPUs" in self.note and int(self.devices) >= 8:
            return "note: slow input"
        if self.limited_by_input:
            return f"input: with synthetic data over {INPUT_COSTS - 1:.0%} faster"
        return next((why for words, why in _DOUBTS if words in self.note), "")

    @property
    def limited_by_input(self) -> bool:
        """True where the same run with synthetic data is published and clearly faster."""
        if self.cells.get("data") != "real" or self.forward_only:
            return False
        twin_s = _synthetic_s().get(self._without_data, self.iteration_s)
        return self.iteration_s > INPUT_COSTS * twin_s

    @property
    def _without_data(self) -> tuple[str, ...]:
        """The cells that two runs share if they differ in their data only."""
        return tuple(self.cells[name] for name in (
            "source", "network", "input", "precision", "framework", "device", "machine", "devices",
            "batch_per_device", "sync", "note"))


@cache
def _synthetic_s() -> dict[tuple[str, ...], float]:
    """Seconds of the runs with synthetic data."""
    return {row._without_data: row.iteration_s for row in runs() if row.data == "synthetic"}


def runs() -> Iterator[Row]:
    """All rows of ``runs.csv``, and the iterations of ``h200.csv``."""
    with (HERE / "runs.csv").open(encoding="utf-8") as file:
        yield from map(Row, csv.DictReader(file))
    yield from (Row(cells) for cells in _own() if "latency_ms" not in cells)


def _own() -> Iterator[dict[str, str]]:
    """This project's measurements of PyTorch: an iteration, and a forward pass, of each row."""
    with (HERE / "h200.csv").open(encoding="utf-8") as file:
        for cells in csv.DictReader(file):
            name = OWN_NAMES.get(cells["network"], cells["network"])
            same = {"network": name, "device": OWN_NAMES[cells["device"]], "machine": "H200",
                    "devices": "1", "batch_per_device": cells["batch"], "sync": "none",
                    "source": "bench/torch_iterations.py", "data": "synthetic", "year": "2026",
                    "forward_ms": "", "note": ""}
            for field in "iteration_ms", "forward_only_ms":
                id_ = f"h200-{name}-{cells['precision']}-{cells['batch']}-{field[:-3]}"
                more = {} if field == "iteration_ms" else {"latency_ms": cells[field]}
                yield cells | same | more | {"id": id_, "iteration_ms": cells[field]}


def forward_passes() -> Iterator[Row]:
    """All rows of ``inference.csv``, as rows of one device, and the passes of ``h200.csv``."""
    yield from (Row(cells) for cells in _own() if "latency_ms" in cells)
    with (HERE / "inference.csv").open(encoding="utf-8") as file:
        for cells in csv.DictReader(file):
            iteration_ms = 1e3 * int(cells["batch"]) / float(cells["images_per_s"])
            yield Row(cells | {"devices": "1", "batch_per_device": cells["batch"], "sync": "none",
                               "forward_ms": "", "iteration_ms": f"{iteration_ms:.6g}"})


def read(name: str) -> Iterator[dict[str, str]]:
    """The float32 rows of a kernel table on devices whose library is known."""
    with (HERE / name).open(encoding="utf-8") as file:
        for cells in csv.DictReader(file):
            if cells["precision"] == "fp32" and cells["device"] in KERNEL_YEARS:
                yield cells
