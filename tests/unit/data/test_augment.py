"""Random crops and flips: the parts of all ranks come from one crop, drawn from seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.data import loader as loaders
from hpcpar.data.augment import Augmentation, Crops
from hpcpar.data.loader import Loader
from hpcpar.errors import InputError
from hpcpar.plan.boxes import Box, block

CROP, FLIP = Augmentation.CROP, Augmentation.FLIP
STORED, SHAPE, SAMPLES = (2, 9, 8), (2, 6, 5), 17


@pytest.fixture(autouse=True, scope="module", params=[0, loaders.RESIDENT_BYTES],
                ids=["streamed", "resident"])
def resident_bytes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test with images read per batch, and with resident images."""
    usual, loaders.RESIDENT_BYTES = loaders.RESIDENT_BYTES, request.param
    yield
    loaders.RESIDENT_BYTES = usual


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Images whose every pixel is unique."""
    pixels = np.arange(2 * SAMPLES * np.prod(STORED), dtype="f4").reshape(-1, *STORED)
    with h5py.File(tmp_path_factory.mktemp("data") / "d.h5", "w") as f:
        for prefix, part in ("", pixels[:SAMPLES]), ("test_", pixels[SAMPLES:]):
            f[f"{prefix}images"], f[f"{prefix}labels"] = part, np.zeros(SAMPLES, int)
        return str(f.filename)


def whole(batch: int) -> Box:
    return tuple((0, e) for e in (batch, *SHAPE))


def found(image: np.ndarray, stored: np.ndarray) -> tuple[int, int, bool]:
    """Position and flip of a crop, by its first pixel; the rest is checked."""
    flip = bool(image[0, 0, 0] > image[0, 0, 1])
    straight = image[..., ::-1] if flip else image
    y, x = np.argwhere(stored[0] == straight[0, 0, 0])[0].tolist()
    assert np.array_equal(straight, stored[:, y : y + SHAPE[1], x : x + SHAPE[2]])
    return y, x, flip


@pytest.mark.parametrize("augment", [(CROP,), (CROP, FLIP)])
def test_crops_and_flips_are_drawn_anew_in_every_epoch(path: str,
                                                       augment: tuple[Augmentation, ...]) -> None:
    with h5py.File(path) as f:
        stored = f["images"][...]
    seen = list[list[tuple[int, int, bool]]]()
    with Loader(path, whole(1), (0, 1), 1, seed=3, shape=SHAPE, augment=augment) as loader:
        for epoch in range(12):
            order = loader.order(epoch)
            drawn = dict[int, tuple[int, int, bool]]()
            for i, sample in enumerate(order.tolist()):
                drawn[sample] = found(loader.batch(epoch, i)[0][0], stored[sample])
            seen.append([drawn[sample] for sample in range(SAMPLES)])
    every = [one for epoch in seen for one in epoch]
    assert {y for y, _, _ in every} == {x for _, x, _ in every} == set(range(4))
    flips = np.mean([flip for _, _, flip in every])
    assert 0.35 < flips < 0.65 if FLIP in augment else flips == 0
    assert seen[0] != seen[1]


@settings(max_examples=30)
@given(h=st.integers(1, 6), w=st.integers(1, 5), n=st.integers(1, 3), c=st.integers(1, 2),
       epoch=st.integers(0, 3), seed=st.integers(-1, 3), shuffle=st.booleans(),
       augment=st.sampled_from([(CROP,), (CROP, FLIP), (FLIP, CROP)]))
def test_parts_make_the_crop(path: str, h: int, w: int, n: int, c: int, epoch: int, seed: int,
                             shuffle: bool, augment: tuple[Augmentation, ...]) -> None:
    """Uneven parts too, and in another order of the samples."""
    batch = 5
    with Loader(path, whole(batch), (0, batch), batch, "float64", seed, shuffle, shape=SHAPE,
                augment=augment) as one:
        expected = one.batch(epoch, 1)[0]
    made = np.full((batch, *SHAPE), np.nan)
    for at in np.ndindex(n, c, h, w):
        box = tuple(block(e, parts, i)
                    for e, parts, i in zip((batch, *SHAPE), (n, c, h, w), at, strict=True))
        with Loader(path, box, box[0], batch, "float64", seed, shuffle, shape=SHAPE,
                    augment=augment) as loader:
            made[tuple(slice(*ends) for ends in box)] = loader.batch(epoch, 1)[0]
    assert np.array_equal(made, expected)


@pytest.mark.parametrize("split", ["test", "all"])
def test_evaluation_takes_the_center(split: str, path: str) -> None:
    with h5py.File(path) as f:
        stored = f["test_images" if split == "test" else "images"][...]
    with Loader(path, whole(4), (0, 4), 4, split=split, shape=SHAPE,
                augment=(CROP, FLIP)) as loader:
        images = loader.batch(0, 1)[0]
    assert np.array_equal(images, stored[4:8, :, 1:7, 1:6])


def test_flips_need_no_larger_images(path: str) -> None:
    with Loader(path, tuple((0, e) for e in (SAMPLES, *STORED)), (0, SAMPLES), SAMPLES,
                shuffle=False, shape=STORED, augment=(FLIP,)) as loader:
        images = loader.batch(0, 0)[0]
    with h5py.File(path) as f:
        stored = f["images"][...]
    flipped = [not np.array_equal(a, b) for a, b in zip(images, stored, strict=True)]
    assert 0 < sum(flipped) < SAMPLES
    assert np.array_equal(images[flipped], stored[flipped][..., ::-1])


def test_volumes_are_cropped_along_every_axis() -> None:
    crops = Crops((9, 9, 9), (2, 4, 9), (CROP, FLIP), 0, 500)
    drawn = crops.draw(1)
    assert drawn.min(0).tolist() == [0, 0, 0, 0] and drawn.max(0).tolist() == [7, 5, 0, 1]
    box = ((0, 1), (1, 3), (2, 5))
    assert crops.window(box) == ((0, 8), (1, 8), (0, 9))
    window = np.arange(729).reshape(9, 9, 9)[0:8, 1:8]
    expected = np.arange(729).reshape(9, 9, 9)[7:8, 6:8, 4:7]
    assert np.array_equal(crops.cut(window, box, np.array([7, 5, 0, 1])), expected[..., ::-1])


@pytest.mark.parametrize("targets", [False, True])
def test_labels_and_targets_of_pixels_follow_the_images(targets: bool, tmp_path: Path) -> None:
    """On ranks with other parts of them than of the images."""
    pixels = np.random.default_rng(0).integers(0, 99, (SAMPLES, *STORED)).astype("f4")
    with h5py.File(tmp_path / "p.h5", "w") as f:
        f["images"] = pixels
        f["targets" if targets else "labels"] = pixels if targets else pixels[:, 1].astype(int)
    batch = (0, SAMPLES)
    box = (batch, (0, 2), (2, 6), (1, 4))
    truth = (batch, *([(1, 2)] if targets else []), (0, 3), (0, 5))
    with Loader(str(tmp_path / "p.h5"), tuple((0, e) for e in (SAMPLES, *SHAPE)), truth, SAMPLES,
                shape=SHAPE, augment=(CROP, FLIP)) as loader:
        images, known = loader.batch(2, 0)
    assert np.array_equal(known.reshape(SAMPLES, 3, 5), images[:, 1, 0:3])
    with Loader(str(tmp_path / "p.h5"), box, truth, SAMPLES, shape=SHAPE,
                augment=(CROP, FLIP)) as loader:
        assert np.array_equal(loader.batch(2, 0)[0], images[:, :, 2:6, 1:4])


@pytest.mark.parametrize(("shape", "augment", "message"), [
    (SHAPE, (FLIP,), "crop them with --augment crop"),
    ((2, 10, 8), (CROP,), r"the network takes 2x10x8; make other data, or plan with --input 2x9x8"),
    ((1, 6, 5), (CROP,), "the network takes 1x6x5"),
    (STORED, (CROP,), "there is nothing to crop"),
])
def test_images_that_cannot_be_cropped_are_refused(shape: tuple[int, ...],
                                                   augment: tuple[Augmentation, ...], message: str,
                                                   path: str) -> None:
    box = tuple((0, e) for e in (2, *shape))
    with pytest.raises(InputError, match=message):
        Loader(path, box, (0, 2), 2, shape=shape, augment=augment)
