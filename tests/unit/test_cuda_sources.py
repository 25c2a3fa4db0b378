"""The CUDA C kernels without a GPU: NVRTC must take the sources, and their results on the CPU must be right.

For the second part the sources are compiled as C++ against ``tests/cuda_cpu.h``, and `CupyBackend` runs on top of them with
NumPy in CuPy's place: its own code (geometry, strides, blocks of images) is checked with the kernels.
"""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.kernels import cupy_sources
from hpcpar.kernels.interface import ConvSpec, PoolSpec, Segment

TESTS = Path(__file__).resolve().parents[1]
DTYPES = ("float32", "float64")
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


# -- NVRTC ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def nvrtc() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from cupy.cuda import nvrtc as module
        module.getVersion()
    except Exception as err:  # CuPy wraps a missing library in more than one type
        pytest.skip(f"NVRTC is not usable: {err}")
    return module


def compile_nvrtc(nvrtc: Any, text: str, name: str, arch: str, real: str) -> None:
    program = nvrtc.createProgram(text, name, (), ())
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={arch}", "--std=c++17", f"-DREAL={real}"))
    except Exception as err:
        pytest.fail(f"{name} for {arch}, REAL={real}: {err}\n{nvrtc.getProgramLog(program)}")
    log = nvrtc.getProgramLog(program).strip("\0 \n")
    assert not log, log
    assert len(nvrtc.getCUBIN(program)) > 1000
    nvrtc.destroyProgram(program)


@pytest.mark.parametrize("real", cupy_sources.REALS.values())
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("subject", cupy_sources.SUBJECTS)
def test_each_source_compiles(nvrtc: Any, subject: str, arch: str, real: str) -> None:
    compile_nvrtc(nvrtc, cupy_sources.source(subject), f"{subject}.cu", arch, real)


@pytest.mark.parametrize("real", cupy_sources.REALS.values())
@pytest.mark.parametrize("arch", ["sm_75", "sm_100"])
def test_all_sources_compile_for_other_cards(nvrtc: Any, arch: str, real: str) -> None:
    compile_nvrtc(nvrtc, "\n".join(map(cupy_sources.source, cupy_sources.SUBJECTS)), "all.cu", arch, real)


def test_every_source_is_listed() -> None:
    folder = Path(cupy_sources.__file__).parent
    assert {path.stem for path in folder.glob("*.cu")} == set(cupy_sources.SUBJECTS)
    text = "".join(map(cupy_sources.source, cupy_sources.SUBJECTS))
    assert len(cupy_sources.kernels()) == text.count("\nKERNEL ")
    assert "atomicAdd" not in text


# -- the kernels on the CPU -------------------------------------------------------------------------------------

# Indices beyond 32 bits take a path of their own, which no small array reaches.
PROBES = """
KERNEL probe_place4(i64 index, i64 channels, i64 height, i64 width, i64 *to) {
    const Place4 p = place4(index, (int)channels, (int)height, (int)width);
    to[0] = p.n, to[1] = p.c, to[2] = p.h, to[3] = p.w;
}
KERNEL probe_place5(i64 index, i64 d1, i64 d2, i64 d3, i64 d4, i64 *to) {
    const Place5 p = place5(index, d1, d2, d3, d4);
    to[0] = p.i0, to[1] = p.i1, to[2] = p.i2, to[3] = p.i3, to[4] = p.i4;
}
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    """The kernels as loadable libraries, by the type of REAL."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("cuda_cpu")
    names = [*cupy_sources.kernels(), "probe_place4", "probe_place5"]
    parts = ['#include "cuda_cpu.h"', *map(cupy_sources.source, cupy_sources.SUBJECTS), PROBES]
    (folder / "all.cpp").write_text("\n".join([*parts, *(f"CUDA_CPU_ENTRY({name})" for name in names)]))
    options = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Wno-unused-parameter", "-shared", "-fPIC", "-pthread", f"-I{TESTS}"]
    jobs = {}
    for dtype, real in cupy_sources.REALS.items():
        command = [compiler, *options, f"-DREAL={real}", str(folder / "all.cpp"), "-o", str(folder / f"{real}.so")]
        jobs[dtype] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    libs = {}
    for dtype, job in jobs.items():
        log = job.communicate()[1]
        if "barrier: No such file" in log or "unrecognized command-line option" in log:
            pytest.skip("g++ knows no C++20")
        assert job.returncode == 0 and "warning" not in log, log
        libs[dtype] = ctypes.CDLL(str(folder / f"{cupy_sources.REALS[dtype]}.so"))
    return libs


def call_on_cpu(library: ctypes.CDLL, name: str, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]) -> None:
    """Launch a kernel as CuPy does: arrays as pointers, ints with 64 bits, floats as double, NumPy scalars as they are."""
    values: list[Any] = []
    for arg in args:
        if isinstance(arg, np.ndarray):
            values.append(ctypes.c_void_p(arg.ctypes.data))
        elif isinstance(arg, np.uint64):
            values.append(ctypes.c_uint64(int(arg)))
        elif isinstance(arg, float):
            values.append(ctypes.c_double(arg))
        else:
            assert isinstance(arg, int | np.int64), type(arg)
            values.append(ctypes.c_int64(int(arg)))
    addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    shapes = [(ctypes.c_uint * 3)(*(*shape, 1, 1)[:3]) for shape in (grid, block)]
    getattr(library, f"cuda_cpu_{name}")(*shapes, addresses)


class NumpyAsCupy:
    """As much of CuPy as the backend's kernels use."""

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
    """`CupyBackend` with NumPy arrays, its kernels run on the CPU, and room for about two images in a convolution's matrices."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from hpcpar.kernels import cupy_backend, cupy_conv, cupy_launch

    class CpuLauncher(cupy_launch.Launcher):
        def _function(self, name: str, dtype_name: str) -> Callable[..., None]:
            def function(grid: tuple[int, int], block: tuple[int], args: tuple[Any, ...]) -> None:
                # Threads are dear here: two blocks of 8 in each dimension, fewer than the work, so that the kernels must loop.
                call_on_cpu(libraries[dtype_name], name, (min(grid[0], 2), min(grid[1], 2)), (8,), args)

            return function

    with pytest.MonkeyPatch.context() as patch:
        for module in (cupy_backend, cupy_conv, cupy_launch):
            patch.setattr(module, "cp", NumpyAsCupy())
        backend = object.__new__(cupy_backend.CupyBackend)
        backend._set_up(CpuLauncher(), 1500)
        yield backend


SENTINEL = 77


def make(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator | None = None) -> np.ndarray:
    """A view with uneven strides inside a larger array that is SENTINEL everywhere; filled at random if `rng` is given."""
    steps = [1 + axis % 2 for axis in range(len(shape))]
    base = np.full([step * extent + 2 for step, extent in zip(steps, shape, strict=True)], SENTINEL, dtype)
    view = base[tuple(slice(1, 1 + step * extent, step) for step, extent in zip(steps, shape, strict=True))]
    assert view.shape == shape
    if rng is not None:
        view[...] = rng.standard_normal(shape)
    return view


def check(view: np.ndarray, expected: np.ndarray, exact: bool = False) -> None:
    """The values, and that nothing around the view was written."""
    tolerance = 0 if exact else TOLERANCE.get(view.dtype.name, 0)
    np.testing.assert_allclose(view, expected, rtol=tolerance, atol=10 * tolerance)
    if view.base is not None:
        base = view.base.copy()
        steps = tuple(slice(1, 1 + b // v * n, b // v) for n, b, v in zip(view.shape, view.strides, base.strides, strict=True))
        base[steps] = SENTINEL
        assert (base == SENTINEL).all()


@pytest.mark.parametrize("index", [0, 12345, 2**31 - 1, 2**31, 2**36 + 98765])
def test_places(libraries: dict[str, ctypes.CDLL], index: int) -> None:
    to = np.zeros(5, np.int64)
    shape = (2**20, 3, 70000, 11)
    call_on_cpu(libraries["float32"], "probe_place4", (1,), (1,), (index, *shape[1:], to))
    assert tuple(to[:4]) == tuple(np.unravel_index(index, shape))
    for shape in ((2**40, 5, 7, 3, 9), (1, 1, 1, 1, 2**40), (3, 2**33, 1, 2, 5)):
        call_on_cpu(libraries["float32"], "probe_place5", (1,), (1,), (index, *shape[1:], to))
        assert tuple(to) == tuple(np.unravel_index(index, shape))


# -- convolution ------------------------------------------------------------------------------------------------

# images, input channels, height, width, outputs, (kh, kw), stride, dilation, pads, segments
ONE = (Segment(0, 3, 0, 4),)
CONV_CASES = {
    "3x3": (3, 3, 5, 6, 4, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), ONE),
    "strides": (2, 3, 11, 9, 4, (5, 3), (4, 2), (1, 1), ((0, 0), (0, 0)), ONE),
    "asymmetric pads": (3, 3, 5, 4, 4, (3, 3), (2, 1), (1, 1), ((2, 0), (0, 1)), ONE),
    "dilation": (2, 3, 9, 8, 4, (3, 2), (1, 2), (2, 3), ((2, 1), (1, 3)), ONE),
    "1x1": (5, 3, 4, 4, 4, (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)), ONE),
    "two groups": (2, 4, 5, 5, 6, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), (Segment(0, 2, 0, 3), Segment(2, 4, 3, 6))),
    "depthwise": (2, 3, 5, 5, 3, (3, 3), (2, 2), (1, 1), ((1, 0), (1, 0)), tuple(Segment(c, c + 1, c, c + 1) for c in range(3))),
    "parts": (2, 5, 4, 4, 6, (2, 2), (1, 1), (1, 1), ((0, 0), (1, 0)), (Segment(0, 2, 1, 3), Segment(1, 3, 4, 6))),
    "one image": (1, 3, 5, 5, 4, (3, 3), (1, 1), (1, 1), ((0, 0), (0, 0)), ONE),
    "no image": (0, 3, 5, 5, 4, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), ONE),
    "no output row": (2, 3, 5, 5, 4, (3, 3), (1, 1), (1, 1), ((0, -3), (1, 1)), ONE),
    "no group": (2, 3, 5, 5, 4, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), ()),
}


def output_extent(extent: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> int:
    return max(0, (extent + sum(pads) - dilation * (kernel - 1) - 1) // stride + 1)


def conv_reads(case: tuple[Any, ...], out_shape: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Every (segment, u, v, input row, input column, output row, output column) of a convolution that lies inside x."""
    _, _, height, width, _, kernel, stride, dilation, pads, segments = case
    reads = []
    for segment, u, v in itertools.product(segments, *map(range, kernel)):
        for i, j in itertools.product(*map(range, out_shape[2:])):
            h, w = i * stride[0] - pads[0][0] + dilation[0] * u, j * stride[1] - pads[1][0] + dilation[1] * v
            if 0 <= h < height and 0 <= w < width:
                reads.append((segment, u, v, h, w, i, j))
    return reads


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CONV_CASES.values(), ids=CONV_CASES)
def test_conv(backend: Any, case: tuple[Any, ...], dtype: str) -> None:
    images, channels, height, width, outputs, kernel, stride, dilation, pads, segments = case
    rng = np.random.default_rng(1)
    extents = [output_extent(*a) for a in zip((height, width), kernel, stride, dilation, pads, strict=True)]
    spec = ConvSpec(stride, dilation, pads, segments)
    group = segments[0].in_stop - segments[0].in_start if segments else channels
    x = make((images, channels, height, width), dtype, rng)
    dy = make((images, outputs, *extents), dtype, rng)
    w = rng.standard_normal((outputs, group, *kernel)).astype(dtype)
    bias = make((outputs,), dtype, rng)

    y = np.zeros(dy.shape)
    dx = np.zeros(x.shape)
    dw = np.zeros(w.shape)
    for s, u, v, h, v_w, i, j in conv_reads(case, dy.shape):
        ins, outs = slice(s.in_start, s.in_stop), slice(s.out_start, s.out_stop)
        y[:, outs, i, j] += x[:, ins, h, v_w] @ w[outs, :, u, v].T
        dx[:, ins, h, v_w] += dy[:, outs, i, j] @ w[outs, :, u, v]
        dw[outs, :, u, v] += dy[:, outs, i, j].T @ x[:, ins, h, v_w]

    ticks: list[int] = []
    out = make(dy.shape, dtype)
    backend.conv_forward(x, w, None, spec, out)
    check(out, y)
    backend.conv_forward(x, w, bias, spec, out, lambda: ticks.append(1))
    check(out, y + bias[:, None, None])
    if images >= 3:
        assert len(ticks) >= 2
    got = make(x.shape, dtype)
    backend.conv_backward_data(dy, w, spec, got)
    check(got, dx)
    got_w, got_bias = np.full(w.shape, 7, dtype), make((outputs,), dtype)
    backend.conv_backward_weight(x, dy, spec, got_w, got_bias)
    check(got_w, dw)
    check(got_bias, dy.sum(axis=(0, 2, 3)))
    backend.conv_backward_weight(x, dy, spec, got_w, None)
    check(got_w, dw)


# -- pooling ----------------------------------------------------------------------------------------------------

POOL_CASES = {
    "2x2": ((2, 3, 6, 4), (2, 2), (2, 2), ((0, 0), (0, 0))),
    "overlapping": ((2, 2, 7, 9), (3, 3), (2, 2), ((0, 0), (0, 0))),
    "asymmetric": ((1, 3, 5, 6), (3, 2), (1, 2), ((2, 0), (0, 1))),
    "gaps": ((2, 2, 7, 7), (2, 1), (3, 2), ((1, 1), (0, 0))),
    "global": ((2, 3, 3, 4), (3, 4), (1, 1), ((0, 0), (0, 0))),
    "empty": ((0, 3, 4, 4), (2, 2), (2, 2), ((0, 0), (0, 0))),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", POOL_CASES.values(), ids=POOL_CASES)
def test_pooling(backend: Any, case: tuple[Any, ...], dtype: str) -> None:
    shape, kernel, stride, pads = case
    rng = np.random.default_rng(2)
    extents = [output_extent(n, k, s, 1, p) for n, k, s, p in zip(shape[2:], kernel, stride, pads, strict=True)]
    spec = PoolSpec(kernel, stride, pads)
    x = make(shape, dtype)
    x[...] = rng.integers(-3, 3, shape)  # many equal maxima
    dy = make((*shape[:2], *extents), dtype, rng)
    scale_h, scale_w = (make((extent,), dtype, rng) for extent in extents)

    most, where = np.full(dy.shape, -np.inf), np.full(dy.shape, -1)
    mean, dx, dx_mean = np.zeros(dy.shape), np.zeros(shape), np.zeros(shape)
    for n, c, i, j in np.ndindex(dy.shape):
        for u, v in itertools.product(*map(range, kernel)):
            h, w = i * stride[0] - pads[0][0] + u, j * stride[1] - pads[1][0] + v
            if 0 <= h < shape[2] and 0 <= w < shape[3]:
                mean[n, c, i, j] += scale_h[i] * scale_w[j] * x[n, c, h, w]
                dx_mean[n, c, h, w] += scale_h[i] * scale_w[j] * dy[n, c, i, j]
                if x[n, c, h, w] > most[n, c, i, j]:
                    most[n, c, i, j], where[n, c, i, j] = x[n, c, h, w], u * kernel[1] + v
        u, v = divmod(where[n, c, i, j], kernel[1])
        dx[n, c, i * stride[0] - pads[0][0] + u, j * stride[1] - pads[1][0] + v] += dy[n, c, i, j]

    out, argmax, got = make(dy.shape, dtype), make(dy.shape, np.int16), make(shape, dtype)
    backend.maxpool_forward(x, spec, out, argmax)
    check(out, most, exact=True)
    check(argmax, where, exact=True)
    backend.maxpool_backward(dy, argmax, spec, got)
    check(got, dx)
    backend.avgpool_forward(x, spec, scale_h, scale_w, out)
    check(out, mean)
    backend.avgpool_backward(dy, spec, scale_h, scale_w, got)
    check(got, dx_mean)


def test_maxpool_keeps_nan(backend: Any) -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    x[0, 0, 0, 1] = np.nan
    out, argmax = np.empty((1, 1, 2, 2), np.float32), np.empty((1, 1, 2, 2), np.int16)
    backend.maxpool_forward(x, PoolSpec((2, 2), (2, 2), ((0, 0), (0, 0))), out, argmax)
    np.testing.assert_array_equal(out[0, 0], [[np.nan, 7], [13, 15]])
    np.testing.assert_array_equal(argmax[0, 0], [[1, 3], [3, 3]])


def test_windows_in_the_padding(backend: Any) -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    spec = PoolSpec((2, 2), (2, 2), ((2, 0), (0, 0)))
    out, argmax, dx = np.empty((1, 1, 2, 1), np.float32), np.empty((1, 1, 2, 1), np.int16), np.empty_like(x)
    backend.maxpool_forward(x, spec, out, argmax)
    np.testing.assert_array_equal(out.ravel(), [-np.inf, 3])
    np.testing.assert_array_equal(argmax.ravel(), [0, 3])
    backend.maxpool_backward(np.ones_like(out), argmax, spec, dx)
    np.testing.assert_array_equal(dx.ravel(), [0, 0, 0, 1])


# -- normalisation ----------------------------------------------------------------------------------------------


def lrn(x: np.ndarray, offset: int, outputs: int, size: int, alpha: float, beta: float, k: float) -> tuple[np.ndarray, np.ndarray]:
    scale = np.stack(
        [
            k + alpha / size * (x[:, max(0, i - size // 2) : max(0, i + (size - 1) // 2 + 1)] ** 2).sum(axis=1)
            for i in range(offset, offset + outputs)
        ],
        axis=1,
    )
    return x[:, offset : offset + outputs] / scale**beta, scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "offset", "outputs", "size"), [(7, 0, 7, 5), (6, 2, 3, 5), (6, 1, 4, 4), (3, 0, 3, 9)])
def test_lrn(backend: Any, channels: int, offset: int, outputs: int, size: int, dtype: str) -> None:
    rng = np.random.default_rng(3)
    alpha, beta, k = 0.7, 0.75, 1.5
    x = make((2, channels, 2, 3), dtype, rng)
    out, scale, dx = make((2, outputs, 2, 3), dtype), make((2, outputs, 2, 3), dtype), make(x.shape, dtype)
    dy = make(out.shape, dtype, rng)
    y, expected_scale = lrn(x.astype(float), offset, outputs, size, alpha, beta, k)
    backend.lrn_forward(x, offset, size, alpha, beta, k, out, scale)
    check(out, y)
    check(scale, expected_scale)
    backend.lrn_backward(x, out, scale, dy, offset, size, alpha, beta, dx)
    expected = np.zeros(x.shape)
    step = 1e-5
    for place in np.ndindex(x.shape):
        sides = []
        for sign in (1, -1):
            moved = x.astype(float)
            moved[place] += sign * step
            sides.append((lrn(moved, offset, outputs, size, alpha, beta, k)[0] * dy).sum())
        expected[place] = (sides[0] - sides[1]) / (2 * step)
    np.testing.assert_allclose(dx, expected, rtol=1e-4, atol=1e-5 if dtype == "float32" else 1e-8)
    check(dx, dx)


# -- boxes and elementwise --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, "int64"])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (2, 1, 3, 2, 4), (2, 0, 3)])
def test_boxes(backend: Any, shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(4)
    for order in (range(len(shape)), reversed(range(len(shape)))):
        box = make(shape, dtype)
        box[...] = rng.integers(-9, 9, shape)
        turned = box.transpose(tuple(order))
        flat = np.empty(box.size, dtype)
        backend.pack(turned, flat)
        np.testing.assert_array_equal(flat, turned.ravel())
        more = np.arange(box.size).astype(dtype)
        expected = turned + more.reshape(turned.shape)
        backend.unpack_add(more, turned)
        np.testing.assert_array_equal(turned, expected)
        backend.unpack(more, turned)
        np.testing.assert_array_equal(turned.ravel(), more)
        check(box, box)


def test_merge_dims() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from hpcpar.kernels.cupy_launch import merge_dims

    assert merge_dims((2, 3, 4), (12, 4, 1)) == ((1, 1, 1, 1, 24), [(0, 0, 0, 0, 1)])
    assert merge_dims((2, 3, 4), (24, 4, 1)) == ((1, 1, 1, 2, 12), [(0, 0, 0, 24, 1)])
    assert merge_dims((2, 1, 4), (4, 99, 1), (8, 0, 2)) == ((1, 1, 1, 1, 8), [(0, 0, 0, 0, 1), (0, 0, 0, 0, 2)])
    assert merge_dims((2, 4), (4, 1), (5, 1)) == ((1, 1, 1, 2, 4), [(0, 0, 0, 4, 1), (0, 0, 0, 5, 1)])
    assert merge_dims((), ()) == ((1,) * 5, [(0,) * 5])
    with pytest.raises(ValueError, match="more than 5"):
        merge_dims((2,) * 6, (729, 243, 81, 27, 9, 3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_relu(backend: Any, dtype: str) -> None:
    rng = np.random.default_rng(5)
    x, out, dy, dx = (make((2, 3, 4, 5), dtype, rng) for _ in range(4))
    x[0, 0, 0, :2] = 0, np.nan
    backend.relu_forward(x, out)
    check(out, np.maximum(x, 0), exact=True)
    dy[0, 0, 1, 0] = np.nan
    expected = np.where(out > 0, dy, 0)
    backend.relu_backward(out, dy, dx)
    check(dx, expected, exact=True)
    backend.relu_backward(out, dy, dy)
    check(dy, expected, exact=True)


def splitmix64(z: int) -> int:
    mask = 2**64 - 1
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return z ^ z >> 31


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("start", "shape", "extent"),
    [
        ((1, 2, 0, 3), (2, 2, 3, 2), (4, 5, 3, 6)),
        ((2, 3), (2, 5), (9, 8)),
        ((0,), (6,), (6,)),
        ((2**20, 7), (2, 3), (2**21, 2**20)),
        ((0, 0), (0, 3), (4, 4)),
    ],
)
def test_dropout_mask(backend: Any, start: tuple[int, ...], shape: tuple[int, ...], extent: tuple[int, ...], dtype: str) -> None:
    key, rate = 0xFEDCBA9876543210, 0.4
    out = make(shape, dtype)
    backend.dropout_mask(key, start, shape, extent, rate, out)
    expected = np.zeros(shape, dtype)
    for place in np.ndindex(shape):
        index = 0
        for s, p, e in zip(start, place, extent, strict=True):
            index = index * e + s + p
        kept = (splitmix64((key + (1 + index) * 0x9E3779B97F4A7C15) % 2**64) >> 11) * 2.0**-53 >= rate
        expected[place] = 1 / (1 - rate) if kept else 0
    check(out, expected, exact=True)
    flat = np.empty(out.size, dtype)
    backend.dropout_mask(key, start, shape, extent, rate, flat)
    np.testing.assert_array_equal(flat, expected.ravel())
    turned = np.empty((2, out.size // 2), dtype).T
    backend.dropout_mask(key, start, shape, extent, rate, turned)
    np.testing.assert_array_equal(turned.ravel(), expected.ravel())
    backend.dropout_mask(key, start, shape, extent, 1.0, out)
    assert not out.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("samples", "classes"), [(5, 3), (4, 37), (3, 8), (0, 4), (2, 1)])
def test_softmax(backend: Any, samples: int, classes: int, dtype: str) -> None:
    rng = np.random.default_rng(6)
    x, dx = make((samples, classes), dtype, rng), make((samples, classes), dtype)
    x *= 30
    labels = rng.integers(0, classes, 2 * samples)[::2]
    if samples > 2:
        labels[1] = -1
        x[2, :2] = x[2].max() + 1  # two equal maxima: the first counts
        labels[2] = 0
    shifted = x.astype(float) - x.max(axis=1, keepdims=True) if samples else x.astype(float)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    used = np.flatnonzero(labels >= 0)
    expected = np.zeros(x.shape)
    expected[used] = np.exp(logs[used])
    expected[used, labels[used]] -= 1
    loss, hits = backend.softmax_cross_entropy(x, labels, 0.25, dx)
    assert type(loss) is float and type(hits) is int
    assert loss == pytest.approx(-logs[used, labels[used]].sum(), rel=1e-5 if dtype == "float32" else 1e-12)
    assert hits == (x[used].argmax(axis=1) == labels[used]).sum()
    check(dx, 0.25 * expected)


def test_softmax_of_an_impossible_label_is_nan(backend: Any) -> None:
    x = np.ones((2, 3), np.float32)
    assert np.isnan(backend.softmax_cross_entropy(x, np.array([1, 3]), 1.0, np.empty_like(x))[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_logistic(backend: Any, dtype: str) -> None:
    rng = np.random.default_rng(7)
    x, dx = make((5, 11), dtype, rng), make((5, 11), dtype)
    x *= 40
    labels = np.array([3, -1, 7, 13, 99])
    target = (labels[:, None] - 3 == np.arange(11)) * 1.0
    wide, used = x.astype(float), (labels >= 0)[:, None]
    losses = np.maximum(wide, 0) - wide * target + np.log1p(np.exp(-abs(wide)))
    loss = backend.logistic_cross_entropy(x, labels, 3, 0.5, dx)
    assert type(loss) is float
    assert loss == pytest.approx((losses * used).sum(), rel=1e-5 if dtype == "float32" else 1e-12)
    check(dx, 0.5 * (1 / (1 + np.exp(-wide)) - target) * used)
    assert backend.logistic_cross_entropy(x[:0], labels[:0], 3, 0.5, dx[:0]) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_and_update(backend: Any, dtype: str) -> None:
    rng = np.random.default_rng(8)
    a, b = make((4, 3), dtype, rng), make((5, 3), dtype, rng)
    for out in (make((4, 5), dtype), np.empty((4, 5), dtype)):
        backend.gemm(a, b, out, transpose_b=True)
        check(out, a @ b.T)
        backend.gemm(a.T, b.T, out, transpose_a=True)
        check(out, a @ b.T)
    backend.gemm(a[:, :0], b[:, :0], out, transpose_b=True)
    assert not out.any()
    y, bias, total = make((4, 5), dtype, rng), make((5,), dtype, rng), make((5,), dtype)
    expected = y + bias
    backend.add_bias(y, bias)
    check(y, expected, exact=True)
    backend.sum_samples(y, total)
    check(total, y.sum(axis=0))
    backend.sum_samples(y[:0], total)
    check(total, np.zeros(5))
    w, grad, velocity = (make((50,), dtype, rng) for _ in range(3))
    new = 0.9 * velocity - 0.1 * (grad + 0.01 * w)
    expected = w + new
    backend.sgd_update(w, grad, velocity, 0.1, 0.9, 0.01)
    check(velocity, new)
    check(w, expected)
    assert backend.all_finite(w) and backend.all_finite(w[:0])
    w[3] = np.nan
    assert not backend.all_finite(w)


# -- choosing the GPU -------------------------------------------------------------------------------------------


def test_local_rank() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from hpcpar.kernels.cupy_backend import local_rank

    assert local_rank({}) == 0
    assert local_rank({"SLURM_LOCALID": "3"}) == 3
    assert local_rank({"SLURM_LOCALID": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}) == 2
    assert local_rank({"MPI_LOCALRANKID": "", "PMI_LOCAL_RANK": "1"}) == 1


def test_no_gpu_is_one_clear_line() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if cupy.cuda.is_available():
        pytest.skip("this machine has a GPU")
    from hpcpar.kernels import cupy_backend

    with pytest.MonkeyPatch.context() as patch, pytest.raises(InputError, match="--device cpu") as info:
        patch.setattr(cupy_backend, "cp", cupy)
        cupy_backend.CupyBackend()
    assert "\n" not in str(info.value)
