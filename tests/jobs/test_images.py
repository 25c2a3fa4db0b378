"""A folder of images, made a data file, and trained with crops and flips."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcpar.data.image_folder import from_images
from tests.jobs.conftest import Run, summary

Make = Callable[..., Path]
AUGMENT = ("--augment", "crop,flip")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of noisy images, each bright in a place of its own: 48 to train, 12 to test."""
    image = pytest.importorskip("PIL.Image", reason="images need the extra 'images'")
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(4)
    for label, name in enumerate(("high", "low", "middle")):
        (root / "in" / name).mkdir(parents=True)
        for i in range(20):
            pixels = rng.integers(0, 160, (24, 32, 3), dtype=np.uint8)
            pixels[8 * label : 8 * label + 8] += 90
            image.fromarray(pixels).save(root / "in" / name / f"{i}.png")
    from_images(str(root / "images.h5"), str(root / "in"), (3, 16, 16))
    return root / "images.h5"


def test_crops_and_flips_train_the_same_on_any_number_of_ranks(
        hpcpar: Run, plan: Make, images: Path) -> None:
    """Bit for bit again on the same ranks; up to the order of sums on others, evaluation too."""
    shape = {"input": "3x12x11", "classes": 3, "batch": 8, "precision": "fp64"}
    words = ("--data", images, *AUGMENT, "--epochs", 3, "--json")

    def train(ranks: int, strategy: str) -> dict[str, object]:
        return summary(hpcpar(ranks, "run", "--plan", plan(ranks, strategy, **shape), *words))

    alone = train(1, "data")
    assert alone["losses"] == train(1, "data")["losses"]
    for ranks, strategy in ((2, "data"), (2, "spatial"), (4, "domain:2x2")):
        ours = train(ranks, strategy)
        for what in ("losses", "test_loss", "test_accuracy"):
            np.testing.assert_allclose(ours[what], alone[what], rtol=1e-9)
    plain = plan(1, "data", **shape | {"input": "3x16x16"})
    assert summary(hpcpar(1, "run", "--plan", plain, "--data", images, "--augment", "flip",
                          "--steps", 1, "--json"))["loss"] > 0


def test_crops_and_flips_are_verified(hpcpar: Run, plan: Make, images: Path) -> None:
    path = plan(3, "spatial", input="3x12x11", classes=3, batch=8)
    done = hpcpar(3, "verify", "--plan", path, "--data", images, *AUGMENT, "--steps", 2, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trace_equals_schedule"]
    done = hpcpar(3, "verify", "--plan", path, *AUGMENT)
    assert done.returncode == 2 and "--augment needs --data" in done.stderr


def test_larger_images_are_refused_without_crop(hpcpar: Run, plan: Make, images: Path) -> None:
    path = plan(2, "data", input="3x12x11", classes=3, batch=8)
    for words in ((), ("--forward-only",), ("--augment", "flip")):
        done = hpcpar(2, "run", "--plan", path, "--data", images, *words)
        assert done.returncode == 2 and "crop them with --augment crop" in done.stderr
    done = hpcpar(2, "run", "--plan", path, "--data", images, "--forward-only", *AUGMENT, "--json")
    assert summary(done)["samples"] == 12
    done = hpcpar(2, "run", "--plan", path, "--data", images, "--augment", "crop,turn")
    assert done.returncode == 2 and "turn" in done.stderr
