"""Measures whether NumPy or PyTorch is faster for each kind of convolution."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import numpy as np

from hpcpar.calibrate.compute_probe import silent_iteration
from hpcpar.comm.world import World
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.kernels.conv_choice import NUMPY, PASSES, RULE, TORCH, conv_kind
from hpcpar.kernels.geometry import ConvSpec
from hpcpar.kernels.interface import Array, Tick
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.plan.plan import Plan

#: Timed iterations of each plan, after one that is not.
ROUNDS = 3
#: Kinds and passes in the order of their numbers.
_KINDS = list(RULE)


class _Both(NumpyBackend):
    """Computes each convolution with both libraries, and adds up their times.

    Attributes
    ----------
    took_s : ndarray
        Time of NumPy and of PyTorch for each of `RULE`.
    """

    def __init__(self) -> None:
        from hpcpar.kernels.torch_backend import TorchBackend

        super().__init__()
        self._torch = TorchBackend(dict.fromkeys(RULE, TORCH))
        self.took_s = np.zeros((len(_KINDS), 2))

    def conv_forward(self, x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array,
                     tick: Tick | None = None) -> None:
        self._time("conv_forward", 0, (w, out, spec), x, w, bias, spec, out)

    def conv_backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                           tick: Tick | None = None) -> None:
        self._time("conv_backward_data", 1, (w, dy, spec), dy, w, spec, dx)

    def conv_backward_weight(self, x: Array, dy: Array, spec: ConvSpec, dw: Array,
                             dbias: Array | None, tick: Tick | None = None) -> None:
        self._time("conv_backward_weight", 2, (dw, dy, spec), x, dy, spec, dw, dbias)

    def _time(self, kernel: str, which: int, kind: tuple[Array, Array, ConvSpec],
              *args: Any) -> None:
        weights, outputs, spec = kind
        row = self.took_s[_KINDS.index(
            f"{conv_kind(weights.shape, outputs.shape, spec)} {PASSES[which]}")]
        for library, call in enumerate((getattr(super(), kernel), getattr(self._torch, kernel))):
            begin = time.perf_counter()
            call(*args)
            row[library] += time.perf_counter() - begin


def numpy_over_torch(world: World, plans: Collection[Plan]) -> dict[str, float]:
    """NumPy's time over PyTorch's of every kind and pass in the plans, while all ranks compute.
    Collective.

    The shortest of some iterations counts for each library, because other processes only lengthen
    iterations. Times are summed over plans and ranks; all ranks get the same ratios.
    """
    sums_s = np.zeros((len(_KINDS), 2))
    for plan in plans:
        backend, network, rounds_s = _Both(), plan.network.build(), []
        schedule = schedule_for(network, plan)
        iterate, _ = silent_iteration(world, network, plan, schedule, backend)
        for _ in range(1 + ROUNDS):
            world.barrier()
            backend.took_s[:] = 0.0
            iterate()
            rounds_s.append(backend.took_s.copy())
        sums_s += np.min(rounds_s[1:], axis=0)
    of_both = world.bcast(world.sum_of_each(sums_s)).tolist()
    return {kind: numpy_s / torch_s for kind, (numpy_s, torch_s)
            in zip(_KINDS, of_both, strict=True) if torch_s}


def faster(ratios: dict[str, float]) -> dict[str, str]:
    """The faster library for every kind and pass; NumPy where nothing was measured."""
    return {kind: TORCH if ratios.get(kind, 0.0) > 1 else NUMPY for kind in RULE}
