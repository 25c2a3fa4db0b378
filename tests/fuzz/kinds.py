"""The kinds of cases: each makes mutated files, and command lines that read them."""

from __future__ import annotations

import contextlib
import gzip
import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import tomli_w

from tests.fuzz.base import LENET, Base
from tests.fuzz.damage import damage_hdf5, damage_onnx, damaged, replace_file
from tests.fuzz.options import odd_options
from tests.fuzz.trees import deepened, json_text, mutated


@dataclass(frozen=True)
class Case:
    """A command on mutated files.

    Attributes
    ----------
    child : bool
        Whether a library may crash or hang: the command is run by a child process.
    config : str
        The file of site defaults.
    """

    argv: list[str]
    child: bool = False
    config: str = ""


def _json(rng: Random, tree: Any) -> str | bytes:
    """A mutated tree as JSON; now and then the damaged bytes of the whole one."""
    if rng.random() < 0.1:
        return damaged(rng, json.dumps(tree).encode())
    return json_text(mutated(rng, tree))


def _toml(rng: Random, tree: dict[str, Any]) -> str | bytes:
    """A mutated tree as TOML, where TOML can say it."""
    if rng.random() < 0.1:
        return damaged(rng, tomli_w.dumps(tree).encode())
    while True:
        try:
            return deepened(tomli_w.dumps(mutated(rng, tree)))
        except (TypeError, ValueError, AttributeError, RecursionError):
            continue


def plan(rng: Random, base: Base) -> Case:
    """A plan file."""
    one = rng.random() < 0.6
    path = base.write("plan.json", _json(rng, base.trees["plan" if one else "plan4"]))
    given = ["--plan", path]
    return Case(rng.choice((
        ["predict", *given, "--json"], ["predict", *given], ["trace", *given, "-o", "t.json"],
        ["run", *given, "--data", base["data.h5"], "--steps", "1", "--json"],
        ["verify", *given, "--steps", "1", "--json"])))


def network(rng: Random, base: Base) -> Case:
    """A network file."""
    path = base.write("net.json", _json(rng, base.trees["network"]))
    small = ["--network", path, "--ranks", "2", "--batch", "16", "--machine", "local"]
    return Case(rng.choice((["networks", path], ["networks", path, "-o", "again.json"],
                            ["plan", *small, "--strategy", "data"], ["predict", *small, "--json"])))


def machine(rng: Random, base: Base) -> Case:
    """A machine file."""
    tree = base.trees[rng.choice(("machine", "machine", "template"))]
    path = base.write("machine.toml", _toml(rng, tree))
    small = ["--network", "lenet5", "--batch", "16", "--ranks", "4", "--machine", path]
    return Case(rng.choice((
        ["machines", path, "--json"], ["machines", path], ["predict", *small, "--json"],
        ["predict", *small, "--strategy", "data,grid:2x2", "--explain"],
        ["plan", *small, "--strategy", "grid:2x2", "--json"],
        ["calibrate", "--refine", base["run.h5"], "-o", path])))


def site(rng: Random, base: Base) -> Case:
    """Site defaults."""
    path = base.write("site.toml", _toml(rng, base.trees["site"]))
    words = ["--network", "lenet5", "--batch", "16", "--ranks", "4"]
    sweep = ["sweep", "strong", *words, "--strategy", "data", "--data", base["data.h5"],
             "--out", "s", "--dry-run"]
    return Case(rng.choice((["predict", *words, "--json"], sweep,
                            [*sweep, "--launcher", "slurm"])), config=path)


def job(rng: Random, base: Base) -> Case:
    """A file of options of batch jobs."""
    path = base.write("job.toml", _toml(rng, base.trees["job"]))
    return Case(["sweep", "strong", *LENET, "--batch", "16", "--ranks", "2", "--strategy",
                 "data", "--data", base["data.h5"], "--dry-run", "--launcher", "slurm", "--out",
                 "s", "--job-file", path, *["--json"] * rng.randrange(2)])


def onnx(rng: Random, base: Base) -> Case:
    """An ONNX model: its fields, or its bytes."""
    model = type(base.onnx)()
    model.CopyFrom(base.onnx)
    if rng.random() < 0.2:
        content = damaged(rng, model.SerializeToString())
    else:
        damage_onnx(rng, model)
        content = model.SerializeToString()
    path = base.write("small.onnx", content)
    if rng.random() < 0.7:
        return Case(["networks", path, *["--json"] * rng.randrange(2)])
    return Case(["predict", "--network", path, "--batch", "4", "--ranks", "2", "--machine",
                 "local", "--json"])


def _hdf5(rng: Random, base: Base, name: str) -> tuple[str, bool]:
    """A damaged HDF5 file, and whether its bytes are."""
    path = base.copy(name)
    if rng.random() < 0.3:
        with open(path, "rb") as f:
            content = damaged(rng, f.read())
        return base.write(name, content), True

    def change(text: bytes) -> str:
        try:
            found = _json(rng, json.loads(text))
        except (ValueError, RecursionError):  # it is damaged already
            found = damaged(rng, text)
        return found if isinstance(found, str) else found.decode("latin1").replace("\0", "0")

    damage_hdf5(rng, path, change)
    return path, False


def data(rng: Random, base: Base) -> Case:
    """A data file."""
    path, bytes_ = _hdf5(rng, base, "data.h5")
    run = ["run", "--plan", base["plan.json"], "--data", path, "--json"]
    return Case(rng.choice((["data", "info", path, "--json"], ["data", "info", path],
                            [*run, "--steps", "2"], [*run, "--forward-only"])), bytes_)


def checkpoint(rng: Random, base: Base) -> Case:
    """A checkpoint."""
    path, bytes_ = _hdf5(rng, base, "checkpoint.h5")
    run = ["run", "--plan", base["plan.json"], "--data", base["data.h5"], "--resume", path,
           "--json"]
    return Case([*run, *rng.choice((["--steps", "6"], ["--forward-only"]))], bytes_)


def record(rng: Random, base: Base) -> Case:
    """The record of a run."""
    path, bytes_ = _hdf5(rng, base, "run.h5")
    return Case(rng.choice((
        ["compare", path, "--json"], ["compare", path, "--all"], ["trace", path, "-o", "t.json"],
        ["calibrate", "--refine", path, "-o", base.copy("machine.toml"), "--json"])), bytes_)


def sweep(rng: Random, base: Base) -> Case:
    """The folder of a sweep."""
    folder = base.copy("sweep")
    case = "sweep/cases/data-p1-b16/"
    name = rng.choice(("sweep/study.json", case + "status.json", case + "prediction.json",
                       case + "plan.json", case + "log", case + "exit"))
    path = base.case / name
    if rng.random() < 0.1:
        path.unlink()
        replace_file(rng, path)
    elif name.endswith(".json"):
        base.write(name, _json(rng, json.loads(path.read_text("utf-8"))))
    else:
        text = rng.choice((b"", b"x", b"1e400", b"\xff\n", b"9" * 5000, b"-1", b"\x1b[2J", b"nan"))
        base.write(name, text)
    again = ["sweep", "strong", *LENET, "--ranks", "1,2", "--batch", "16", "--strategy", "data",
             "--steps", "2", "--data", base["data.h5"], "--dry-run", "--out", folder]
    return Case([*rng.choice((["sweep", "report", folder], again)), *["--json"] * rng.randrange(2)])


def arrays(rng: Random, base: Base) -> Case:
    """NumPy files."""
    images, truth = base["images.npy"], base[rng.choice(("labels.npy", "targets.npy"))]
    name = rng.choice(("images.npy", "labels.npy"))
    import io

    import numpy as np

    if rng.random() < 0.5:
        with open(base[name], "rb") as f:
            content = damaged(rng, f.read(200)) + f.read()
    else:
        kind = rng.choice(("u1", "f2", "f4", "f8", "i8", "c16", "?", "S3", "M8[s]", "i1,f4"))
        shape = rng.choice(((), (0,), (20,), (20, 8, 8), (20, 1, 8, 8), (20, 8, 8, 3),
                            (20, 0, 8, 8), (20, 2), (20, 1), (0, 1, 8, 8), (20, 1, 2, 3, 4, 5)))
        array = np.zeros(shape, kind)
        if array.dtype.kind in "fi" and array.size:
            array.reshape(-1)[0] = rng.choice((0, -1, 100)) if kind == "i8" else rng.choice(
                (1, -1)) if array.dtype.kind == "i" else rng.choice((np.nan, np.inf, -1, 1e4))
        stream = io.BytesIO()
        np.save(stream, array)
        content = stream.getvalue()
    changed = base.write(name, content)
    images, truth = (changed, truth) if name == "images.npy" else (images, changed)
    return Case(["data", "numpy", "d.h5", images, truth, "--json"])


def archive(rng: Random, base: Base) -> Case:
    """A .npz file: its bytes, the bytes of a member, or what the member's header says."""
    path = base.copy("both.npz")
    if rng.random() < 0.4:
        with open(path, "rb") as f:
            content = damaged(rng, f.read())
        base.write("both.npz", content)
    else:
        with zipfile.ZipFile(path) as f:
            members = {name: f.read(name) for name in f.namelist()}
        name = rng.choice(sorted(members))
        if rng.random() < 0.5:
            members[name] = damaged(rng, members[name][:128]) + members[name][128:]
        else:
            shape = rng.choice(("(1099511627776, 1, 8, 8)", "(20, 1, 99999, 99999)", "(20,)", "()",
                                "(-1, 8, 8)", "(4294967296,)", "(20, 1, 8, 8)", "(0, 1, 8, 8)"))
            kind = rng.choice(("|u1", "<f4", "<i8", "|O", "<c16", "<U9", "|S0", "|V4", "<M8[s]"))
            header = f"{{'descr': '{kind}', 'fortran_order': {rng.random() < 0.3}, 'shape': "
            header = f"{header}{shape}, }}".ljust(117) + "\n"
            content = rng.choice((members[name][128:], bytes(rng.choice((0, 1 << 20, 1 << 26)))))
            members[name] = b"\x93NUMPY\x01\x00v\x00" + header.encode() + content
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as f:
            for name, content in members.items():
                f.writestr(name, content)
    return Case(["data", "numpy", "d.h5", path, "--json"])


_XARRAY = ["--images", "x", "--labels", "y", "--json"]


def netcdf(rng: Random, base: Base) -> Case:
    """A NetCDF file of version 3 or 4."""
    if rng.random() < 0.4:
        with open(base["fields3.nc"], "rb") as f:
            path = base.write("fields3.nc", damaged(rng, f.read()))
    else:
        path = _hdf5(rng, base, "fields.nc")[0]
        if rng.random() < 0.4:
            return Case(["data", "hdf5", "d.h5", path, *_XARRAY], child=True)
    return Case(["data", "xarray", "d.h5", path, *_XARRAY], child=True)


def zarr(rng: Random, base: Base) -> Case:
    """A Zarr store of version 2 or 3: its metadata, its chunks, or what stands in their place."""
    name = rng.choice(("fields.zarr", "fields2.zarr"))
    folder = base.copy(name)
    files = sorted(p for p in (base.case / name).rglob("*") if p.is_file())
    described = [p for p in files if p.name.startswith((".z", "zarr"))]
    for _ in range(rng.choice((1, 1, 2))):
        path = rng.choice(described if rng.random() < 0.7 else files)
        if rng.random() < 0.1:
            path.unlink(missing_ok=True)
            replace_file(rng, path)
        elif path.is_file():
            with contextlib.suppress(ValueError, RecursionError):  # it is damaged already
                if path in described and rng.random() < 0.8:
                    base.write(str(path), _json(rng, json.loads(path.read_bytes())))
                    continue
            path.write_bytes(rng.choice((damaged(rng, path.read_bytes()), zlib.compress(
                bytes(1 << 26)), gzip.compress(bytes(1 << 26)))))
    return Case(["data", "xarray", "d.h5", folder, *_XARRAY], child=True)


def trace(rng: Random, base: Base) -> Case:
    """A record from which a trace is made, or programs for simulators."""
    path, bytes_ = _hdf5(rng, base, "run.h5")
    return Case(["trace", path, "-o", "t.json", *["--json"] * rng.randrange(2)], bytes_)


def special(rng: Random, base: Base) -> Case:
    """Something else in place of a file: a pipe, a socket, a device, a folder, a dangling link."""
    path = base.case / rng.choice(("x", "x.json", "x.onnx"))
    replace_file(rng, path)
    named, plan = str(path), base["plan.json"]
    small = ["--batch", "16", "--ranks", "2"]
    return Case(rng.choice((
        ["predict", "--plan", named], ["run", "--plan", plan, "--data", named, "--steps", "1"],
        ["run", "--plan", plan, "--data", base["data.h5"], "--resume", named, "--steps", "9"],
        ["compare", named], ["trace", named, "-o", "t.json"], ["data", "info", named],
        ["machines", named], ["networks", named],
        ["predict", "--network", "lenet5", *small, "--machine", named],
        ["data", "numpy", "d.h5", named, base["labels.npy"]],
        ["data", "numpy", "d.h5", base["images.npy"], named], ["data", "numpy", "d.h5", named],
        ["data", "xarray", "d.h5", named, *_XARRAY], ["data", "images", "d.h5", named],
        ["data", "hdf5", "d.h5", named], ["data", "masks", "d.h5", named, named],
        ["sweep", "report", named])), child=True)


def pictures(rng: Random, base: Base) -> Case:
    """A folder of images."""
    folder = base.copy("pictures")
    for _ in range(rng.choice((1, 2))):
        path = rng.choice(sorted(p for p in (base.case / "pictures").rglob("*.*") if p.is_file()))
        if rng.random() < 0.8:
            path.write_bytes(damaged(rng, path.read_bytes()))
        else:
            path.unlink()
            replace_file(rng, path)
    return Case(["data", "images", "d.h5", folder, "--input", "3x8x8", "--json",
                 *["--skip-damaged"] * rng.randrange(2)])


def options(rng: Random, base: Base) -> Case:
    """Options of any command."""
    return Case(odd_options(rng, base))


#: Every kind; options, which reach all commands, come up most.
KINDS: dict[str, Callable[[Random, Base], Case]] = {
    f.__name__: f for f in (plan, network, machine, site, job, onnx, data, checkpoint, record,
                            trace, sweep, arrays, archive, netcdf, zarr, pictures, special,
                            options)}
ROTATION = (*KINDS, "options", "options", "plan", "machine", "onnx", "record")
