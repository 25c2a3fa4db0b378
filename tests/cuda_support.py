"""The CUDA C kernels on the CPU, for tests: the sources compiled as C++ against ``cuda_cpu.h``, and
`CupyBackend` on top of them.

NumPy replaces CuPy, so that the backend's own code (geometry, strides, blocks of images) runs with
the kernels. A test module does ``from tests.cuda_support import *``, which imports the fixtures
``libraries`` and ``backend``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from hpcpar.kernels import cupy_sources, numpy_activations
from tests import cuda_cpu
from tests.cuda_cpu import launch as call_on_cpu

DTYPES = ("float32", "float64")
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}

# Indices beyond 32 bits take another code path, which small arrays do not reach.
PROBES = """
KERNEL probe_place(i64 index, i64 channels, i64 depth, i64 height, i64 width, i64 *to) {
    const Place p = place(index, channels, depth, height, width);
    to[0] = p.n, to[1] = p.c, to[2] = p.d, to[3] = p.h, to[4] = p.w;
}
KERNEL probe_place5(i64 index, i64 d1, i64 d2, i64 d3, i64 d4, i64 *to) {
    const Place5 p = place5(index, d1, d2, d3, d4);
    to[0] = p.i0, to[1] = p.i1, to[2] = p.i2, to[3] = p.i3, to[4] = p.i4;
}
"""


@pytest.fixture(scope="module")
def libraries() -> dict[str, ctypes.CDLL]:
    """The kernels as loadable libraries, by the type of REAL."""
    if cuda_cpu.missing():
        pytest.skip(cuda_cpu.missing())
    code = "\n".join([*map(cupy_sources.source, cupy_sources.SUBJECTS), PROBES])
    with ThreadPoolExecutor() as pool:  # one compiler per type
        compiled = pool.map(lambda real: cuda_cpu.library(code, real), cupy_sources.REALS.values())
        return dict(zip(cupy_sources.REALS, compiled, strict=True))


class NumpyAsCupy:
    """The part of CuPy that the backend's kernels use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def asnumpy(array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        if out is None:
            return array
        out[...] = array
        return out


@pytest.fixture(scope="module")
def backend(libraries: dict[str, ctypes.CDLL]) -> Iterator[Any]:
    """`CupyBackend` on the CPU; convolutions have scratch memory for about two images."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from hpcpar.kernels import (
        cupy_backend,
        cupy_batchnorm,
        cupy_conv,
        cupy_elementwise,
        cupy_fused,
        cupy_launch,
        cupy_loss,
        cupy_pool,
        cupy_products,
        cupy_updates,
    )

    class CpuLauncher(cupy_launch.Launcher):
        def _function(self, name: str, dtype: np.dtype) -> Callable[..., None]:
            def function(grid: tuple[int, int], block: tuple[int], args: tuple[Any, ...]) -> None:
                # Threads are expensive on a CPU. Two blocks of 8 threads per dimension are fewer
                # than the work, so the kernels must loop.
                call_on_cpu(libraries[dtype.name], name, (min(grid[0], 2), min(grid[1], 2)), (8,),
                            args)

            return function

        def _bound(self, function: Callable[..., None], shape: tuple[tuple[int, ...], ...],
                   args: tuple[Any, ...]) -> Callable[[], None]:
            return partial(function, *shape, args)  # CuPy's pointers cannot be read

    with pytest.MonkeyPatch.context() as patch:
        for module in (cupy_backend, cupy_batchnorm, cupy_conv, cupy_elementwise, cupy_fused,
                       cupy_launch, cupy_loss, cupy_pool, cupy_products, cupy_updates):
            patch.setattr(module, "cp", NumpyAsCupy())
        backend = object.__new__(cupy_backend.CupyBackend)
        backend._set_up(CpuLauncher(), 1500)
        backend.erf = numpy_activations.erf
        yield backend


SENTINEL = 77


def make(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator | None = None) -> np.ndarray:
    """A view with uneven strides inside a larger array of SENTINEL; random numbers with `rng`."""
    steps = [1 + axis % 2 for axis in range(len(shape))]
    base = np.full([step * extent + 2 for step, extent in zip(steps, shape, strict=True)], SENTINEL,
                   dtype)
    view = base[tuple(slice(1, 1 + step * extent, step)
                      for step, extent in zip(steps, shape, strict=True))]
    assert view.shape == shape
    if rng is not None:
        view[...] = rng.standard_normal(shape)
    return view


def check(view: np.ndarray, expected: np.ndarray, exact: bool = False) -> None:
    """Check the values of a view, and that the memory around it is unchanged."""
    tolerance = 0 if exact else TOLERANCE.get(view.dtype.name, 0)
    np.testing.assert_allclose(view, expected, rtol=tolerance, atol=10 * tolerance)
    if view.base is not None:
        base = view.base.copy()
        steps = tuple(slice(1, 1 + b // v * n, b // v)
                      for n, b, v in zip(view.shape, view.strides, base.strides, strict=True))
        base[steps] = SENTINEL
        assert (base == SENTINEL).all()


def make_row(values: np.ndarray, offset: int) -> np.ndarray:
    """A copy of a row inside an array of SENTINEL, `offset` elements beyond 16-byte alignment."""
    base = np.full(len(values) + 10, SENTINEL, values.dtype)
    first = 2 + -base[2:].ctypes.data % 16 // base.itemsize + offset
    row = base[first : first + len(values)]
    row[...] = values
    return row


def check_row(row: np.ndarray, expected: np.ndarray) -> None:
    """Check that a row has exactly these values, and that the memory around it is unchanged."""
    np.testing.assert_array_equal(row, expected)
    base = row.base
    assert base is not None
    assert (base == SENTINEL).sum() == len(base) - len(row)


def output_extent(extent: int, kernel: int, stride: int, dilation: int,
                  pads: tuple[int, int]) -> int:
    """Number of outputs of a window along one axis."""
    return max(0, (extent + sum(pads) - dilation * (kernel - 1) - 1) // stride + 1)
