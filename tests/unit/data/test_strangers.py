"""Data from strangers runs no code, waits for nobody, and takes a bounded amount of memory."""

from __future__ import annotations

import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.data import zarr_store
from hpcpar.data.arrays import ArrayOptions
from hpcpar.data.numpy_files import from_numpy
from hpcpar.data.xarray_files import from_xarray
from hpcpar.errors import InputError
from hpcpar.io import read_limit
from hpcpar.io.hdf5 import open_hdf5

ALL = ArrayOptions(test_fraction=0.0)
RAN: list[str] = []


class RunsCode:
    def __reduce__(self) -> Any:
        return RAN.append, ("code",)


def array(shape: list[int], dtype: str, **more: Any) -> dict[str, Any]:
    """Metadata of an array in a store of version 2, in one chunk."""
    return {"zarr_format": 2, "shape": shape, "chunks": shape, "dtype": dtype, "order": "C",
            "compressor": None, "fill_value": None, "filters": None} | more


def store(folder: Path, consolidated: bool = False, **images: Any) -> str:
    """A Zarr store of version 2 with images x and labels y."""
    listed = {".zgroup": {"zarr_format": 2}, "x/.zarray": array([4, 3, 3], "<f4") | images,
              "x/.zattrs": {"_ARRAY_DIMENSIONS": ["n", "a", "b"], "filters": "none"},
              "y/.zarray": array([4], "<i8"), "y/.zattrs": {"_ARRAY_DIMENSIONS": ["n"]}}
    files = {**listed, "x/.zarray": array([4, 3, 3], "<f4")} if consolidated else listed
    if consolidated:
        files[".zmetadata"] = {"zarr_consolidated_format": 1, "metadata": listed}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    (folder / "x" / "0.0.0").write_bytes(np.zeros((4, 3, 3), "f4").tobytes())
    (folder / "y" / "0").write_bytes(np.zeros(4, "i8").tobytes())
    return str(folder)


def import_(tmp_path: Path, source: str, **more: Any) -> None:
    pytest.importorskip("xarray", reason="NetCDF and Zarr need the extra 'xarray'")
    from_xarray(str(tmp_path / "d.h5"), source, ["x"], ["y"], ALL, **more)


@pytest.mark.parametrize("consolidated", [False, True])
def test_a_store_whose_codecs_run_code_is_refused(tmp_path: Path, consolidated: bool) -> None:
    source = store(tmp_path / "a.zarr", consolidated, filters=[{"id": "pickle"}])
    (tmp_path / "a.zarr" / "x" / "0.0.0").write_bytes(pickle.dumps(RunsCode()))
    with pytest.raises(InputError, match=r"names the codec 'pickle'.*default codecs"):
        import_(tmp_path, source)
    assert RAN == [] and not list(tmp_path.glob("*.h5*"))


def test_harmless_stores_are_read(tmp_path: Path) -> None:
    """Attributes may have the names of fields."""
    source = store(tmp_path / "a.zarr", compressor={"id": "zlib", "level": 1})
    chunk = tmp_path / "a.zarr" / "x" / "0.0.0"
    chunk.write_bytes(zlib.compress(chunk.read_bytes()))
    import_(tmp_path, source)
    with h5py.File(tmp_path / "d.h5") as f:
        assert f["images"].shape == (4, 1, 3, 3)


@pytest.mark.parametrize("metadata", [
    {"codecs": ["own"]}, {"codecs": [{"name": "numcodecs.pickle"}]},
    {"codecs": [{"name": "sharding_indexed", "configuration": {
        "codecs": [{"name": "bytes"}, {"name": "own"}]}}]},
    {"codecs": [{"name": "sharding_indexed", "configuration": {
        "index_codecs": [{"name": "own"}]}}]},
    {"consolidated_metadata": {"metadata": {"attributes": {"codecs": [{"name": "own"}]}}}},
    {"consolidated_metadata": {"metadata": {"a.zattrs": {"codecs": [{"name": "own"}]}}}},
    {"storage_transformers": [{"name": "own"}]}, {"codecs": [{"id": "bytes", "name": "own"}]},
    {"codecs": [7]}, {"compressor": {"id": "own"}}, {"filters": "own"},
])
def test_codecs_are_found_wherever_a_version_names_them(tmp_path: Path, metadata: Any) -> None:
    (tmp_path / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(InputError, match=r"zarr\.json names the codec"):
        zarr_store.local_store(str(tmp_path))


def test_only_regular_files_of_a_store_are_read(tmp_path: Path) -> None:
    source = store(tmp_path / "a.zarr")
    os.mkfifo(tmp_path / "a.zarr" / "x" / "1.0.0")
    with pytest.raises(InputError, match=r"1\.0\.0 is not a regular file"):
        import_(tmp_path, source)


def test_a_chunk_that_expands_beyond_its_size_is_refused(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_limit, "MOST_BYTES", 1 << 27)
    source = store(tmp_path / "a.zarr", compressor={"id": "zlib", "level": 1})
    (tmp_path / "a.zarr" / "x" / "0.0.0").write_bytes(zlib.compress(bytes(1 << 28)))
    with pytest.raises(InputError, match=r"reading it takes more than .* store smaller chunks"):
        import_(tmp_path, source)


def test_a_declared_chunk_is_bounded(tmp_path: Path) -> None:
    source = store(tmp_path / "a.zarr", chunks=[4, 1 << 15, 1 << 15])
    with pytest.raises(InputError, match=r"one chunk 4x32768x32768 of .*smaller chunks"):
        import_(tmp_path, source)


@pytest.mark.parametrize("dtype", ["<U6", "|S3", "<c16", "<M8[s]"])
def test_variables_without_numbers_are_refused(tmp_path: Path, dtype: str) -> None:
    source = store(tmp_path / "a.zarr", dtype=dtype, fill_value=None)
    with pytest.raises(InputError, match=r"'x'|cannot be read as") as caught:
        import_(tmp_path, source)
    assert "\n" not in str(caught.value)


def test_netcdf_with_data_in_other_files_needs_permission(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray", reason="NetCDF needs the extra 'xarray'")
    pytest.importorskip("h5netcdf", reason="NetCDF needs the extra 'xarray'")
    path = tmp_path / "a.nc"
    xarray.Dataset({"x": (("n", "a", "b"), np.zeros((4, 3, 3), "f4")),
                    "y": (("n",), np.zeros(4, "i8"))}).to_netcdf(path, engine="h5netcdf")
    (tmp_path / "secret").write_bytes(bytes(range(144)))
    with h5py.File(path, "r+") as f:
        scales = [f["x"].dims[i][0] for i in range(3)]
        del f["x"]
        f.create_dataset("x", (4, 3, 3), "f4", external=[(str(tmp_path / "secret"), 0, 144)])
        for i, scale in enumerate(scales):
            f["x"].dims[i].attach_scale(scale)
    with pytest.raises(InputError, match=r"data in other files .*--allow-external"):
        import_(tmp_path, str(path))


def test_compressed_netcdf_and_remote_names_are_no_files(tmp_path: Path) -> None:
    for name in "https://localhost:1/a.nc", "s3://bucket/a.zarr":
        with pytest.raises(InputError, match="No such file"):
            import_(tmp_path, name)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("last", [False, True])
def test_an_archive_is_read_a_block_at_a_time(
        tmp_path: Path, order: Any, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcpar.data.arrays.BLOCK_BYTES", 500)
    images = np.arange(20 * 3 * 6 * 5, dtype="i2").reshape(20, 3, 6, 5)
    given = np.moveaxis(images, 1, -1) if last else images
    np.savez_compressed(tmp_path / "a.npz", images=np.array(given, order=order),
                        labels=np.arange(20) % 4)
    from_numpy(str(tmp_path / "d.h5"), str(tmp_path / "a.npz"), options=ALL, channels_last=last)
    with h5py.File(tmp_path / "d.h5") as f:
        assert np.array_equal(f["images"], images)
        assert np.array_equal(f["labels"], np.arange(20) % 4)


def test_an_archive_may_hold_more_than_the_memory(tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((40, 1, 1024, 1024), "f4"),
                        labels=np.arange(40) % 4)
    monkeypatch.setattr(read_limit, "MOST_BYTES", 1 << 27)
    from_numpy(str(tmp_path / "d.h5"), str(tmp_path / "a.npz"), options=ALL)
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((40, 1, 1024, 1024), "f4", order="F"),
                        labels=np.arange(40) % 4)
    with pytest.raises(InputError, match=r"Fortran's order.*numpy\.ascontiguousarray"):
        from_numpy(str(tmp_path / "d.h5"), str(tmp_path / "a.npz"), options=ALL)


def test_pipes_are_not_read(tmp_path: Path) -> None:
    pipe = str(tmp_path / "x.npy")
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="not a regular file"):
        open_hdf5(pipe, "data file", "r")
    with pytest.raises(InputError, match="not a regular file"):
        from_numpy(str(tmp_path / "d.h5"), pipe, pipe)
    for words in ["compare", pipe], ["predict", "--plan", pipe], ["data", "info", pipe], [
            "data", "xarray", str(tmp_path / "d.h5"), pipe, "--images", "x", "--labels", "y"]:
        assert main(words) == 2
