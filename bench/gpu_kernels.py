"""Convolutions of networks on a GPU, by this project and by PyTorch on the same card.

Run: ``python bench/gpu_kernels.py [--networks alexnet,resnet50] [--images N]
[--precision fp32|tf32|amp]``.
Every distinct convolution of a network once, each with its three passes. Times are medians between
events of the stream, in milliseconds. The exit status is 2 without a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hpcpar.errors import InputError  # noqa: E402
from hpcpar.kernels import backend as make_backend  # noqa: E402
from hpcpar.kernels.bfloat16 import BFLOAT16, widening  # noqa: E402
from hpcpar.kernels.geometry import ConvSpec, Segment  # noqa: E402
from hpcpar.network.builtin import network  # noqa: E402
from hpcpar.network.layers import Conv2d  # noqa: E402


def convolutions(name: str) -> Iterator[tuple[Conv2d, tuple[int, ...]]]:
    """The distinct convolutions of a network, with the shape of their input."""
    net, seen = network(name), set()
    for layer in net.layers:
        if isinstance(layer, Conv2d):
            shape = net.input_shape(layer)
            key = (shape, layer.out_channels, layer.kernel, layer.stride, layer.padding,
                   layer.groups)
            if key not in seen:
                seen.add(key)
                yield layer, shape


#: Number formats; ``amp`` is bfloat16 with float32 gradients of weights and biases.
PRECISIONS = ("fp32", "tf32", "amp")


def math_of(precision: str) -> str:
    """Precision of float32 products."""
    return "fp32" if precision == "fp32" else "tf32"


def random_array(gpu: Any, dtype: Any, *shape: int) -> Any:
    """Random numbers without a random generator on the device, repeated in large arrays."""
    numbers = gpu.xp.asarray(np.random.default_rng(0).standard_normal(2**18 + 1, np.float32))
    count = math.prod(shape)
    single = gpu.xp.tile(numbers, count // numbers.size + 1)[:count].reshape(shape)
    out = gpu.empty(shape, dtype)
    gpu.copy(single, out)
    return out


def own_calls(gpu: Any, layer: Conv2d, shape: tuple[int, ...], images: int,
              precision: str) -> dict[str, Callable[[], Any]]:
    """The passes by this project's backend."""
    items = BFLOAT16 if precision == "amp" else np.dtype(np.float32)
    gpu = widening(gpu, items.name)
    ins, outs = shape[0] // layer.groups, layer.out_channels // layer.groups
    segments = tuple(Segment(g * ins, (g + 1) * ins, g * outs, (g + 1) * outs)
                     for g in range(layer.groups))
    spec = ConvSpec(layer.stride, layer.dilation, tuple((p, p) for p in layer.padding), segments)
    x, dy = (random_array(gpu, items, images, *s) for s in (shape, layer.output_shape(shape)))
    w, bias = (random_array(gpu, items, *s) for s in (layer.weight_shape(shape), (len(dy[0]),)))
    out, dx = (gpu.empty(a.shape, items) for a in (dy, x))
    dw, dbias = (gpu.empty(a.shape, np.float32) for a in (w, bias))
    return {
        "forward": lambda: gpu.conv_forward(x, w, bias, spec, out),
        "backward data": lambda: gpu.conv_backward_data(dy, w, spec, dx),
        "backward weight": lambda: gpu.conv_backward_weight(x, dy, spec, dw, dbias),
    }


def torch_calls(device: int, layer: Conv2d, shape: tuple[int, ...], images: int,
                precision: str) -> dict[str, Callable[[], Any]]:
    """The same passes in PyTorch on the same GPU; empty without PyTorch or its CUDA."""
    try:
        import torch
        from torch.nn import grad
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    torch.cuda.set_device(device)
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    where = {"device": "cuda", "dtype": torch.bfloat16 if precision == "amp" else torch.float32}
    x, dy = (torch.randn(images, *s, **where) for s in (shape, layer.output_shape(shape)))
    w = torch.randn(layer.weight_shape(shape), **where)
    bias = torch.randn(layer.out_channels, **where)
    geometry = (layer.stride, layer.padding, layer.dilation, layer.groups)
    return {
        "forward": lambda: torch.nn.functional.conv2d(x, w, bias, *geometry),
        "backward data": lambda: grad.conv2d_input(x.shape, w, dy, *geometry),
        "backward weight": lambda: (grad.conv2d_weight(x, w.shape, dy, *geometry),
                                    dy.sum((0, 2, 3))),
    }


def own_ms(gpu: Any, call: Callable[[], Any], repeats: int) -> float:
    """Median time of a call between two marks of the stream, after three warm-up calls."""
    for _ in range(3):
        call()
    marks = [gpu.mark()]
    for _ in range(repeats):
        call()
        marks.append(gpu.mark())
    return 1e3 * statistics.median(np.diff(gpu.times_s(marks)).tolist())


def torch_ms(call: Callable[[], Any], repeats: int) -> float:
    """The same for a call of PyTorch."""
    import torch

    for _ in range(3):
        call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    events[-1].synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events))


def compare(gpu: Any, name: str, images: int, repeats: int,
            precision: str) -> list[dict[str, Any]]:
    """A row for every pass of every convolution of a network."""
    rows = []
    for layer, shape in convolutions(name):
        own = own_calls(gpu, layer, shape, images, precision)
        peer = torch_calls(gpu.device, layer, shape, images, precision)
        flops = 2 * images * math.prod(layer.weight_shape(shape)) * math.prod(
            layer.output_shape(shape)[1:])
        for step, call in own.items():
            took_ms = own_ms(gpu, call, repeats)
            row: dict[str, Any] = {"network": name, "layer": layer.name, "images": images,
                                   "format": precision, "pass": step, "ms": took_ms,
                                   "Tflop/s": 1e-9 * flops / took_ms}
            if peer:
                peer_ms = torch_ms(peer[step], repeats)
                row |= {"PyTorch ms": peer_ms, "PyTorch/hpcpar": peer_ms / took_ms}
            rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default="alexnet")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    options = parser.parse_args()
    try:
        gpu = make_backend("gpu", math_of(options.precision))
    except InputError as err:
        print(f"gpu_kernels: {err}", file=sys.stderr)
        return 2
    from hpcpar.kernels.cupy_backend import CupyBackend

    assert isinstance(gpu, CupyBackend)
    card = gpu.xp.cuda.runtime.getDeviceProperties(gpu.device)["name"].decode()
    print(f"{card}, convolutions by {gpu.convolutions}, {datetime.date.today().isoformat()}")
    for name in options.networks.split(","):
        for row in compare(gpu, name, options.images, options.repeats,
                           options.precision):
            print("  ".join(f"{value:8.3f}" if isinstance(value, float) else f"{value:>8}"
                            for value in row.values()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
