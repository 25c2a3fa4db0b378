"""Data files from folders of images."""

from __future__ import annotations

import builtins
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.cli.main import main
from hpcpar.data.image_folder import from_images
from hpcpar.errors import InputError

Image = pytest.importorskip("PIL.Image", reason="images need the extra 'images'")


def gradient(width: int, height: int) -> np.ndarray:
    """An image [H, W, 3]: red tells the column, green the row."""
    out = np.full((height, width, 3), 77, np.uint8)
    out[..., 0], out[..., 1] = np.arange(width), np.arange(height)[:, None]
    return out


def save(path: Path, pixels: np.ndarray, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of ten images, each of one brightness."""
    for label, name in enumerate(("cat", "dog")):
        for i in range(10):
            save(tmp_path / "in" / name / f"{i}.png",
                 np.full((6, 8, 3), 100 * label + i, np.uint8))
    return tmp_path / "in"


def read(path: Path, *names: str) -> list[Any]:
    with h5py.File(path) as f:
        return [f[name][...] for name in names]


def test_sorted_names_of_folders_are_the_labels(folder: Path, tmp_path: Path) -> None:
    out, told = tmp_path / "a.h5", list[tuple[int, int]]()
    assert from_images(str(out), str(folder), (3, 4, 4), 0.3,
                       progress=lambda *now: told.append(now)) == []
    images, labels, test, names = read(out, "images", "labels", "test_labels", "class_names")
    assert [n.decode() for n in names] == ["cat", "dog"] and told[-1] == (20, 20)
    assert np.bincount(labels).tolist() == [7, 7] and np.bincount(test).tolist() == [3, 3]
    assert np.array_equal(images[:, 0, 0, 0] >= 100, labels) and images.shape == (14, 3, 4, 4)
    with h5py.File(out) as f:
        assert f.attrs["classes"] == 2
        assert np.allclose(f.attrs["mean"], images.mean((0, 2, 3)))
        assert np.allclose(1 / f.attrs["scale"], images.std((0, 2, 3)))


def test_images_are_read_in_blocks(folder: Path, tmp_path: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    from_images(str(tmp_path / "a.h5"), str(folder), (3, 4, 4))
    monkeypatch.setattr("hpcpar.data.image_folder.BLOCK_BYTES", 150)
    from_images(str(tmp_path / "b.h5"), str(folder), (3, 4, 4))
    for name in ("images", "labels", "test_images", "test_labels"):
        (a,), (b,) = read(tmp_path / "a.h5", name), read(tmp_path / "b.h5", name)
        assert np.array_equal(a, b)


@pytest.mark.parametrize("held", ["val", "test"])
def test_a_held_out_folder_is_the_held_out_part(held: str, folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    folder.rename(root / "train")
    save(root / held / "dog" / "deep" / "x.JPEG", gradient(9, 9))
    save(root / "other" / "y.png", gradient(9, 9))
    from_images(str(tmp_path / "a.h5"), str(root), (3, 4, 4))
    labels, test = read(tmp_path / "a.h5", "labels", "test_labels")
    assert len(labels) == 20 and test.tolist() == [1]
    with pytest.raises(InputError, match="leave out --test-fraction"):
        from_images(str(tmp_path / "a.h5"), str(root), (3, 4, 4), 0.1)
    save(root / held / "emu" / "z.png", gradient(9, 9))
    with pytest.raises(InputError, match=r"emu is not a class of .*train"):
        from_images(str(tmp_path / "a.h5"), str(root), (3, 4, 4))


@pytest.mark.parametrize(("width", "height"), [(20, 10), (10, 20), (10, 10)])
def test_an_image_is_scaled_to_cover_and_cropped_at_the_center(
        width: int, height: int, tmp_path: Path) -> None:
    """Twice as large: each pixel is the value between two, of the middle of the image."""
    save(tmp_path / "in" / "a" / "x.png", gradient(width, height).repeat(2, 0).repeat(2, 1))
    from_images(str(tmp_path / "a.h5"), str(tmp_path / "in"), (3, 10, 10), 0.0)
    (image,), = read(tmp_path / "a.h5", "images")
    left, top = (width - 10) // 2, (height - 10) // 2
    assert abs(image[0, 4].astype(int) - np.arange(left, left + 10)).max() <= 1
    assert abs(image[1, :, 4].astype(int) - np.arange(top, top + 10)).max() <= 1
    assert np.all(image[2] == 77)


def stored(tmp_path: Path, channels: int = 3) -> np.ndarray:
    """The single image of the folder ``in``, [C, 10, 10]."""
    from_images(str(tmp_path / "a.h5"), str(tmp_path / "in"), (channels, 10, 10), 0.0)
    return np.asarray(read(tmp_path / "a.h5", "images")[0][0])


def test_every_kind_of_image_becomes_colors_or_gray(tmp_path: Path) -> None:
    pixels, place = gradient(10, 10), tmp_path / "in" / "a" / "x.png"
    colors = pixels.transpose(2, 0, 1)
    save(place, pixels)
    assert np.array_equal(stored(tmp_path), colors)
    gray = stored(tmp_path, 1)
    assert gray.shape == (1, 10, 10) and 0 < gray.min() < gray.max()
    alpha = np.dstack([pixels, np.arange(100, dtype=np.uint8).reshape(10, 10)])
    save(place, alpha)
    assert np.array_equal(stored(tmp_path), colors)
    save(place, pixels[..., 0])
    assert np.array_equal(stored(tmp_path), np.stack([pixels[..., 0]] * 3))
    palette = Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE)
    palette.save(place, transparency=bytes(range(200)))
    assert np.abs(stored(tmp_path).astype(int) - colors).max() < 9
    exif = Image.Exif()
    exif[0x0112] = 6  # held upright: to be turned clockwise by a quarter
    save(place, pixels, exif=exif)
    assert np.array_equal(stored(tmp_path), np.rot90(pixels, -1).transpose(2, 0, 1))


def test_damaged_images_are_named_or_left_out(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "cat" / "3.png").read_bytes()
    (folder / "cat" / "3.png").write_bytes(whole[: len(whole) // 2])
    (folder / "dog" / "4.png").write_bytes(b"no image")
    save(folder / "dog" / "5.png", np.arange(64, dtype=np.uint16).reshape(8, 8) * 999)
    (folder / "dog" / "notes.txt").write_text("passed over")
    out = tmp_path / "a.h5"
    with pytest.raises(InputError, match=r"cat/3\.png cannot be read.*--skip-damaged") as caught:
        from_images(str(out), str(folder), (3, 4, 4), 0.0)
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("a.h5*"))
    faults = from_images(str(out), str(folder), (3, 4, 4), 0.0, skip_damaged=True)
    assert [f.split(" ")[0][-5:] for f in faults] == ["3.png", "4.png", "5.png"]
    assert "8 bits" in faults[2]
    images, labels = read(out, "images", "labels")
    assert images[:, 0, 0, 0].tolist() == [
        i for i in (*range(10), *range(100, 110)) if i not in (3, 104, 105)]
    assert np.array_equal(images[:, 0, 0, 0] >= 100, labels)
    for path in folder.glob("*/*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(InputError, match="no image of"):
        from_images(str(out), str(folder), (3, 4, 4), skip_damaged=True)


def png_of_16_bits(kind: int, channels: int) -> bytes:
    """A PNG file of 4 x 4 pixels; Pillow writes none with colors of 16 bits."""
    def chunk(name: bytes, content: bytes) -> bytes:
        return (struct.pack(">I", len(content)) + name + content
                + struct.pack(">I", zlib.crc32(name + content)))

    rows = b"".join(b"\0" + bytes(range(8 * channels)) for _ in range(4))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 16, kind, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


@pytest.mark.parametrize(("name", "content"), [
    ("gray.png", png_of_16_bits(0, 1)), ("color.png", png_of_16_bits(2, 3)),
    ("alpha.png", png_of_16_bits(6, 4)), ("gray-alpha.png", png_of_16_bits(4, 2)),
    ("color.ppm", b"P6 4 4 65535\n" + bytes(96)), ("text.ppm", b"P3 4 4 999\n" + b"7 " * 48),
    ("two-bytes.ppm", b"P6 4 4 999\n" + bytes(96)), ("gray.pgm", b"P5 4 4 65535\n" + bytes(32)),
])
def test_16_bits_are_not_cut_to_8(folder: Path, tmp_path: Path, name: str,
                                  content: bytes) -> None:
    (folder / "cat" / name).write_bytes(content)
    with pytest.raises(InputError, match=r"more than 8 bits, .*hpcpar data numpy") as caught:
        from_images(str(tmp_path / "a.h5"), str(folder), (3, 4, 4))
    assert name in str(caught.value)
    faults = from_images(str(tmp_path / "a.h5"), str(folder), (3, 4, 4), skip_damaged=True)
    assert len(faults) == 1 and "8 bits" in faults[0]


@pytest.mark.parametrize("content", [b"P3 4 4 100\n" + b"7 " * 48, b"P6 4 4 100\n" + bytes(48),
                                     b"P2 4 4 255\n" + b"7 " * 16, b"P4 4 4\n" + bytes(4),
                                     b"P1 4 4\n" + b"0 " * 16])
def test_netpbm_of_8_bits_is_read(folder: Path, tmp_path: Path, content: bytes) -> None:
    (folder / "cat" / "new.ppm").write_bytes(content)
    assert from_images(str(tmp_path / "a.h5"), str(folder), (3, 4, 4)) == []


@pytest.mark.parametrize("suffix", ["jfif", "jpe", "tga", "pbm", "avif", "JPG", "ppm", "heic"])
def test_kinds_of_files_are_read_or_counted(folder: Path, tmp_path: Path, suffix: str) -> None:
    """A file that Pillow reads is an image; one that it cannot read, such as HEIC, is left out."""
    if suffix == "avif":
        from PIL import features
        if not features.check("avif"):
            pytest.skip("this Pillow reads no AVIF")
    path = folder / "cat" / f"new.{suffix}"
    if suffix == "heic":
        path.write_bytes(b"\0\0\0\x18ftypheic")
    else:
        image = Image.fromarray(np.full((6, 8, 3), 255, np.uint8))
        (image.convert("1") if suffix == "pbm" else image).save(path)
    faults = from_images(str(tmp_path / "a.h5"), str(folder), (3, 4, 4), 0.0, skip_damaged=True)
    images, = read(tmp_path / "a.h5", "images")
    assert len(images) == 21 - len(faults) and len(faults) == (suffix == "heic")
    assert (images.min((1, 2, 3)) > 250).sum() == (suffix != "heic")


def test_bad_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    def refused(message: str, *, of: Path = folder, shape: tuple[int, ...] = (3, 4, 4),
                fraction: float | None = None) -> None:
        with pytest.raises(InputError, match=message) as caught:
            from_images(str(tmp_path / "a.h5"), str(of), shape, fraction)
        assert "\n" not in str(caught.value)

    refused("none has no folders", of=tmp_path / "none")
    refused("has no folders", of=folder / "cat")
    refused("give 3xHxW", shape=(2, 4, 4))
    refused("give 3xHxW", shape=(3, 4, 4, 4))
    refused("held-out fraction 1.5", fraction=1.5)
    (folder / "emu").mkdir()
    refused("emu has no images")
    (folder / "emu").rmdir()
    (folder / ".cache").mkdir()
    from_images(str(tmp_path / "a.h5"), str(folder), (3, 4, 4))


def test_folders_need_pillow(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError("No module named 'PIL'")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'hpcpar\[images\]'"):
        from_images(str(tmp_path / "x.h5"), str(folder))


def test_command_says_what_it_left_out(folder: Path, tmp_path: Path,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "dog" / "4.png").write_bytes(b"no image")
    words = ["data", "images", str(tmp_path / "a.h5"), str(folder), "--input", "3x5x4"]
    assert main([*words, "--skip-damaged", "--json"]) == 0
    told = capsys.readouterr()
    assert "skipped 1 damaged images; the first" in told.err
    assert "dog/4.png cannot be read" in told.err
    info = json.loads(told.out)
    assert info["images"]["shape"][1:] == [3, 5, 4] and info["classes"] == 2
    assert info["images"]["shape"][0] + info["test_images"]["shape"][0] == 19


def test_a_narrow_image_a_pipe_and_a_large_one_are_no_trap(
        folder: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """A narrow image was scaled as a whole: 5 million pixels wide."""
    Image.new("L", (200_000, 1)).save(folder / "cat" / "wide.png")
    Image.new("1", (12_000, 12_000)).save(folder / "cat" / "large.png")
    os.mkfifo(folder / "cat" / "pipe.png")
    (folder / "cat" / "program.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n")
    faults = from_images(str(tmp_path / "a.h5"), str(folder), (3, 256, 256), 0.0,
                         skip_damaged=True)
    assert [f.split(" ")[0].rpartition("/")[2] for f in faults] == [
        "large.png", "pipe.png", "program.png"]
    assert "144,000,000 pixels" in faults[0] and "not a regular file" in faults[1]
    assert not recwarn.list
