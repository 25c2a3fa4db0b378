"""Flop rates of the NumPy convolutions on AlexNet and CosmoFlow beside np.matmul and PyTorch.

    python bench/kernels.py [--batch 16] [--threads 1] [--rounds 7] [--json FILE]

A second table has the times of ResNet-50's batch normalizations beside PyTorch's.

The implementations of a layer run interleaved (A B C A B C ...), so that noise affects them alike;
all figures are medians. ``GEMM`` is np.matmul on 2048 x 2048 matrices. ``own`` is np.matmul on the
matrices of the layer for one image, [pixels, K] @ [K, filters] and its two adjoints.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PASSES = ("forward", "data", "weight")
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS",
                    "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
SQUARE = 2048


@dataclass(frozen=True)
class Layer:
    """A convolution of AlexNet on 227-pixel images, or of CosmoFlow on volumes (3 `axes`).

    `groups` 2 is the variant with two towers.
    """

    name: str
    channels: int
    size: int
    filters: int
    kernel: int
    stride: int
    pad: int
    groups: int = 1
    axes: int = 2
    #: Images per image of `--batch`.
    share: float = 1

    def images(self, batch: int) -> int:
        return max(1, round(batch * self.share))

    @property
    def out_size(self) -> int:
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def depth(self) -> int:
        """Multiplications per output element."""
        return self.channels // self.groups * self.kernel**self.axes

    def shapes(self, batch: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shapes of input, weights and output."""
        x, w, y = ((extent,) * self.axes for extent in (self.size, self.kernel, self.out_size))
        n = self.images(batch)
        return ((n, self.channels, *x), (self.filters, self.channels // self.groups, *w),
                (n, self.filters, *y))

    def flops(self, batch: int) -> int:
        return 2 * self.images(batch) * self.filters * self.out_size**self.axes * self.depth


LAYERS = (
    Layer("conv1", 3, 227, 96, 11, 4, 0),
    Layer("conv2", 96, 27, 256, 5, 1, 2),
    Layer("conv3", 256, 13, 384, 3, 1, 1),
    Layer("conv4", 384, 13, 384, 3, 1, 1),
    Layer("conv5", 384, 13, 256, 3, 1, 1),
    Layer("conv2 /2", 96, 27, 256, 5, 1, 2, 2),
    Layer("conv4 /2", 384, 13, 384, 3, 1, 1, 2),
    Layer("conv5 /2", 384, 13, 256, 3, 1, 1, 2),
    Layer("cosmo1", 4, 128, 16, 3, 1, 1, axes=3, share=1 / 16),
    Layer("cosmo2", 16, 64, 32, 3, 1, 1, axes=3, share=1 / 16),
    Layer("cosmo3", 32, 32, 64, 3, 1, 1, axes=3, share=1 / 8),
    Layer("cosmo4", 64, 16, 128, 3, 1, 1, axes=3, share=1 / 4),
    Layer("cosmo5", 128, 8, 256, 3, 1, 1, axes=3, share=1 / 2),
)

#: Batch normalizations of ResNet-50: samples per image of `--batch`, channels, image.
NORMS = ((0.5, 64, (112, 112)), (0.5, 256, (56, 56)), (1, 512, (28, 28)), (1, 1024, (14, 14)),
         (1, 2048, (7, 7)))


def kernel_calls(layer: Layer, batch: int) -> dict[str, Callable[[], Any]]:
    """The NumPy backend's three kernels on random arrays."""
    import numpy as np

    from hpcpar.kernels.geometry import ConvSpec, Segment
    from hpcpar.kernels.numpy_backend import NumpyBackend

    backend, rng = NumpyBackend(), np.random.default_rng(0)
    c, o, axes = layer.channels // layer.groups, layer.filters // layer.groups, layer.axes
    segments = tuple(Segment(g * c, (g + 1) * c, g * o, (g + 1) * o) for g in range(layer.groups))
    spec = ConvSpec((layer.stride,) * axes, (1,) * axes, ((layer.pad, layer.pad),) * axes, segments)
    x, w, y = (rng.random(shape, np.float32) for shape in layer.shapes(batch))
    bias, out, dx, dw = rng.random(layer.filters,
                                   np.float32), np.empty_like(y), np.empty_like(x), np.empty_like(w)
    return {
        "forward": lambda: backend.conv_forward(x, w, bias, spec, out),
        "data": lambda: backend.conv_backward_data(y, w, spec, dx),
        "weight": lambda: backend.conv_backward_weight(x, y, spec, dw, bias),
    }


def own_gemm_calls(layer: Layer) -> dict[str, tuple[Callable[[], Any], int]]:
    """The matrix products of the layer for one image and one group, with their flops."""
    import numpy as np

    rng, pixels, filters = np.random.default_rng(
        0), layer.out_size**layer.axes, layer.filters // layer.groups

    def product(m: int, k: int, n: int, turned: bool = False) -> tuple[Callable[[], Any], int]:
        a, b, out = (rng.random((k, m) if turned else (m, k), np.float32),
                     rng.random((k, n), np.float32), np.empty((m, n), np.float32))
        left = a.T if turned else a
        return lambda: np.matmul(left, b, out=out), 2 * m * k * n

    return {
        "forward": product(pixels, layer.depth, filters),
        "data": product(pixels, filters, layer.depth, turned=True),
        "weight": product(filters, pixels, layer.depth),
    }


def torch_calls(layer: Layer, batch: int) -> dict[str, Callable[[], Any]]:
    """PyTorch's three kernels, without autograd."""
    import torch

    (x, w, y), bias, axes = map(torch.rand,
                                layer.shapes(batch)), torch.rand(layer.filters), layer.axes
    stride, pad = [layer.stride] * axes, [layer.pad] * axes
    convolution = torch.nn.functional.conv2d if axes == 2 else torch.nn.functional.conv3d

    def backward(mask: list[bool]) -> Any:
        return torch.ops.aten.convolution_backward(
            y, x, w, [layer.filters], stride, pad, [1] * axes, False, [0] * axes, layer.groups, mask
        )

    return {
        "forward": lambda: convolution(x, w, bias, stride, pad, 1, layer.groups),
        "data": lambda: backward([True, False, False]),
        "weight": lambda: backward([False, True, True]),
    }


def rounds_of(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each call, interleaved, after a warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def torch_reason(threads: int) -> str | None:
    """Set the threads of PyTorch; return the reason if it is not available."""
    try:
        import torch
    except ImportError as err:
        return f"PyTorch is not usable here ({err})"
    torch.set_num_threads(threads)
    return None


def measure(layer: Layer, batch: int, rounds: int, with_torch: bool) -> list[dict[str, Any]]:
    """Results of a layer, one row per pass."""
    import numpy as np

    square = [np.random.default_rng(i).random((SQUARE, SQUARE), np.float32) for i in range(3)]
    rivals = torch_calls(layer, batch) if with_torch else {}
    kernels, gemms, rows = kernel_calls(layer, batch), own_gemm_calls(layer), []
    for name in PASSES:
        gemm, gemm_flops = gemms[name]
        # The product of one image is repeated until it has the flops of the kernel.
        repeats = max(1, layer.flops(batch) // gemm_flops)
        calls: dict[str, Callable[[], Any]] = {
            "numpy": kernels[name],
            "square": lambda: np.matmul(square[0], square[1], out=square[2]),
            "own": lambda: [gemm() for _ in range(repeats)],  # noqa: B023 - called within this round only
        }
        if with_torch:
            calls["torch"] = rivals[name]
        seconds = rounds_of(calls, rounds)
        rate = layer.flops(batch) / seconds["numpy"] / 1e9
        square_rate, own_rate = 2 * SQUARE**3 / seconds[
            "square"] / 1e9, gemm_flops * repeats / seconds["own"] / 1e9
        rows.append(
            {
                "layer": layer.name,
                "pass": name,
                "gflops": rate,
                "gemm_gflops": square_rate,
                "own_gemm_gflops": own_rate,
                "of_gemm": rate / square_rate,
                "of_own_gemm": rate / own_rate,
                "time_over_torch": seconds["numpy"] / seconds["torch"] if with_torch else None,
                "seconds": seconds,
            }
        )
    return rows


def norm_calls(shape: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """Batch normalization of the NumPy backend on one rank, forward and backward, with its sums."""
    import numpy as np

    from hpcpar.kernels.numpy_backend import NumpyBackend

    backend, rng, channels = NumpyBackend(), np.random.default_rng(0), shape[1]
    x, dy, out, dx = (rng.random(shape, np.float32) for _ in range(4))
    w, b, running = (rng.random(s, np.float32) for s in (channels, channels, (2, channels)))
    (mean, inv_std), (moments, sums), count = (
        np.zeros((2, channels)), np.zeros((2, channels, 2)), x.size // channels)

    def forward() -> None:
        backend.channel_moments(x, moments)
        backend.batchnorm_statistics(moments, count, 1e-5, mean, inv_std, running, 0.1)
        backend.batchnorm_forward(x, mean, inv_std, w, b, out)

    def backward() -> None:
        backend.channel_moments_backward(x, dy, mean, inv_std, sums)
        backend.batchnorm_backward(x, dy, mean, inv_std, w, sums, count, dx)

    return {"forward": forward, "backward": backward}


def torch_norm_calls(shape: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """The same in PyTorch."""
    import torch

    (x, dy), (w, b, mean, variance) = (torch.rand(2, *shape)), torch.rand(4, shape[1])
    _, saved, inv_std = torch.native_batch_norm(x, w, b, mean, variance, True, 0.1, 1e-5)
    backward = torch.ops.aten.native_batch_norm_backward
    return {
        "forward": lambda: torch.native_batch_norm(x, w, b, mean, variance, True, 0.1, 1e-5),
        "backward": lambda: backward(
            dy, x, w, mean, variance, saved, inv_std, True, 1e-5, [True] * 3),
    }


def measure_norm(shape: tuple[int, ...], rounds: int, with_torch: bool) -> list[dict[str, Any]]:
    """One row per pass of a batch normalization."""
    own, rivals, rows = norm_calls(shape), torch_norm_calls(shape) if with_torch else {}, []
    for step in own:
        seconds = rounds_of({"numpy": own[step], **({"torch": rivals[step]} if with_torch else {})},
                            rounds)
        ratio = seconds["numpy"] / seconds["torch"] if with_torch else None
        rows.append({"norm": "x".join(map(str, shape)), "pass": step, "seconds": seconds,
                     "time_over_torch": ratio})
    return rows


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--batch", type=int, default=16, help="images per call (default 16)")
    parser.add_argument("--threads", type=int, default=1,
                        help="threads of BLAS and of PyTorch (default 1)")
    parser.add_argument("--rounds", type=int, default=7,
                        help="rounds behind each median (default 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    options = parser.parse_args(arguments)
    for name in ("batch", "threads", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if "numpy" in sys.modules:
        raise RuntimeError(
            "bench/kernels.py sets BLAS threads before NumPy is imported: run it as a program")
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(options.threads)
    sys.path.insert(0, str(ROOT))
    reason = torch_reason(options.threads)
    print(f"float32, batch {options.batch}, {options.threads} thread(s), medians of "
          f"{options.rounds} rounds; data = backward data")
    if reason:
        print(f"no PyTorch column: {reason}")
    print(f"{'layer':9} {'pass':8} {'GFLOP/s':>8} {'GEMM':>7} {'own':>7} {'of GEMM':>8} "
          f"{'of own':>7}  time / PyTorch's")
    rows = []
    for layer in LAYERS:
        for row in measure(layer, options.batch, options.rounds, reason is None):
            rows.append(row)
            ratio = "-" if row["time_over_torch"] is None else f"{row['time_over_torch']:.2f}"
            print(
                f"{row['layer']:9} {row['pass']:8} {row['gflops']:8.1f} {row['gemm_gflops']:7.1f} "
                f"{row['own_gemm_gflops']:7.1f} {row['of_gemm']:8.0%} {row['of_own_gemm']:7.0%}  "
                f"{ratio}",
                flush=True,
            )
    print(f"{'batch normalization':20} {'pass':8} {'ms':>8}  time / PyTorch's")
    for share, channels, image in NORMS:
        for row in measure_norm((max(1, round(options.batch * share)), channels, *image),
                                options.rounds, reason is None):
            rows.append(row)
            ratio = "-" if row["time_over_torch"] is None else f"{row['time_over_torch']:.2f}"
            print(f"{row['norm']:20} {row['pass']:8} {row['seconds']['numpy'] * 1e3:8.2f}  {ratio}",
                  flush=True)
    if options.json:
        settings = {"batch": options.batch, "threads": options.threads, "rounds": options.rounds,
                    "no_torch": reason}
        options.json.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
