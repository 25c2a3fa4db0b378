"""NetCDF files and Zarr stores: variables by name, dimensions by name, read block by block."""

from __future__ import annotations

import builtins
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.data import arrays
from hpcpar.data.arrays import ArrayOptions
from hpcpar.data.xarray_files import from_xarray
from hpcpar.errors import InputError

ALL = ArrayOptions(test_fraction=0.0)
N, HEIGHT, WIDTH = 12, 5, 7


def test_xarray_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name == "xarray":
            raise ImportError("No module named 'xarray'")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'hpcpar\[xarray\]'"):
        from_xarray(str(tmp_path / "x.h5"), "a.nc", ["x"], ["y"], ALL)


@pytest.fixture(scope="module", params=["nc", "zarr"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A real file with packed, transposed and labeled variables, and its content."""
    xarray = pytest.importorskip("xarray", reason="NetCDF and Zarr need the extra 'xarray'")
    pytest.importorskip("h5netcdf" if request.param == "nc" else "zarr",
                        reason="NetCDF and Zarr need the extra 'xarray'")
    rng = np.random.default_rng(0)
    packed = 280 + rng.integers(-900, 900, (N, HEIGHT, WIDTH)) / 128
    content = xarray.Dataset({
        "t2m": (("time", "lat", "lon"), packed),
        "u10": (("lat", "time", "lon"), rng.normal(size=(HEIGHT, N, WIDTH))),
        "ct": (("time", "lat", "lon"), rng.integers(-1000, 3000, (N, HEIGHT, WIDTH), "i2")),
        "levels": (("time", "lat", "lon", "level"), rng.normal(size=(N, HEIGHT, WIDTH, 3))),
        "gaps": (("time", "lat", "lon"), np.where(packed > 286, np.nan, packed)),
        "regime": (("time",), np.arange(N) % 3),
        "rain": (("time",), rng.normal(size=N)),
        "mask": (("time", "lon", "lat"), rng.integers(0, 2, (N, WIDTH, HEIGHT), "u1")),
        "cover": (("time", "lat", "lon"), np.where(packed > 286, np.nan, packed > 280)),
        "shifted": (("time",), np.arange(N) % 3),
        "number": ((), 3.0),
        "orography": (("lat", "lon"), rng.normal(size=(HEIGHT, WIDTH))),
    })
    content["t2m"].encoding.update(dtype="int16", scale_factor=1 / 128, add_offset=280.0)
    content["cover"].encoding.update(dtype="u1", _FillValue=255)  # where nobody knows
    content["shifted"].encoding.update(dtype="int16", add_offset=-100)
    path = tmp_path_factory.mktemp("xarray") / f"a.{request.param}"
    if request.param == "nc":
        content.to_netcdf(path, engine="h5netcdf")
    else:
        content.to_zarr(path, consolidated=False)
    return str(path), content


def values(content: Any, *names: str, dims: tuple[str, ...] = ("time", "lat", "lon")) -> Any:
    """Variables one behind the other along axis 1."""
    return np.stack([content[name].transpose(*dims).values for name in names], axis=1)


def made(tmp_path: Path, source: str, images: str, labels: str, options: ArrayOptions = ALL,
         **more: Any) -> dict[str, Any]:
    from_xarray(str(tmp_path / "d.h5"), source, images.split(","), labels.split(","), options,
                **more)
    with h5py.File(tmp_path / "d.h5") as f:
        return {name: f[name][...] for name in f} | dict(f.attrs)


def test_variables_are_channels(tmp_path: Path, source: Any,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed numbers are unpacked; dimensions in another order are turned; in several blocks."""
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 1000)
    path, content = source
    found = made(tmp_path, path, "t2m,u10", "regime")
    assert np.allclose(found["images"], values(content, "t2m", "u10"), atol=1e-5)
    assert np.array_equal(found["labels"], np.arange(N) % 3) and found["classes"] == 3
    assert found["source"].endswith(": t2m, u10, regime")
    found = made(tmp_path, path, "ct", "cover", ArrayOptions(ignore=255, test_fraction=0.0))
    cover = values(content, "cover")[:, 0]
    assert np.array_equal(found["labels"], np.where(np.isnan(cover), -1, cover))
    found = made(tmp_path, path, "ct", "mask")
    assert found["images"].dtype == np.int16 and found["mean"][0] != 0
    assert np.array_equal(found["images"], values(content, "ct"))
    assert np.array_equal(found["labels"], values(content, "mask")[:, 0])


def test_a_dimension_of_channels_and_of_samples(tmp_path: Path, source: Any) -> None:
    path, content = source
    found = made(tmp_path, path, "levels", "u10,t2m", channels="level")
    order = ("time", "level", "lat", "lon")
    assert np.allclose(found["images"], content["levels"].transpose(*order).values, atol=1e-6)
    assert np.allclose(found["targets"], values(content, "u10", "t2m"), atol=1e-5)
    found = made(tmp_path, path, "levels", "rain")  # a volume of one channel
    assert found["images"].shape == (N, 1, HEIGHT, WIDTH, 3)
    assert np.allclose(found["targets"][:, 0], content["rain"])
    found = made(tmp_path, path, "t2m", "u10", samples="lon")
    wanted = values(content, "t2m", dims=("lon", "time", "lat"))
    assert np.allclose(found["images"], wanted, atol=1e-5)


def test_only_the_samples_of_a_block_are_read(tmp_path: Path, source: Any,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    from xarray import Variable

    monkeypatch.setattr(arrays, "BLOCK_BYTES", 2 * 4 * HEIGHT * WIDTH)
    sizes, real = [], Variable.load
    monkeypatch.setattr(Variable, "load", lambda v, **more: sizes.append(v.sizes["time"])
                        or real(v, **more))
    made(tmp_path, source[0], "ct", "mask")
    assert sizes and max(sizes) <= 2


@pytest.mark.parametrize(("images", "labels", "more", "message"), [
    ("t2m,nope", "regime", {}, "has no variable 'nope'; choose --images and --labels from: "),
    ("t2m", "", {}, "has no variable"),
    ("t2m,orography", "regime", {}, r"has dimensions \('time', 'lat', 'lon'\), \('lat', 'lon'\)"),
    ("t2m", "orography", {}, r"has dimensions \('lat', 'lon'\)"),
    ("t2m", "regime", {"samples": "day"}, "'t2m' has no dimension 'day'; its dimensions are time"),
    ("t2m", "regime", {"channels": "level"}, "'t2m' has no dimension 'level'"),
    ("t2m", "regime", {"samples": "time", "channels": "time"}, "cannot count both samples and"),
    ("number", "regime", {}, "'number' is a single number; choose variables with samples"),
    ("gaps", "regime", {}, "'gaps': image 0 has NaN or infinite values"),
    ("t2m", "gaps", {}, "targets that are not finite"),
    ("regime", "regime", {}, r"give images \[N, C, H, W\]"),
])
def test_variables_that_do_not_fit_are_refused(tmp_path: Path, source: Any, images: str,
                                               labels: str, more: dict[str, Any],
                                               message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        made(tmp_path, source[0], images, labels, **more)
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("*h5*"))


def test_values_with_an_offset_are_targets(tmp_path: Path, source: Any) -> None:
    """They are stored as 100 to 102, which are not class numbers."""
    found = made(tmp_path, source[0], "ct", "shifted")
    assert np.array_equal(found["targets"][:, 0], source[1]["shifted"].values)


def test_damaged_variables_are_named(tmp_path: Path, source: Any) -> None:
    path = Path(source[0])
    if path.suffix == ".nc":
        whole = tmp_path / "a.nc"
        whole.write_bytes(path.read_bytes()[:5000])
    else:
        whole = tmp_path / "a.zarr"
        shutil.copytree(path, whole)
        for chunk in (whole / "ct").rglob("*"):
            if chunk.is_file() and not chunk.name.startswith((".z", "zarr")):
                chunk.write_bytes(b"no chunk")
    with pytest.raises(InputError, match="cannot be read") as caught:
        made(tmp_path, str(whole), "ct", "regime")
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("*h5*"))


def test_the_command_imports_variables(tmp_path: Path, source: Any,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "d.h5")
    assert main(["data", "xarray", path, source[0], "--images", "t2m,u10", "--labels", "mask",
                 "--test-fraction", "0.25"]) == 0
    assert "9 + 3 held out images 2x5x7 float32, 2 classes of pixels" in capsys.readouterr().out
    for bad in str(tmp_path / "none.nc"), __file__, str(tmp_path):
        assert main(["data", "xarray", path, bad, "--images", "t2m", "--labels", "mask"]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "cannot be read as NetCDF or Zarr" in err
