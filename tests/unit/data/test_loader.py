"""Loader: the parts of all ranks make up the batch in every plan."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.data import loader as loaders
from hpcpar.data.loader import NO_LABEL, NO_TARGET, Loader
from hpcpar.data.prefetch import prefetch
from hpcpar.errors import InputError
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Conv2d,
    Flatten,
    Input,
    Linear,
    MeanSquaredError,
    SoftmaxCrossEntropy,
)
from hpcpar.plan.boxes import Box, block
from hpcpar.plan.config import Config
from hpcpar.plan.layout import owned

SHAPE = (3, 7, 5)
SAMPLES, TEST_SAMPLES, CLASSES = 23, 11, 4
MEAN, SCALE = np.array([100.0, 120.0, 90.0]), np.array([0.02, 0.01, 0.03])
NETWORK = Network(
    "tiny",
    (Input("input", (), SHAPE), Conv2d("conv", ("input",), 2, (3, 3), padding=(1, 1)),
     Flatten("flat", ("conv",)), Linear("fc", ("flat",), CLASSES),
     SoftmaxCrossEntropy("loss", ("fc",))),
)


@pytest.fixture(autouse=True, scope="module", params=[0, loaders.RESIDENT_BYTES],
                ids=["streamed", "resident"])
def resident_bytes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test with images read per batch, and with resident images."""
    usual, loaders.RESIDENT_BYTES = loaders.RESIDENT_BYTES, request.param
    yield
    loaders.RESIDENT_BYTES = usual


def whole(batch: int) -> Box:
    return tuple((0, e) for e in (batch, *SHAPE))


def make(path: Path, **changes: Any) -> str:
    """A small data file; `changes` replace datasets (None leaves them out)."""
    rng = np.random.default_rng(5)
    content: dict[str, Any] = {
        "images": rng.integers(0, 256, (SAMPLES, *SHAPE), dtype=np.uint8),
        "labels": rng.integers(0, CLASSES, SAMPLES),
        "test_images": rng.integers(0, 256, (TEST_SAMPLES, *SHAPE), dtype=np.uint8),
        "test_labels": rng.integers(0, CLASSES, TEST_SAMPLES),
    }
    with h5py.File(path, "w") as f:
        for name, value in {**content, **changes}.items():
            if value is not None:
                f[name] = value
        f.attrs.update(mean=MEAN, scale=SCALE, classes=CLASSES)
    return str(path)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make(tmp_path_factory.mktemp("data") / "d.h5")


def normalized(loader: Loader, images: np.ndarray) -> np.ndarray:
    """The images as the network takes them."""
    out = np.empty(images.shape, loader.dtype)
    NumpyBackend().normalize(images, loader.mean, loader.scale, out)
    return out


def expected(path: str, chosen: np.ndarray, dtype: str = "float64",
             prefix: str = "") -> tuple[np.ndarray, np.ndarray]:
    with h5py.File(path) as f:
        x = f[prefix + "images"][...][chosen].astype(dtype)
        return (x - MEAN.astype(dtype)[:, None, None]) * SCALE.astype(dtype)[:, None, None], f[
            prefix + "labels"][...][chosen]


degree = st.integers(1, 4)
#: Parts along each of five axes: few, to open some hundred files instead of a thousand.
few = st.integers(1, 3)


@settings(max_examples=25)
@given(config=st.builds(Config, n=degree, c=degree, h=degree, w=degree, replicas=st.integers(1, 2)),
       batch=st.integers(1, 9),
       epoch=st.integers(0, 3), seed=st.integers(0, 5),
       dtype=st.sampled_from(["float32", "float64"]),
       split=st.sampled_from(["train", "test"]))
def test_parts_make_the_batch(path: str, config: Config, batch: int, epoch: int, seed: int,
                              dtype: str, split: str) -> None:
    layout = owned(NETWORK, NETWORK.layers[0], config, batch)
    with Loader(path, whole(batch), (0, batch), batch, dtype, seed, split=split) as one:
        order = one.order(epoch)
        assert np.array_equal(np.sort(order),
                              np.arange(SAMPLES if split == "train" else TEST_SAMPLES))
        index = one.batches_per_epoch - 1
        chosen = order[index * batch : (index + 1) * batch]
        want, labels = expected(path, chosen, dtype, "test_" if split == "test" else "")
    made, marks = np.full((batch, *SHAPE), np.nan, dtype), np.full(batch, -7)
    padded = np.full(made.shape, np.nan)
    # ranks with the same part are equal
    for box in sorted({layout.box(rank) for rank in range(config.ranks)}):
        with Loader(path, box, box[0], batch, dtype, seed, split=split, shape=SHAPE,
                    classes=CLASSES) as loader:
            stored, y = loader.batch(epoch, index)
            x = normalized(loader, stored)
        assert stored.dtype == np.uint8 and x.dtype == dtype and y.dtype == np.int64
        assert x.shape == stored.shape == tuple(b - a for a, b in box)
        padded[tuple(slice(*b) for b in box)] = stored
        made[tuple(slice(*b) for b in box)] = x
        marks[slice(*box[0])] = y
    assert np.array_equal(made[: len(chosen)], want) and np.array_equal(
        marks[: len(chosen)], labels)
    assert not padded[len(chosen) :].any() and np.all(marks[len(chosen) :] == NO_LABEL)


VOLUME, OUTPUTS = (2, 6, 5, 4), 3


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(2)
    with h5py.File(tmp_path_factory.mktemp("data") / "v.h5", "w") as f:
        for prefix, count in ("", SAMPLES), ("test_", TEST_SAMPLES):
            f[f"{prefix}images"] = rng.normal(size=(count, *VOLUME)).astype("f4")
            f[f"{prefix}targets"] = rng.normal(size=(count, OUTPUTS)).astype("f4")
        f.attrs.update(mean=[0.5, -1.0], scale=[2.0, 3.0])
        return str(f.filename)


@settings(max_examples=25)
@given(config=st.builds(Config, n=few, c=few, d=few, h=few, w=few, first=st.integers(0, 2)),
       batch=st.integers(1, 9),
       split=st.sampled_from(["train", "test"]))
def test_parts_of_volumes_and_targets(volumes: str, config: Config, batch: int, split: str) -> None:
    """The same for volumes and targets; ranks without layers have empty boxes."""
    net = Network(
        "v",
        (Input("input", (), VOLUME), Flatten("flat", ("input",)), Linear("fc", ("flat",), OUTPUTS),
         MeanSquaredError("loss", ("fc",))),
    )
    images, targets = (owned(net, layer, config, batch)
                       for layer in (net.layers[0], net.layers[-1]))
    made, wanted = np.full((batch, *VOLUME), np.inf), np.full((batch, OUTPUTS), np.inf)
    padded = np.full(made.shape, np.inf)
    order: Any = None
    parts = {(images.box(rank), targets.box(rank), rank >= config.first)
             for rank in range(config.first + config.ranks)}
    for box, goal, lives in sorted(parts):
        with Loader(volumes, box, goal, batch, "float64", 1, split=split, shape=VOLUME,
                    classes=OUTPUTS) as loader:
            index = loader.batches_per_epoch - 1
            stored, y = loader.batch(2, index)
            x = normalized(loader, stored)
            assert order is None or np.array_equal(loader.order(2), order)
            order = loader.order(2)
        assert x.dtype == y.dtype == np.float64
        assert x.shape == tuple(b - a for a, b in box) and y.shape == tuple(b - a for a, b in goal)
        assert lives or x.size == y.size == 0
        made[tuple(slice(*b) for b in box)], wanted[tuple(slice(*b) for b in goal)] = x, y
        padded[tuple(slice(*b) for b in box)] = stored
    chosen, prefix = order[index * batch :][:batch], "test_" if split == "test" else ""
    padding = padded[len(chosen):]
    with h5py.File(volumes) as f:
        shape = (2, 1, 1, 1)
        x = (f[f"{prefix}images"][...][chosen].astype(float)
             - f.attrs["mean"].reshape(shape)) * f.attrs["scale"].reshape(shape)
        assert np.array_equal(made[: len(chosen)], x) and not padding.any()
        assert np.array_equal(wanted[: len(chosen)], f[f"{prefix}targets"][...][chosen])
    assert np.isnan(NO_TARGET) and np.isnan(wanted[len(chosen) :]).all()


def test_a_rank_reads_some_rows_of_a_batch(path: str) -> None:
    """Non-contiguous rows (some of each micro-batch), also beyond a partial test batch."""
    box, rows = ((0, 0), (1, 3), (2, 6), (0, 5)), np.array([0, 3, 4, 7])
    with Loader(path, whole(8), (0, 8), 8) as one, Loader(path, box, (0, 8), 8, rows=rows) as some:
        for index in range(one.batches_per_epoch):
            assert np.array_equal(some.batch(1, index)[0],
                                  one.batch(1, index)[0][rows][:, 1:3, 2:6])
    with (Loader(path, whole(8), (0, 8), 8, split="test") as one,
          Loader(path, box, (0, 0), 8, split="test", rows=rows) as some):
        images, labels = some.batch(0, 1)
        assert np.array_equal(images,
                              one.batch(0, 1)[0][rows][:, 1:3,
                                                       2:6]) and not images[1:].any() and len(
            labels) == 0
    with pytest.raises(InputError, match="exceeds; plan with"):
        Loader(path, box, (0, 8), 7, rows=rows)


@pytest.mark.parametrize("box",
                         [((0, 0),) * 4, ((0, 4), (0, 3), (7, 7), (0, 5)),
                          ((0, 4), (3, 3), (0, 7), (0, 5))])
def test_an_empty_box_reads_nothing_and_finds_the_same_faults(path: str, tmp_path: Path,
                                                              box: Box) -> None:
    with Loader(path, box, (0, 0), 4) as loader, Loader(path, whole(4), (0, 4), 4) as other:
        assert loader.batches_per_epoch == other.batches_per_epoch and np.array_equal(
            loader.order(1), other.order(1))
        with closing(prefetch(loader, np.copy, count=9)) as batches:
            assert all(b.images.shape == tuple(stop - start for start, stop in box)
                       and len(b.labels) == 0 for b in batches)
    for bad, options in ((make(tmp_path / "e.h5", labels=np.arange(SAMPLES)), {}),
                         (path, {"shape": (1, 7, 5)}), (path, {"classes": 2})):
        faults = []
        for own, labels in (box, (0, 0)), (whole(4), (0, 4)):
            with pytest.raises(InputError) as caught:
                Loader(bad, own, labels, 4, **options)
            faults.append(str(caught.value))
        assert faults[0] == faults[1]


def test_an_epoch_has_every_sample_once(path: str) -> None:
    with Loader(path, whole(1), (0, 1), 1, shuffle=True) as loader:
        orders = [loader.order(e) for e in range(3)]
        assert not np.array_equal(orders[0], orders[1]) and np.array_equal(
            loader.order(0), orders[0])
    with Loader(path, whole(4), (0, 4), 4, seed=0) as other:
        assert np.array_equal(other.order(2), orders[2]) and other.batches_per_epoch == SAMPLES // 4
    with Loader(path, whole(4), (0, 4), 4, seed=1) as other:
        assert not np.array_equal(other.order(2), orders[2])
    with Loader(path, whole(4), (0, 4), 4, shuffle=False) as plain:
        assert np.array_equal(plain.batch(1, 1)[1], expected(path, np.arange(4, 8))[1])
        with pytest.raises(IndexError):
            plain.batch(0, plain.batches_per_epoch)
    with Loader(path, whole(4), (0, 4), 4, split="test") as test:
        labels = np.concatenate([test.batch(0, i)[1] for i in range(test.batches_per_epoch)])
        known = expected(path, np.arange(TEST_SAMPLES), prefix="test_")[1]
        assert len(labels) == 12 and labels[-1] == NO_LABEL
        assert np.array_equal(labels[:TEST_SAMPLES], known)


def test_an_epoch_has_every_sample_once_even_if_the_ranks_change(path: str) -> None:
    """Each batch is read by another number of ranks, as after losses of ranks; the images say
    which samples were read.
    """
    images, counts = expected(path, np.arange(SAMPLES))[0], np.zeros(SAMPLES, int)
    for i, ranks in enumerate((4, 3, 1, 2, 4)):
        for rank in range(ranks):
            rows = block(4, ranks, rank)
            with Loader(path, (rows, *whole(4)[1:]), rows, 4, np.float64, seed=7) as loader:
                for image in normalized(loader, loader.batch(2, i)[0]):
                    counts += [np.array_equal(image, each) for each in images]
    assert counts.tolist().count(1) == 20 and counts.tolist().count(0) == SAMPLES % 4


def test_samples_come_in_file_order_without_shuffling(path: str) -> None:
    """Split 'all' for inference: no sample is dropped, and a batch may exceed the data."""
    for batch in (5, SAMPLES + 2):
        with Loader(path, whole(batch), (0, batch), batch,
                    split="all") as loader, h5py.File(path) as f:
            seen = [loader.batch(0, i)[1] for i in range(loader.batches_per_epoch)]
            labels = np.concatenate(seen)
            assert loader.samples == SAMPLES and len(labels) == -(-SAMPLES // batch) * batch
            assert np.array_equal(labels[:SAMPLES],
                                  f["labels"][...]) and (labels[SAMPLES:] == NO_LABEL).all()


def test_chunked_files_and_disagreeing_intervals(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as f:
        x = np.random.default_rng(0).normal(size=(16, 1, 9, 4)).astype("f4")
        f.create_dataset("images", data=x, chunks=(1, 1, 2, 4))
        f["labels"] = np.arange(16)
    with Loader(str(tmp_path / "c.h5"), ((2, 6), (0, 1), (3, 8), (1, 4)), (0, 3), 8) as loader:
        images, labels = loader.batch(0, 1)
        order = loader.order(0)[8:]
        assert np.array_equal(images, x[order[2:6], :, 3:8, 1:4]) and np.array_equal(
            labels, order[:3])


def test_prefetch_equals_direct(path: str) -> None:
    with Loader(path, whole(5), (1, 4), 5) as loader:
        with closing(prefetch(loader, lambda images: images + 1, 1, 2, count=7)) as ahead:
            got = list(ahead)
        assert [(b.epoch, b.index) for b in got] == [(1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3),
                                                     (3, 0)]
        for b in got:
            images, labels = loader.batch(b.epoch, b.index)
            assert np.array_equal(b.images, images + 1) and np.array_equal(b.labels, labels)
        with closing(prefetch(loader, np.copy, 0, 1)) as rest:
            assert len(list(rest)) == 3


def test_prefetch_can_stop_midway(path: str) -> None:
    before = threading.active_count()
    with Loader(path, whole(2), (0, 2), 2) as loader:
        ahead = prefetch(loader, np.copy, count=1000)
        next(ahead)
        ahead.close()
        assert threading.active_count() == before and list(ahead) == []


def test_prefetch_passes_on_errors(path: str) -> None:
    class Broken(Loader):
        def batch(self, epoch: int, index: int) -> Any:
            if index == 2:
                raise InputError("no more")
            return super().batch(epoch, index)

    with Broken(path, whole(2), (0, 2), 2) as loader:
        ahead = prefetch(loader, np.copy, count=9)
        assert [next(ahead).index, next(ahead).index] == [0, 1]
        with pytest.raises(InputError, match="no more"):
            next(ahead)
        assert list(ahead) == []


def fails(path: str, message: str, batch: int = 4, labels: Any = (0, 4), **options: Any) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Loader(path, whole(batch), labels, batch, **options)
    assert "\n" not in str(caught.value) and path in str(caught.value)


def test_bad_files_are_refused(path: str, tmp_path: Path) -> None:
    fails(str(tmp_path / "none.h5"), "does not exist; make it with: hpcpar data")
    cut = tmp_path / "cut.h5"
    cut.write_bytes(Path(path).read_bytes()[:-500])
    fails(str(cut), "is truncated")
    text = tmp_path / "text.h5"
    text.write_text("images\n" * 500)
    fails(str(text), "is not an HDF5 file")
    fails(str(tmp_path), "cannot be read")
    fails(make(tmp_path / "a.h5", labels=None), "no datasets 'images' and 'labels'")
    fails(make(tmp_path / "b.h5", test_images=None), "no held-out part", split="test")
    fails(make(tmp_path / "c.h5", images=np.zeros((SAMPLES, 3, 7))), "not uint8, int16, uint16 or")
    fails(make(tmp_path / "d.h5", labels=np.zeros(3, int)), f"not {SAMPLES} whole numbers")
    fails(make(tmp_path / "e.h5", labels=np.arange(SAMPLES)), "labels from 0 to 22")
    regression: dict[str, Any] = {"labels": ((0, 4), (0, 2))}
    fails(path, "holds labels, but the network's loss takes targets; .* --targets", **regression)
    targets = np.zeros((SAMPLES, 2))
    fails(make(tmp_path / "f.h5", labels=None, targets=targets),
          "holds targets, but the network's loss takes labels")
    fails(make(tmp_path / "g.h5", targets=targets[:9]),
          r"not floating-point numbers \[23, outputs\]", **regression)
    fails(make(tmp_path / "h.h5", targets=targets + np.inf), "not finite", **regression)
    fails(make(tmp_path / "i.h5", targets=targets), "2 targets per sample, but the network has 4 "
                                                    "outputs; .* --classes 2", classes=4,
          **regression)
    fails(make(tmp_path / "j.h5", targets=targets[:, :1]),
          "1 targets per sample, but the network has 2 outputs", **regression)


def test_data_that_do_not_fit_are_refused(path: str) -> None:
    fails(path, "images 3x7x5, but the network takes 1x28x28", shape=(1, 28, 28))
    fails(path, "labels from 0 to 3, but the network has 2 classes .* --classes 4", classes=2)
    fails(path, "holds 23 samples, fewer than one batch of 24", batch=24)
    with pytest.raises(InputError, match="exceeds; plan with"):
        Loader(path, ((0, 4), (0, 3), (0, 8), (0, 5)), (0, 4), 4)
    with pytest.raises(InputError, match="unknown split 'val'"):
        Loader(path, whole(4), (0, 4), 4, split="val")


def test_faults_in_the_held_out_part_name_it(path: str, tmp_path: Path) -> None:
    images, labels = np.zeros((5, *SHAPE), np.uint8), np.zeros(5, int)
    for changes, message, options in (
            ({"test_images": images[:, :1], "test_labels": labels},
             "part holds images 1x7x5, but the network takes 3x7x5", {"shape": SHAPE}),
            ({"test_labels": np.full(TEST_SAMPLES, 9)}, "part holds labels from 9 to 9", {}),
            ({"test_images": images[:0], "test_labels": labels[:0]}, "part holds 0 samples", {}),
            ({"test_labels": labels}, "part: 'test_labels' is int64", {})):
        fails(make(tmp_path / "t.h5", **changes), f": the held-out {message}", split="test",
              classes=CLASSES, **options)
        Loader(str(tmp_path / "t.h5"), whole(4), (0, 4), 4, shape=SHAPE, classes=CLASSES).close()
