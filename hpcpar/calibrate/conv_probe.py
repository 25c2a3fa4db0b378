"""Measures which library is fastest for each kind of convolution."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from hpcpar.calibrate.compute_probe import silent_iteration
from hpcpar.comm.world import World
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.kernels.conv_choice import LIBRARIES, PASSES, RULE, conv_kind
from hpcpar.kernels.geometry import ConvSpec
from hpcpar.kernels.interface import Array, Tick
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.plan.plan import Plan

#: Timed iterations of each plan, after one that is not.
ROUNDS = 3
#: Kinds and passes in the order of their numbers.
_KINDS = list(RULE)


class _All(NumpyBackend):
    """Computes each convolution with all libraries, and adds up their times.

    Attributes
    ----------
    took_s : ndarray
        Time of each of `LIBRARIES` for each of `RULE`.
    """

    def __init__(self) -> None:
        from hpcpar.kernels.torch_backend import TorchBackend

        super().__init__()
        self._others = [TorchBackend(dict.fromkeys(RULE, library)) for library in LIBRARIES[1:]]
        self.took_s = np.zeros((len(_KINDS), len(LIBRARIES)))

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
        for library, call in enumerate((
                getattr(super(), kernel), *(getattr(each, kernel) for each in self._others))):
            begin = time.perf_counter()
            call(*args)
            row[library] += time.perf_counter() - begin


def numpy_over_others(world: World, plans: Collection[Plan]) -> dict[str, tuple[float, ...]]:
    """NumPy's time over each other library's, for every kind and pass in the plans, while all ranks
    compute. Collective.

    The shortest of some iterations counts for each library, because other processes only lengthen
    iterations. Times are summed over plans and ranks; all ranks get the same ratios.
    """
    sums_s = np.zeros((len(_KINDS), len(LIBRARIES)))
    for plan in plans:
        backend, network, rounds_s = _All(), plan.network.build(), []
        schedule = schedule_for(network, plan)
        iterate, _ = silent_iteration(world, network, plan, schedule, backend)
        for _ in range(1 + ROUNDS):
            world.barrier()
            backend.took_s[:] = 0.0
            iterate()
            rounds_s.append(backend.took_s.copy())
        sums_s += np.min(rounds_s[1:], axis=0)
    of_all = world.bcast(world.sum_of_each(sums_s)).tolist()
    return {kind: tuple(numpy_s / each for each in others_s) for kind, (numpy_s, *others_s)
            in zip(_KINDS, of_all, strict=True) if all(others_s)}


def fastest(ratios: Mapping[str, tuple[float, ...]]) -> dict[str, str]:
    """The fastest library for every kind and pass; NumPy where nothing was measured."""
    found = {kind: (1.0, *ratios.get(kind, ())) for kind in RULE}
    return {kind: LIBRARIES[speeds.index(max(speeds))] for kind, speeds in found.items()}
