"""Small valid files of every kind, made once: mutations start from them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.cli.main import main
from hpcpar.machine import files
from hpcpar.network import network_file
from hpcpar.network.builtin import built_in

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BATCH = {"account": "a", "partition": "p", "time": "00:10:00", "constraint": "c", "mpi": "pmi2",
         "ranks_per_node": 2, "cpus_per_rank": 1, "gpus_per_rank": 1, "modules": ["m/1"],
         "directives": ["--qos=debug"], "setup": ["true"], "launch": ["--label"]}
LENET = ["--network", "lenet5", "--input", "1x8x8", "--machine", "local"]


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Within it, the folder is the current one."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class Base:
    """Valid files in a folder.

    Attributes
    ----------
    folder : Path
        Where they are; they are never changed.
    case : Path
        The folder of a case, which is empty when it begins.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.case = folder, folder / "of" / "a" / "case"
        make, plan = self._make, ["plan", *LENET, "--batch", "16"]
        make("data", "synthetic", "data.h5", "--input", "1x8x8", "--classes", "10", "--samples",
             "32", "--test-samples", "8")
        make(*plan, "--ranks", "1", "--strategy", "data", "-o", "plan.json")
        make(*plan, "--ranks", "4", "--strategy", "grid:2x2", "-o", "plan4.json")
        own = replace(built_in("lenet5", (1, 8, 8)), name="own")
        network_file.save(own, str(folder / "net.json"))
        make("run", "--plan", "plan.json", "--data", "data.h5", "--steps", "4", "--out",
             "run.h5", "--checkpoint", "checkpoint.h5")
        make("sweep", "strong", *LENET, "--ranks", "1,2", "--batch", "16", "--strategy",
             "data", "--steps", "2", "--data", "data.h5", "--dry-run", "--out", "sweep")
        self._finish_sweep()
        files.save(files.load("local"), str(folder / "machine.toml"))
        machine = files.to_dict(files.load("p100x4x4")) | {"compute": {"x float32 1": 1e-3}}
        self.trees: dict[str, Any] = {
            "network": self.json("net.json"),
            "plan": self.json("plan.json"), "plan4": self.json("plan4.json"), "machine": machine,
            "job": BATCH, "site": {"machine": "local", "job": BATCH},
            "template": tomllib.loads(files._PRESETS.joinpath("local.toml").read_text("utf-8")),
        }
        self.onnx = _network()
        np.save(folder / "images.npy", np.arange(20 * 64, dtype="u1").reshape(20, 1, 8, 8))
        np.save(folder / "labels.npy", np.arange(20) % 4)
        np.save(folder / "targets.npy", np.linspace(0, 1, 40, dtype="f4").reshape(20, 2))
        np.savez_compressed(folder / "both.npz", images=np.load(folder / "images.npy"),
                            labels=np.load(folder / "labels.npy"))
        _pictures(folder / "pictures")
        _fields(folder)

    def _make(self, *argv: str) -> None:
        with (inside(self.folder), contextlib.redirect_stdout(io.StringIO()),
              contextlib.redirect_stderr(io.StringIO())):
            assert main(argv) == 0, f"{argv} of the base files"

    def _finish_sweep(self) -> None:
        """One case of the sweep as if it had run."""
        case = self.folder / "sweep" / "cases" / "data-p1-b16"
        shutil.copy(self.folder / "run.h5", case / "run.h5")
        (case / "exit").write_text("0\n", "ascii")
        (case / "log").write_text("hpcpar: said\n", "ascii")
        status = json.loads((case / "status.json").read_text("utf-8"))
        (case / "status.json").write_text(json.dumps(status | {"state": "done"}), "utf-8")

    def json(self, name: str) -> Any:
        """The content of a JSON file of the folder."""
        return json.loads((self.folder / name).read_text("utf-8"))

    def __getitem__(self, name: str) -> str:
        """The path of a valid file."""
        return str(self.folder / name)

    def copy(self, name: str) -> str:
        """The path of a copy in the folder of the case."""
        source, copied = self.folder / name, self.case / name
        if source.is_dir():
            shutil.copytree(source, copied)
        else:
            shutil.copy(source, copied)
        return str(copied)

    def write(self, name: str, content: str | bytes) -> str:
        """The path of a new file in the folder of the case."""
        path = self.case / name
        path.write_bytes(content if isinstance(content, bytes)
                         else content.encode("utf-8", "surrogatepass"))
        return str(path)


def _network() -> Any:
    """An ONNX model with most kinds of operators that are read."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.random(shape, np.float32), name)

    node = helper.make_node
    nodes = [
        node("Conv", ["input", "c.weight", "c.bias"], ["1"], "conv", kernel_shape=[3, 3],
             pads=[1, 1, 1, 1], strides=[1, 1], dilations=[1, 1], group=1),
        node("BatchNormalization", ["1", "s", "b", "m", "v"], ["2"], "bn", epsilon=1e-5,
             momentum=0.9),
        node("Relu", ["2"], ["3"], "relu"),
        node("MaxPool", ["3"], ["4"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Pad", ["4", "pads"], ["5"], "pad", mode="constant"),
        node("Resize", ["5", "", "scales"], ["6"], "resize", mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        node("AveragePool", ["6"], ["7"], "mean", kernel_shape=[2, 2], strides=[2, 2]),
        node("Clip", ["7", "low", "high"], ["8"], "clip"),
        node("LRN", ["8"], ["9"], "lrn", size=3, alpha=1e-4, beta=0.75, bias=1.0),
        node("Add", ["9", "5"], ["10"], "add"),
        node("Concat", ["10", "9"], ["11"], "cat", axis=1),
        node("GlobalAveragePool", ["11"], ["12"], "all"),
        node("Shape", ["12"], ["sh"], "shape"),
        node("Gather", ["sh", "zero"], ["n"], "gather", axis=0),
        node("Concat", ["n", "minus"], ["target"], "to", axis=0),
        node("Reshape", ["12", "target"], ["13"], "reshape"),
        node("Dropout", ["13"], ["14"], "drop"),
        node("Gemm", ["14", "f.weight", "f.bias"], ["15"], "fc", transB=1, alpha=1.0, beta=1.0),
        node("Softmax", ["15"], ["output"], "softmax", axis=1),
    ]
    arrays = {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "zero": [0], "minus": [-1]}
    stored = [
        weight("c.weight", 4, 1, 3, 3), weight("c.bias", 4), *(weight(n, 4) for n in "sbmv"),
        weight("f.weight", 10, 8), weight("f.bias", 10),
        *(numpy_helper.from_array(np.array(v, "i8"), n) for n, v in arrays.items()),
        numpy_helper.from_array(np.array([1, 1, 2, 2], "f4"), "scales"),
        numpy_helper.from_array(np.array(0, "f4"), "low"),
        numpy_helper.from_array(np.array(6, "f4"), "high"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "small", [value("input", 1, ["N", 1, 8, 8])],
                              [value("output", 1, ["N", 10])], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])


def _pictures(folder: Path) -> None:
    from PIL import Image

    for label in "ab":
        (folder / label).mkdir(parents=True)
        for i in range(4):
            pixels = np.full((6, 9, 3), 40 * i, "u1")
            Image.fromarray(pixels).save(folder / label / f"{i}.{('png', 'bmp', 'gif')[i % 3]}")


def _fields(folder: Path) -> None:
    """NetCDF files of versions 3 and 4, and Zarr stores of versions 2 and 3."""
    import xarray

    rng = np.random.default_rng(0)
    content = xarray.Dataset({
        "x": (("time", "lat", "lon"), rng.random((12, 5, 7)).astype("f4")),
        "y": (("time",), np.arange(12, dtype="i4") % 3),
        "name": (("time",), np.array([f"day {i}" for i in range(12)])),
    }, {"lat": np.linspace(0.0, 1.0, 5)})
    packed = {"x": {"dtype": "i2", "scale_factor": 1 / 128, "_FillValue": -1}}
    content.to_netcdf(folder / "fields.nc", engine="h5netcdf", encoding=packed)
    content.drop_vars("name").to_netcdf(folder / "fields3.nc", engine="scipy")
    content.to_zarr(folder / "fields.zarr", encoding=packed, zarr_format=3)
    content.to_zarr(folder / "fields2.zarr", encoding=packed, zarr_format=2, consolidated=True)
