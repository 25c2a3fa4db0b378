"""Time the GPU's convolutions on AlexNet's layers against PyTorch and bare matrix products.

Usage: python bench/gpu_kernels.py [--images N] [--repeats N]

All kernels run in float32 without TF32. The matrix product has the flops of the convolution, so the
difference is the cost of im2col. Times are medians between GPU events in milliseconds. The exit
status is 2 without a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import math
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcpar.errors import InputError
from hpcpar.kernels import backend as make_backend
from hpcpar.kernels.interface import ConvSpec, Segment

#: name, input channels, input side, outputs, kernel, stride, pad (AlexNet in one tower)
LAYERS = (
    ("conv1", 3, 224, 64, 11, 4, 2),
    ("conv2", 64, 27, 192, 5, 1, 2),
    ("conv3", 192, 13, 384, 3, 1, 1),
    ("conv4", 384, 13, 256, 3, 1, 1),
    ("conv5", 256, 13, 256, 3, 1, 1),
)
PASSES = ("forward", "backward data", "backward weight")


def median_ms(call: Callable[[], Any], repeats: int, event: Callable[[], Any],
              elapsed: Callable[[Any, Any], float]) -> float:
    """Median time of a call in ms between two events of the stream, after three warm-up calls."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        start, stop = event(), event()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(elapsed(start, stop))
    return statistics.median(times)


def sides(layer: tuple[Any, ...], images: int) -> tuple[tuple[int, ...], tuple[int, ...],
                                                        tuple[int, ...]]:
    """The shapes of a layer's input, weights and output."""
    _, channels, side, outputs, kernel, stride, pad = layer
    out_side = (side + 2 * pad - kernel) // stride + 1
    return ((images, channels, side, side), (outputs, channels, kernel, kernel),
            (images, outputs, out_side, out_side))


def random_array(xp: Any, *shape: int) -> Any:
    """Random numbers without a random generator on the device, repeated in large arrays."""
    numbers = xp.asarray(np.random.default_rng(0).standard_normal(2**18 + 1, np.float32))
    count = math.prod(shape)
    return xp.tile(numbers, count // numbers.size + 1)[:count].reshape(shape)


def own_calls(gpu: Any, layer: tuple[Any, ...], images: int) -> dict[str, Callable[[], Any]]:
    """The passes of this project's backend."""
    stride, pad = layer[5:]
    x, w, dy = (random_array(gpu.xp, *shape) for shape in sides(layer, images))
    bias = random_array(gpu.xp, w.shape[0])
    spec = ConvSpec((stride, stride), (1, 1), ((pad, pad), (pad, pad)),
                    (Segment(0, w.shape[1], 0, w.shape[0]),))
    out, dx, dw, dbias = (gpu.xp.empty_like(array) for array in (dy, x, w, bias))
    return {
        "forward": lambda: gpu.conv_forward(x, w, bias, spec, out),
        "backward data": lambda: gpu.conv_backward_data(dy, w, spec, dx),
        "backward weight": lambda: gpu.conv_backward_weight(x, dy, spec, dw, dbias),
    }


def product_call(gpu: Any, layer: tuple[Any, ...], images: int) -> Callable[[], Any]:
    """One matrix product with the flops of a pass."""
    _, w, out = sides(layer, images)
    inner, columns = math.prod(w[1:]), out[0] * out[2] * out[3]
    a, b, c = (random_array(gpu.xp, w[0], inner), random_array(gpu.xp, inner, columns),
               gpu.empty((w[0], columns), np.float32))
    return lambda: gpu.xp.matmul(a, b, out=c)


def torch_calls(device: int, layer: tuple[Any, ...], images: int) -> dict[str, Callable[[], Any]]:
    """The same passes in PyTorch on the same GPU; empty without PyTorch or its CUDA."""
    try:
        import torch
        from torch.nn import grad
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    stride, pad = layer[5:]
    x, w, dy = (torch.randn(shape, device="cuda") for shape in sides(layer, images))
    bias = torch.randn(w.shape[0], device="cuda")
    return {
        "forward": lambda: torch.nn.functional.conv2d(x, w, bias, stride, pad),
        "backward data": lambda: grad.conv2d_input(x.shape, w, dy, stride, pad),
        "backward weight": lambda: (grad.conv2d_weight(x, w.shape, dy, stride, pad),
                                    dy.sum((0, 2, 3))),
    }


def time_torch(call: Callable[[], Any], repeats: int) -> float:
    import torch

    return median_ms(call, repeats, lambda: torch.cuda.Event(enable_timing=True), lambda start,
                     stop: start.elapsed_time(stop))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    try:
        gpu = make_backend("gpu")
    except InputError as err:
        print(f"gpu_kernels: {err}", file=sys.stderr)
        return 2
    cuda = gpu.xp.cuda
    device = cuda.Device().id
    name = cuda.runtime.getDeviceProperties(device)["name"].decode()
    print(f"{name}, CuPy {gpu.xp.__version__}, {datetime.date.today().isoformat()}, "
          f"{options.images} images, float32, medians in ms")
    print(f"{'layer':6} {'pass':16} {'hpcpar':>9} {'product':>9} {'PyTorch':>9} {'TFLOP/s':>9}")
    for layer in LAYERS:
        _, w, out = sides(layer, options.images)
        product = median_ms(product_call(gpu, layer, options.images), options.repeats, cuda.Event,
                            cuda.get_elapsed_time)
        own, reference = (own_calls(gpu, layer, options.images),
                          torch_calls(device, layer, options.images))
        for step in PASSES:
            time = median_ms(own[step], options.repeats, cuda.Event, cuda.get_elapsed_time)
            other = (
                f"{time_torch(reference[step], options.repeats):9.3f}"
                if step in reference
                else f"{'-':>9}"
            )
            rate = 2e-9 * math.prod(w) * out[0] * out[2] * out[3] / time
            print(f"{layer[0]:6} {step:16} {time:9.3f} {product:9.3f} {other} {rate:9.1f}",
                  flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
