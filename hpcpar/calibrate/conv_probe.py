"""Measures whether NumPy or PyTorch is faster for each kind of convolution."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpcpar.comm.world import World
from hpcpar.kernels.conv_choice import NUMPY, PASSES, RULE, TORCH, conv_kind
from hpcpar.kernels.geometry import ConvSpec, Ints, Segment
from hpcpar.kernels.interface import Backend
from hpcpar.kernels.numpy_backend import NumpyBackend

#: Timed rounds after the first one.
ROUNDS = 2
#: A convolution of every kind: x, w, y, stride, groups.
PROBES: tuple[tuple[Ints, Ints, Ints, int, int], ...] = (
    ((8, 512, 14, 14), (256, 512, 1, 1), (8, 256, 14, 14), 1, 1),
    ((2, 256, 56, 56), (64, 256, 1, 1), (2, 64, 56, 56), 1, 1),
    ((4, 256, 27, 27), (256, 256, 1, 1), (4, 256, 14, 14), 2, 1),
    ((2, 256, 63, 63), (128, 256, 1, 1), (2, 128, 32, 32), 2, 1),
    ((4, 256, 14, 14), (256, 256, 3, 3), (4, 256, 14, 14), 1, 1),
    ((2, 64, 56, 56), (64, 64, 3, 3), (2, 64, 56, 56), 1, 1),
    ((2, 64, 8, 8, 8), (64, 64, 3, 3, 3), (2, 64, 8, 8, 8), 1, 1),
    ((1, 16, 32, 32, 32), (16, 16, 3, 3, 3), (1, 16, 32, 32, 32), 1, 1),
    ((4, 256, 14, 14), (256, 8, 3, 3), (4, 256, 14, 14), 1, 32),
    ((2, 128, 56, 56), (128, 4, 3, 3), (2, 128, 56, 56), 1, 32),
)


def numpy_over_torch(world: World) -> dict[str, float]:
    """NumPy's time over PyTorch's of every kind and pass, while all ranks compute. Collective.

    Times are the shortest of alternating rounds, because other processes only lengthen them, summed
    over ranks; all ranks get the same ratios.
    """
    from hpcpar.kernels.torch_backend import TorchBackend

    backends = NumpyBackend(), TorchBackend(dict.fromkeys(RULE, TORCH))
    kinds: list[str] = []
    least_s: list[list[float]] = []
    for x, w, y, stride, groups in PROBES:
        spec = _spec(x, w, y, stride, groups)
        calls = [_passes(backend, x, w, y, spec) for backend in backends]
        world.barrier()
        for number, name in enumerate(PASSES):
            kinds.append(f"{conv_kind(w, y, spec)} {name}")
            took_s = np.array([[_seconds(each[number]) for each in calls]
                               for _ in range(1 + ROUNDS)])
            least_s.append(took_s[1:].min(axis=0).tolist())
    of_numpy, of_torch = world.bcast(world.sum_of_each(np.array(least_s))).T
    return dict(zip(kinds, (of_numpy / of_torch).tolist(), strict=True))


def faster(ratios: dict[str, float]) -> dict[str, str]:
    """The choice of the faster library by kind and pass."""
    return {kind: TORCH if ratio > 1 else NUMPY for kind, ratio in ratios.items()}


def _spec(x: Ints, w: Ints, y: Ints, stride: int, groups: int) -> ConvSpec:
    axes, ins, outs = len(x) - 2, x[1] // groups, y[1] // groups
    pad = w[2] // 2
    segments = tuple(Segment(g * ins, (g + 1) * ins, g * outs, (g + 1) * outs)
                     for g in range(groups))
    return ConvSpec((stride,) * axes, (1,) * axes, ((pad, pad),) * axes, segments)


def _passes(backend: Backend, x: Ints, w: Ints, y: Ints, spec: ConvSpec
            ) -> list[Callable[[], Any]]:
    """The three passes on random data, in the order of `PASSES`."""
    rng = np.random.default_rng(0)
    images, weights, dy = (rng.standard_normal(shape, np.float32) for shape in (x, w, y))
    out, dx, dw, dbias = (np.empty(shape, np.float32) for shape in (y, x, w, w[:1]))
    return [partial(backend.conv_forward, images, weights, None, spec, out),
            partial(backend.conv_backward_data, dy, weights, spec, dx),
            partial(backend.conv_backward_weight, images, dy, spec, dw, dbias)]


def _seconds(action: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin
