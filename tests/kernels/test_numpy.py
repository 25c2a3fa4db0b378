"""The NumPy backend against the shared cases, with default and with tiny blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from hpcpar.kernels import (
    numpy_batchnorm,
    numpy_blocks,
    numpy_columns,
    numpy_conv,
    numpy_depthwise,
    numpy_elementwise,
    numpy_gemm,
    numpy_lrn,
    numpy_pool_windows,
)
from hpcpar.kernels.cupy_sources import source
from hpcpar.kernels.geometry import ConvSpec, Segment
from hpcpar.kernels.interface import ACTIVATIONS, Backend
from hpcpar.kernels.numpy_backend import NumpyBackend
from tests.kernel_cases import *  # noqa: F403


@pytest.fixture(scope="module", params=["usual-blocks", "small-blocks"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "small-blocks":
            patch.setattr(numpy_conv, "COLUMN_BYTES", 512)
            patch.setattr(numpy_conv, "WEIGHT_COLUMN_BYTES", 512)
            for module in (numpy_conv, numpy_columns):
                patch.setattr(module, "TILE", 3)
            patch.setattr(numpy_conv, "NARROW", 8)
            patch.setattr(numpy_blocks, "PLANES", 2)
            patch.setattr(numpy_blocks, "TICK_BLOCKS", 2)
            patch.setattr(numpy_gemm, "PART_BYTES", 100)
            patch.setattr(numpy_pool_windows, "WHOLE", 1)
            patch.setattr(numpy_batchnorm, "SHORT", 3)
            for module in (numpy_batchnorm, numpy_blocks, numpy_depthwise, numpy_elementwise,
                           numpy_lrn, numpy_pool_windows):
                patch.setattr(module, "BLOCK_ITEMS", 7)
        forget()
        yield NumpyBackend()
    forget()


def forget() -> None:
    """The geometry caches of the kernels are valid for one block size."""
    for remembered in (numpy_conv._groups, numpy_pool_windows.pool_blocks,
                       numpy_pool_windows.scatter_index):
        remembered.cache_clear()


def test_cuda_code_has_every_activation() -> None:
    """Values and gradients; the last one is the default of both."""
    code = source("activation")
    names = re.findall(r"\w+", re.findall(r"enum Activation \{(.*?)\}", code)[0])
    assert names == [name.upper() for name in ACTIVATIONS]
    assert re.findall(r"case (\w+):", code) == 2 * names[:-1]


@pytest.mark.parametrize(
    ("images", "planes", "rows"),
    [(1, 1, 1), (1, 1, 13), (7, 1, 13), (16, 1, 3), (0, 1, 3), (3, 1, 0), (3, 0, 2), (2, 40, 5),
     (3, 7, 6)]
)
@pytest.mark.parametrize("limit", [1, 10, 40, 10**6])
def test_volume_blocks_cover_once(images: int, planes: int, rows: int, limit: int) -> None:
    covered = np.zeros((images, planes, rows), int)
    for place in numpy_blocks.volume_blocks(images, planes, rows, 5, limit):
        block = covered[place]
        block += 1
        assert block.size
        assert block.size * 5 <= max(limit, 5)
    assert (covered == 1).all()


def test_scratch_does_not_grow_with_the_batch() -> None:
    """Scratch memory is at most 64 MB for AlexNet's largest layers, for any batch size."""
    spec = ConvSpec((1, 1), (1, 1), ((2, 2), (2, 2)), (Segment(0, 48, 0, 128),))
    held = []
    for images in (3, 6):
        numpy = NumpyBackend()
        x, y = (np.ones((images, channels, 27, 27), np.float32) for channels in (48, 128))
        w = np.ones((128, 48, 5, 5), np.float32)
        numpy.conv_forward(x, w, None, spec, y)
        numpy.conv_backward_data(y, w, spec, x)
        numpy.conv_backward_weight(x, y, spec, w, None)
        held.append(numpy.scratch_bytes)
    assert held[1] <= 1.05 * held[0]
    assert held[1] < 64 << 20
